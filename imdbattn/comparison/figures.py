"""Figures of a comparison (the dict that compare.compare makes). Accuracies are drawn in percent."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from imdbattn.pages import integer_ticks, new_figure, style

WIDTH = 4.8  # inches: text of 10 points is then 10 pixels high on a phone
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"  # for color-blind readers (Okabe & Ito)
COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#000000", "#56B4E9")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))  # with COLORS: 28 different lines
MARKERS = "os^Dv<>P"  # with COLORS: 56 different markers
VERDICTS = {"better": (BLUE, "o"), "worse": (ORANGE, "s"), "undecided": (GREY, "D")}


def accuracies(comparison: dict[str, Any]) -> Figure:
    """Accuracy of each rung: mean over seeds with its interval, and every seed as a dot."""
    rungs, split = comparison["rungs"], comparison["split"]
    figure, axes = row_chart([rung["label"] for rung in rungs])
    for row, rung in enumerate(rungs):
        mean, seeds = rung[split]["mean"], percents(rung[split]["values"])
        interval_row(axes, row, mean, rung["interval"], BLUE, "o", f"{100 * mean:.1f}")
        axes.plot(seeds, [row + 0.28] * len(seeds), "o", color=ORANGE, ms=3)
    axes.plot([], [], "o-", color=BLUE, lw=2, ms=7, label=f"mean, {level(comparison)} interval")
    axes.plot([], [], "o", color=ORANGE, ms=3, label="one seed")
    axes.set_xlabel("accuracy (%)", fontsize=9)
    return finish(figure, f"Accuracy on {comparison['reviews']:,} {split} {comparison['items']}", legend=2)


def differences(comparison: dict[str, Any]) -> Figure:
    """Forest plot: difference in accuracy of each pair of rungs, in points, with its interval."""
    pairs = comparison["pairs"]
    figure, axes = row_chart([f"{pair['to']}\nagainst {pair['from']}" for pair in pairs])
    axes.axvline(0, color="black", lw=0.8)
    for row, pair in enumerate(pairs):
        difference = pair["difference"]
        interval_row(axes, row, difference, pair["interval"], *VERDICTS[pair["verdict"]], signed(difference))
    for verdict, (color, marker) in VERDICTS.items():
        if any(pair["verdict"] == verdict for pair in pairs):
            axes.plot([], [], f"{marker}-", color=color, lw=2, ms=7, label=verdict)
    axes.set_xlabel(f"difference in {comparison['split']} accuracy (points)", fontsize=9)
    return finish(figure, f"Differences, with {level(comparison)} intervals", legend=3)


def interval_row(
    axes: Axes, row: int, value: float, interval: Sequence[float], color: str, marker: str, text: str
) -> None:
    """One row of `row_chart`: an interval, its value, and the value as text on the right."""
    axes.plot(percents(interval), (row, row), color=color, lw=2, solid_capstyle="butt")
    axes.plot(100 * value, row, marker, color=color, ms=7)
    axes.text(1.02, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)


def lengths(comparison: dict[str, Any]) -> Figure:
    """Accuracy over source length: mean line over seeds and band from the lowest to the highest seed.

    A panel for each range of lengths that variants were trained on, which is shaded, with a line for each variant.
    """
    rungs = comparison["rungs"]
    ranges = list(dict.fromkeys(tuple(rung["trained_on"] or ()) for rung in rungs))
    names = [re.sub(r" (data\.)?lengths=\[[^]]*\]", "", rung["label"]) for rung in rungs]  # titles state the range
    styles = {
        name: {"color": COLORS[place % len(COLORS)], "ls": DASHES[place % len(DASHES)], "lw": 1.8}
        for place, name in enumerate(dict.fromkeys(names))
    }
    figure = new_figure(WIDTH, 1.1 + (1.7 if len(ranges) > 1 else 2.6) * len(ranges))
    panels = figure.subplots(len(ranges), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, trained in zip(panels, ranges, strict=True):
        style(axes)
        if trained:
            axes.axvspan(trained[0] - 0.5, trained[1] + 0.5, color=GREY, alpha=0.18, lw=0)
            axes.set_title(f"trained on lengths {trained[0]} to {trained[1]} (shaded)", fontsize=9)
        for rung, name in zip(rungs, names, strict=True):
            if tuple(rung["trained_on"] or ()) == trained:
                line, points = styles[name], rung["lengths"]
                at, seeds = [point["mean"] for point in points], [percents(point["accuracies"]) for point in points]
                low, high = list(map(min, seeds)), list(map(max, seeds))
                axes.fill_between(at, low, high, color=line["color"], alpha=0.2, lw=0)
                axes.plot(at, [sum(s) / len(s) for s in seeds], **line, marker="." if len(at) < 16 else None)
    if len(styles) > 1:
        for name, line in styles.items():
            panels[0].plot([], [], **line, label=wrapped(name))
    points = rungs[0]["lengths"]
    panels[0].set(xlim=(points[0]["shortest"] - 0.5, points[-1]["longest"] + 0.5), ylim=(-4, 104))
    integer_ticks(panels[-1])
    panels[-1].set_xlabel(f"length of the source {comparison['items'][:-1]} ({comparison['unit']})", fontsize=9)
    figure.supylabel("exact outputs (%)", fontsize=9)
    title = f"Accuracy by length, {comparison['split']} {comparison['items']}"
    return finish(figure, title, legend=2 if len(styles) > 1 else 0)


def time_and_accuracy(comparison: dict[str, Any]) -> Figure:
    """Mean training time on a log axis against mean accuracy with its interval, for rungs with a time."""
    split = comparison["split"]
    rungs = sorted((r for r in comparison["rungs"] if r["train_seconds"]), key=lambda rung: -rung[split]["mean"])
    labels = [wrapped(rung["label"]) for rung in rungs]
    height = 0.14 * sum(label.count("\n") + 1 for label in labels)  # of the legend, which has the order of the points
    figure = new_figure(WIDTH, max(3.4, 0.8 + height))
    axes = figure.subplots()
    style(axes)
    for place, (rung, label) in enumerate(zip(rungs, labels, strict=True)):
        x, color = rung["train_seconds"], COLORS[place % len(COLORS)]
        axes.plot((x, x), percents(rung["interval"]), color=color, lw=1, alpha=0.5)
        axes.plot(x, 100 * rung[split]["mean"], MARKERS[place % len(MARKERS)], color=color, ms=6, label=label)
    shortest, *_, longest = sorted(rung["train_seconds"] for rung in rungs)
    axes.set(xscale="log", xlim=(shortest / 1.6, longest * 1.6))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if longest < 50 * shortest else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.tick_params(labelsize=9)
    axes.set_xlabel("training time (s, log scale)", fontsize=9)
    axes.set_ylabel(f"{split} accuracy (%)", fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8, handletextpad=0, labelspacing=0.3)
    return finish(figure, "Training time and accuracy")


def curves_of_seeds(comparison: dict[str, Any], quantity: str) -> Figure:
    """A panel for each rung: training and validation over epochs, mean line and band from lowest to highest seed.

    quantity: accuracy (drawn in percent) or loss. Gray lines are the other rungs' validation means.
    """
    factor = 100 if quantity == "accuracy" else 1
    rungs = [rung for rung in comparison["rungs"] if f"val/{quantity}" in rung["curves"]]
    figure, panels = small_multiples([rung["label"] for rung in rungs], sharex=False)
    means = [band(rung["curves"][f"val/{quantity}"], factor)[:2] for rung in rungs]
    for axes, rung, own in zip(panels, rungs, means, strict=True):
        for curve in means:
            axes.plot(*curve, color=GREY, lw=0.6, alpha=0.5)
        for split, color, line in (("train", ORANGE, "--"), ("val", BLUE, "-")):
            if values := rung["curves"].get(f"{split}/{quantity}"):
                epochs, mean, low, high = band(values, factor)
                axes.fill_between(epochs, low, high, color=color, alpha=0.25, lw=0)
                axes.plot(epochs, mean, line, color=color, lw=1.6, marker="." if len(epochs) < 3 else None)
        last = max(own[0], default=1)
        axes.set_xlim(1 - 0.04 * last, 1.04 * last)  # of this rung: others may train ten times as long
        integer_ticks(axes, 5)
    symbols = quantity == "accuracy" and not comparison["labels"]
    validation = f"validation, whole {comparison['items']}" if symbols else "validation"
    panels[0].plot([], [], color=BLUE, label=validation)
    panels[0].plot([], [], "--", color=ORANGE, label="training, single symbols" if symbols else "training")
    if len(rungs) > 1:
        panels[0].plot([], [], color=GREY, lw=0.6, label="validation of other rungs")
    figure.supylabel("accuracy (%)" if quantity == "accuracy" else "cross-entropy (nats)", fontsize=9)
    return finish(figure, f"{quantity.capitalize()} over epochs, band over seeds", legend=2 if symbols else 3)


def reliability(comparison: dict[str, Any]) -> Figure:
    """A panel for each rung: accuracy over mean confidence by bin, area by items; ECE as in Guo et al. 2017 eq. 3."""
    rungs = comparison["rungs"]
    figure, panels = small_multiples([f"{rung['label']}\nECE {100 * rung['ece']:.1f} %" for rung in rungs])
    for axes, rung in zip(panels, rungs, strict=True):
        bins = rung["reliability"]
        most = max(one["count"] for one in bins)
        confidence, accuracy = (percents(one[name] for one in bins) for name in ("confidence", "accuracy"))
        axes.axline((0, 0), slope=1, color=GREY, lw=0.8)
        axes.plot(confidence, accuracy, color=BLUE, lw=0.8)
        axes.scatter(confidence, accuracy, [60 * one["count"] / most + 2 for one in bins], color=BLUE, lw=0)
    answer = "predicted label" if comparison["labels"] else "output"
    figure.supxlabel(f"confidence: probability of the {answer} (%)", fontsize=9)
    figure.supylabel("accuracy (%)", fontsize=9)
    return finish(figure, "Calibration: accuracy by confidence")


def row_chart(labels: Sequence[str], extra: float = 0.9, lines: float = 1) -> tuple[Figure, Axes]:
    """A row for each label, the first at the top. extra: inches above and below the rows. lines: of a row, at least."""
    names = ["\n".join(map(wrapped, label.split("\n"))) for label in labels]
    row = 0.15 * max(lines, *(name.count("\n") + 1 for name in names)) + 0.1  # inches
    figure = new_figure(WIDTH, 0.5 + row * len(names) + extra)
    axes = figure.subplots()
    style(axes)
    axes.tick_params(labelsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return figure, axes


def small_multiples(titles: Sequence[str], sharex: bool = True) -> tuple[Figure, list[Axes]]:
    """Up to three panels in a row, which share y; sharex: also x."""
    across = min(3, len(titles))
    down = math.ceil(len(titles) / across)
    figure = new_figure(WIDTH, 0.9 + (1.6 if len(titles) > 2 else 2.4) * down)
    grid = figure.subplots(down, across, sharex=sharex, sharey=True, squeeze=False).ravel()
    for axes, title in zip(grid, titles, strict=False):
        style(axes)
        axes.set_title("\n".join(wrapped(line, 18) for line in title.split("\n")), fontsize=8)
        axes.tick_params(labelsize=8, labelbottom=True)
    for axes in grid[len(titles) :]:
        axes.set_axis_off()
    return figure, list(grid[: len(titles)])


def finish(figure: Figure, title: str, legend: int = 0) -> Figure:
    """Adds the title, and a legend of that many columns below."""
    figure.suptitle(title, fontsize=11, fontweight="bold")
    if legend:
        figure.legend(loc="outside lower center", ncols=legend, frameon=False, fontsize=8.5, handlelength=2.6)
    return figure


def wrapped(label: str, width: int = 24) -> str:
    """A label in lines of `width`, broken at spaces, else after underscores; $ is escaped, as it starts a formula."""
    lines = re.sub(rf"(.{{1,{width}}})(?: +|$)|(.{{1,{width}}}(?<=_)|.{{{width}}})", r"\1\2\n", label)
    return lines.rstrip("\n").replace("$", r"\$")


def signed(difference: float) -> str:
    """A difference of fractions in points, with its sign."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")  # + 0.0: no −0.0


def percents(values: Iterable[float]) -> list[float]:
    return [100 * value for value in values]


def level(comparison: Mapping[str, Any]) -> str:
    return f"{100 * comparison['method']['level']:g} %"


def band(curve: dict[str, Any], factor: float) -> tuple[list[int], list[float], list[float], list[float]]:
    """Epochs, and mean, lowest and highest value of the seeds that reached each of them."""
    epochs, seeds = [], []
    for epoch, *values in itertools.zip_longest(curve["epochs"], *curve["values"]):
        if finite := [factor * value for value in values if value is not None and math.isfinite(value)]:
            epochs.append(epoch)
            seeds.append(finite)
    return epochs, [sum(values) / len(values) for values in seeds], list(map(min, seeds)), list(map(max, seeds))
