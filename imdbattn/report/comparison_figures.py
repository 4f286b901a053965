"""The figures of a comparison, and functions that other figures share.

Accuracies are in percent.
"""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from imdbattn.report.comparison import ENTROPY
from imdbattn.report.comparison_types import ComparedSet, Curve
from imdbattn.report.numbers import LEVEL_NAME, is_in_percent, metric_name, metric_text
from imdbattn.report.pages import Picture, integer_ticks, new_figure, style_axes

FIGURE_WIDTH = 4.8  # inches: text of 10 points is then 10 pixels high on a phone
# Color-blind readers can distinguish these colors (Okabe & Ito).
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREY = "#8C8C8C"
COLORS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
BAND = "Line: mean over seeds; band: from the lowest to the highest seed."


def accuracy_pictures(comparison: ComparedSet) -> list[Picture]:
    """Returns the figure of the metric of each variant."""
    caption = "Blue: mean over seeds with its interval; orange: each seed."
    return [Picture("accuracies", partial(accuracies, comparison), caption)]


def accuracies(comparison: ComparedSet) -> Figure:
    """Draws the metric of each variant: its mean over seeds with the interval, and each seed."""
    variants = comparison["variants"]
    metric = comparison["metric"]
    factor = 100 if is_in_percent(metric) else 1
    name = metric_name(metric)
    figure, axes = row_chart([variant["label"] for variant in variants])
    for row, variant in enumerate(variants):
        mean = factor * variant["metric"]["mean"]
        seeds = [factor * value for value in variant["metric"]["values"]]
        ends = [factor * end for end in variant["interval"] or ()]
        axes.plot(ends, [row] * len(ends), color=BLUE, lw=2, solid_capstyle="butt")
        axes.plot(mean, row, "o", color=BLUE, ms=7)
        number = metric_text(variant["metric"]["mean"], metric)
        beside = axes.get_yaxis_transform()
        axes.text(1.02, row, number, transform=beside, va="center", fontsize=9)
        axes.plot(seeds, [row + 0.28] * len(seeds), "o", color=ORANGE, ms=3)
    axes.plot([], [], "o-", color=BLUE, lw=2, ms=7, label=f"mean, {LEVEL_NAME} interval")
    axes.plot([], [], "o", color=ORANGE, ms=3, label="one seed")
    axes.set_xlabel(f"{name} (%)" if factor == 100 else name, fontsize=9)
    scored = f"{comparison['count']:,} {comparison['split']} {comparison['items']}"
    return with_title(figure, f"{name[:1].upper()}{name[1:]} on {scored}", legend=2)


def length_pictures(comparison: ComparedSet) -> list[Picture]:
    """Returns the figure of accuracy by length, if all variants have it."""
    curves = [variant["lengths"] for variant in comparison["variants"]]
    if not all(curve and curve["x"] for curve in curves):
        return []
    omitted = f"Lengths of fewer than ten {comparison['items']} are omitted."
    caption = f"{BAND} Shaded: training. {omitted}"
    return [Picture("lengths", partial(accuracies_by_length, comparison), caption)]


def accuracies_by_length(comparison: ComparedSet) -> Figure:
    """Draws a panel for each variant: accuracy over source length.

    The lengths of training are shaded.
    """
    variants = comparison["variants"]
    figure, panels = small_multiples([variant["label"] for variant in variants])
    for axes, variant in zip(panels, variants, strict=True):
        if variant["trained_on"]:
            shortest, longest = variant["trained_on"]
            axes.axvspan(shortest - 0.5, longest + 0.5, color=GREY, alpha=0.18, lw=0)
        band(axes, variant["lengths"], 100, BLUE)
        integer_ticks(axes, 5)
    item = comparison["items"][:-1]
    figure.supxlabel(f"length of the source {item} ({comparison['unit']})", fontsize=9)
    figure.supylabel("exact outputs (%)", fontsize=9)
    return with_title(figure, f"Accuracy by length, {comparison['split']} {comparison['items']}")


def curve_pictures(comparison: ComparedSet) -> list[Picture]:
    """Returns the figures of accuracy and loss over epochs, if a variant has them."""
    caption = f"{BAND} Training values are measured during the epoch, with changing weights."
    pictures = []
    for quantity, unit in (("accuracy", "accuracy (%)"), ("loss", "cross-entropy (nats)")):
        if not any(f"val/{quantity}" in variant["curves"] for variant in comparison["variants"]):
            continue
        training = "training"
        validation = "validation"
        if quantity == "accuracy" and not comparison["labels"]:
            training += ", single symbols"
            validation += f", whole {comparison['items']}"
        lines = {
            f"train/{quantity}": (training, ORANGE, "--"),
            f"val/{quantity}": (validation, BLUE, "-"),
        }
        title = f"{quantity.capitalize()} over epochs, band over seeds"
        factor = 100 if quantity == "accuracy" else 1
        draw = partial(over_epochs, comparison, lines, factor, unit, title)
        pictures.append(Picture(f"curves_{quantity}", draw, caption))
    return pictures


def entropy_pictures(comparison: ComparedSet) -> list[Picture]:
    """Returns the figure of the entropy of each attention over epochs, if a variant has it."""
    curves = dict.fromkeys(name for variant in comparison["variants"] for name in variant["curves"])
    lines = {}
    colors = itertools.cycle(COLORS)
    for name in curves:
        if name.startswith(ENTROPY):
            label = name.removeprefix(ENTROPY).replace("layer", "layer ")
            lines[name] = (label, next(colors), "-")
    if not lines:
        return []
    measured = f"Mean over heads of the same validation {comparison['items']}"
    caption = f"{BAND} {measured}; 100 % is the entropy of equal weights."
    title = "Entropy of attention over epochs, band over seeds"
    draw = partial(over_epochs, comparison, lines, 100, "entropy (% of equal weights)", title)
    return [Picture("entropy", draw, caption)]


def over_epochs(
    comparison: ComparedSet,
    lines: Mapping[str, tuple[str, str, str]],
    factor: float,
    unit: str,
    title: str,
) -> Figure:
    """Draws a panel for each variant that has one of the curves, multiplied by `factor`.

    lines: label, color and style of the line of each curve.
    """
    variants = [variant for variant in comparison["variants"] if lines.keys() & variant["curves"]]
    figure, panels = small_multiples([variant["label"] for variant in variants], sharex=False)
    for axes, variant in zip(panels, variants, strict=True):
        for name, (_, color, dashes) in lines.items():
            if curve := variant["curves"].get(name):
                band(axes, curve, factor, color, dashes)
        integer_ticks(axes, 5)
    for label, color, dashes in lines.values():
        panels[0].plot([], [], dashes, color=color, label=label)
    figure.supylabel(unit, fontsize=9)
    return with_title(figure, title, legend=4)


def band(axes: Axes, curve: Curve, factor: float, color: str, line: str = "-") -> None:
    """Draws a line at the mean over the seeds that reached each x, and a band from the lowest to
    the highest seed. line: the style of the line.
    """
    values_SX = factor * np.array(curve["values"], dtype=float)  # NaN instead of None
    reached = np.isfinite(values_SX).any(0)
    x = np.array(curve["x"])[reached]
    known_SX = np.ma.masked_invalid(values_SX[:, reached])
    axes.fill_between(x, known_SX.min(0), known_SX.max(0), color=color, alpha=0.22, lw=0)
    axes.plot(x, known_SX.mean(0), line, color=color, marker=".", lw=1.6)


def row_chart(labels: Sequence[str], extra: float = 0.9) -> tuple[Figure, Axes]:
    """Returns axes with a row for each label, the first at the top.

    extra: inches above and below the rows.
    """
    names = list(map(wrapped, labels))
    row = 0.15 * max(name.count("\n") + 1 for name in names) + 0.1  # inches
    figure = new_figure(FIGURE_WIDTH, 0.5 + row * len(names) + extra)
    axes = figure.subplots()
    style_axes(axes)
    axes.tick_params(labelsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return figure, axes


def small_multiples(titles: Sequence[str], sharex: bool = True) -> tuple[Figure, list[Axes]]:
    """Returns titled panels, three in a row, with a common y axis and, if `sharex`, x axis."""
    across = min(3, len(titles))
    down = math.ceil(len(titles) / across)
    figure = new_figure(FIGURE_WIDTH, 0.9 + (1.6 if len(titles) > 2 else 2.4) * down)
    grid = figure.subplots(down, across, sharex=sharex, sharey=True, squeeze=False).ravel()
    for axes, title in zip(grid, titles, strict=False):
        style_axes(axes)
        axes.set_title(wrapped(title, 18), fontsize=8)
        axes.tick_params(labelsize=8, labelbottom=True)
    for axes in grid[len(titles) :]:
        axes.set_axis_off()
    return figure, list(grid[: len(titles)])


def with_title(figure: Figure, title: str, legend: int = 0) -> Figure:
    """Adds the title, and a legend of that many columns below."""
    figure.suptitle(title, fontsize=11, fontweight="bold")
    if legend:
        figure.legend(
            loc="outside lower center", ncols=legend, frameon=False, fontsize=8.5, handlelength=2.6
        )
    return figure


def wrapped(text: str, width: int = 24) -> str:
    """Returns the text, wrapped at `width` characters, with $ escaped, which starts a formula."""
    lines = [textwrap.fill(line, width) for line in text.split("\n")]
    return "\n".join(lines).replace("$", r"\$")
