"""Figures from finished run folders and from their comparison (the dict that analysis.comparison makes).

Each function returns a matplotlib figure, made without pyplot. Accuracies are drawn in percent.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.8  # inches: at the width of a phone a letter of 10 points is then still 10 pixels high
NARROW = 18  # letters of 8 points that stand above a panel, of three beside each other
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"  # told apart by the colour-blind (Okabe & Ito)
LINES = (  # of up to six variants in one panel, by colour and by dashes
    (BLUE, "-"),
    (ORANGE, (0, (5, 1.5))),
    (GREEN, (0, (1.5, 1.2))),
    ("#CC79A7", (0, (6, 1.5, 1.5, 1.5))),
    ("#E69F00", "-"),
    ("#000000", (0, (3, 1, 1, 1, 1, 1))),
)
VERDICTS = {"better": (BLUE, "o"), "worse": (ORANGE, "s"), "undecided": (GREY, "D")}


def png(figure: Figure, bbox_inches: str | None = None) -> bytes:
    """bbox_inches: "tight" makes the picture as large as what is drawn, whatever the size of the figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches=bbox_inches)
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG with its letters drawn as shapes; the same figure gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "imdbattn", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def style(axes: Axes) -> None:
    """A faint grid, and no frame above and on the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def whole_ticks(axes: Axes, most: int = 9) -> None:
    """Ticks of x at whole numbers only, also where a single one is in view."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def curve_names(items: str, quantity: str) -> tuple[str, str]:
    """What training and validation are called: the accuracy of an encoder-decoder is not of the same things in both."""
    if items == "reviews" or quantity != "accuracy":
        return "training", "validation"
    return "training, single symbols", f"validation, whole {items}"


def figures(comparison: dict[str, Any]) -> dict[str, Figure]:
    """All figures of a comparison by name, in the order of a page; one for which there is no data is left out."""
    rungs = comparison["rungs"]
    drawn = {"accuracies": accuracies(comparison)}
    by_length = any(rung["lengths"] for rung in rungs)
    if by_length:
        drawn["lengths"] = lengths(comparison)
    if comparison["pairs"]:
        drawn["differences"] = differences(comparison)
    if sum(bool(rung["train_seconds"]) for rung in rungs) > 1:
        drawn["time"] = time_and_accuracy(comparison)
    for quantity in ("accuracy", "loss"):
        if any(f"val/{quantity}" in rung["curves"] for rung in rungs):
            drawn[f"curves_{quantity}"] = curves_of_seeds(comparison, quantity)
    if not by_length or len(rungs[0]["slices"]) > 1:  # slices by length alone are in `lengths`, and finer
        drawn["slices"] = slices(comparison)
    drawn["reliability"] = reliability(comparison)
    return drawn


def accuracies(comparison: dict[str, Any]) -> Figure:
    """Accuracy of each rung: mean over seeds with its interval, and every seed as a dot."""
    rungs, split = comparison["rungs"], comparison["split"]
    labels = [rung["label"] for rung in rungs]
    figure, (axes,) = canvas(1, 1.2 + room(labels, between=0.14))
    for row, rung in enumerate(rungs):
        mean, values = rung[split]["mean"], rung[split]["values"]
        axes.plot(percent(rung["interval"]), (row, row), color=BLUE, lw=2, solid_capstyle="butt")
        axes.plot(100 * mean, row, "o", color=BLUE, ms=7)
        axes.plot(percent(values), [row + 0.28] * len(values), "o", color=ORANGE, ms=3)
        axes.text(1.02, row, f"{100 * mean:.1f}", transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.plot([], [], "o-", color=BLUE, lw=2, ms=7, label=f"mean, {level(comparison)} interval")
    axes.plot([], [], "o", color=ORANGE, ms=3, label="a seed")
    rows(axes, labels)
    axes.set_xlabel("accuracy (%)", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return titled(figure, f"Accuracy on {comparison['reviews']:,} {split} {comparison['items']}")


def lengths(comparison: dict[str, Any]) -> Figure:
    """Accuracy against source length: mean line over seeds and band from the lowest to the highest one.

    A panel for each range of lengths that variants were trained on, which is shaded, with a line per variant; a panel
    for each variant, the others in grey, where there are more than one can tell apart.
    """
    rungs = comparison["rungs"]
    ranges = list(dict.fromkeys(tuple(rung["trained_on"] or ()) for rung in rungs))
    name = "label" if len(ranges) == 1 else "apart_from_range"  # the panel says the rest
    groups = [[rung for rung in rungs if tuple(rung["trained_on"] or ()) == trained] for trained in ranges]
    if any(len({rung[name] for rung in group}) < len(group) for group in groups):
        name = "label"
    styles = dict(zip(dict.fromkeys(rung[name] for rung in rungs), LINES, strict=False))
    crowded = len({rung[name] for rung in rungs}) > len(LINES)
    if crowded:
        groups = [[rung] for rung in rungs]
    columns = 3 if crowded else 1
    figure, panels = canvas(len(groups), 1.5 if crowded else 2.8 if len(groups) == 1 else 1.7, columns)
    for axes, group in zip(panels, groups, strict=True):
        trained = group[0]["trained_on"]
        if trained:
            axes.axvspan(trained[0] - 0.5, trained[1] + 0.5, color=GREY, alpha=0.18, lw=0)
        if crowded:
            for rung in rungs:
                axes.plot(*over_lengths(rung)[:2], color=GREY, lw=0.6, alpha=0.5)
        for rung in group:
            at, mean, low, high = over_lengths(rung)
            color, dashes = LINES[0] if crowded else styles[rung[name]]
            axes.fill_between(at, low, high, color=color, alpha=0.2, lw=0)
            axes.plot(at, mean, color=color, ls=dashes, lw=1.8, marker="." if len(at) < 16 else None)
        if crowded:
            axes.set_title(wrapped(group[0]["label"], NARROW), fontsize=8)
        elif trained:
            axes.set_title(f"trained on lengths {trained[0]} to {trained[1]} (shaded)", fontsize=9)
        whole_ticks(axes, 4 if crowded else 9)
        if axes.xaxis.get_tick_params()["labelbottom"]:  # the lowest of a column
            whole = f"length of the source {one_of(comparison)} ({comparison['unit']})"
            axes.set_xlabel(f"length ({comparison['unit']})" if crowded else whole, fontsize=8 if crowded else 9)
    points = rungs[0]["lengths"]
    panels[0].set(xlim=(points[0]["shortest"] - 0.5, points[-1]["longest"] + 0.5), ylim=(-4, 104))
    if crowded:
        panels[0].plot([], [], color=LINES[0][0], label="the variant named above")
        panels[0].plot([], [], color=GREY, lw=0.6, label="the others")
        if any(ranges):
            panels[0].fill_between([], [], color=GREY, alpha=0.18, lw=0, label="lengths trained on")
    else:
        for label, (color, dashes) in styles.items():
            panels[0].plot([], [], color=color, ls=dashes, lw=1.8, label=wrapped(label))
    if crowded or len(styles) > 1:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5, handlelength=2.6)
    figure.supylabel("exactly right (%)", fontsize=9)
    return titled(figure, f"Accuracy by length, {comparison['split']} {comparison['items']}")


def over_lengths(rung: dict[str, Any]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Mean length of each point, and mean, lowest and highest accuracy of the seeds in percent."""
    points = rung["lengths"]
    seeds = [percent(point["accuracies"]) for point in points]
    means = [sum(values) / len(values) for values in seeds]
    return [point["mean"] for point in points], means, [min(values) for values in seeds], [max(v) for v in seeds]


def differences(comparison: dict[str, Any]) -> Figure:
    """Forest plot: difference in accuracy of each pair of rungs, in points, with its interval."""
    pairs = comparison["pairs"]
    labels = [f"{pair['to']}\nagainst {pair['from']}" for pair in pairs]
    figure, (axes,) = canvas(1, 1.2 + room(labels))
    axes.axvline(0, color="black", lw=0.8)
    for row, pair in enumerate(pairs):
        color, marker = VERDICTS[pair["verdict"]]
        axes.plot(percent(pair["interval"]), (row, row), color=color, lw=2, solid_capstyle="butt")
        axes.plot(100 * pair["difference"], row, marker, color=color, ms=7)
        words = signed(pair["difference"])
        axes.text(1.02, row, words, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    for verdict in (v for v in VERDICTS if any(pair["verdict"] == v for pair in pairs)):
        color, marker = VERDICTS[verdict]
        axes.plot([], [], f"{marker}-", color=color, lw=2, ms=7, label=verdict)
    rows(axes, labels)
    axes.set_xlabel(f"difference in {comparison['split']} accuracy (points)", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return titled(figure, f"Differences, with {level(comparison)} intervals")


def time_and_accuracy(comparison: dict[str, Any]) -> Figure:
    """Mean training time on a log axis against mean accuracy with its interval; without a time no point."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    split = comparison["split"]
    rungs = sorted((r for r in comparison["rungs"] if r["train_seconds"]), key=lambda rung: rung[split]["mean"])
    figure, (axes,) = canvas(1, max(3.4, 1 + room([rung["label"] for rung in rungs], between=0)))
    for rung in rungs:
        x, y = rung["train_seconds"], 100 * rung[split]["mean"]
        axes.plot((x, x), percent(rung["interval"]), color=BLUE, lw=1, alpha=0.5)
        axes.plot(x, y, "o", color=BLUE, ms=6)
    seconds = [rung["train_seconds"] for rung in rungs]
    axes.set(xscale="log", xlim=(min(seconds) / 1.6, max(seconds) * 1.6))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(seconds) < 50 * min(seconds) else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    low, high = axes.get_ylim()
    wanted = [(100 * rung[split]["mean"] - low) / (high - low) for rung in rungs]
    for rung, height in zip(rungs, apart(wanted, min(1 / len(rungs), 0.1)), strict=True):
        axes.annotate(  # names stand beside the picture, where they hide no point and not each other
            wrapped(rung["label"]),
            xy=(rung["train_seconds"], 100 * rung[split]["mean"]),
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.6, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)},
        )
    axes.set_xlabel("training time (s, log scale)", fontsize=9)
    axes.set_ylabel(f"{split} accuracy (%)", fontsize=9)
    return titled(figure, "Time against accuracy")


def curves_of_seeds(comparison: dict[str, Any], quantity: str) -> Figure:
    """A panel per rung: training and validation over epochs, mean line and band from lowest to highest seed.

    quantity: accuracy (drawn in percent) or loss. Grey lines repeat the other rungs' validation means.
    """
    factor = 100 if quantity == "accuracy" else 1
    rungs = [rung for rung in comparison["rungs"] if f"val/{quantity}" in rung["curves"]]
    figure, panels = canvas(len(rungs), max(1.6, 2.8 / len(rungs)))
    means = [band(rung["curves"][f"val/{quantity}"], factor) for rung in rungs]
    for axes, rung in zip(panels, rungs, strict=True):
        for epochs, mean, *_ in means:
            axes.plot(epochs, mean, color=GREY, lw=0.6, alpha=0.5)
        for split, color, line in (("train", ORANGE, "--"), ("val", BLUE, "-")):
            if curve := rung["curves"].get(f"{split}/{quantity}"):
                epochs, mean, low, high = band(curve, factor)
                axes.fill_between(epochs, low, high, color=color, alpha=0.25, lw=0)
                axes.plot(epochs, mean, line, color=color, lw=1.6, marker="." if len(epochs) < 3 else None)
        axes.set_title(wrapped(rung["label"], NARROW), fontsize=8)
        whole_ticks(axes, 4)
        if axes.xaxis.get_tick_params()["labelbottom"]:  # the lowest of a column
            axes.set_xlabel("epoch", fontsize=8)
    training, validation = curve_names(comparison["items"], quantity)
    panels[0].plot([], [], color=BLUE, label=validation)
    panels[0].plot([], [], "--", color=ORANGE, label=training)
    if len(rungs) > 1:
        panels[0].plot([], [], color=GREY, lw=0.6, label="validation of the others")
    ncols = 3 if training == "training" else 2
    figure.legend(loc="outside lower center", ncols=ncols, frameon=False, fontsize=8)
    figure.supylabel("accuracy (%)" if quantity == "accuracy" else "cross-entropy (nats)", fontsize=9)
    return titled(figure, f"Learning curves: {quantity}, band over seeds")


def slices(comparison: dict[str, Any]) -> Figure:
    """Accuracy by length and by contrast word: a panel per way of slicing, a line of dots per rung."""
    import matplotlib

    rungs = comparison["rungs"]
    groups = rungs[0]["slices"]
    labels = [rung["label"] for rung in rungs]
    above = 1 if len(groups) > 1 else 1.8  # the legend, and of a single panel the titles
    figure, panels = canvas(len(groups), above + room(labels, size=7.5, between=0.06), columns=2)
    for axes, group in zip(panels, groups, strict=True):
        names = [found["name"] for found in groups[group]]
        colors = matplotlib.colormaps["viridis"]([0.7 * i / max(len(names) - 1, 1) for i in range(len(names))])
        for row, rung in enumerate(rungs):
            found = percent(one["accuracy"] for one in rung["slices"][group])
            axes.plot(found, [row] * len(found), color=GREY, lw=0.8, zorder=1)
            for value, color, marker in zip(found, colors, "os^Dv<>P" * len(found), strict=False):
                axes.plot(value, row, marker, color=color, ms=4.5)
        for name, color, marker in zip(groups[group], colors, "os^Dv<>P" * len(names), strict=False):
            axes.plot([], [], marker, color=color, ms=4.5, label=f"{name['name']} ({name['reviews']:,})")
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.05, 1),
            frameon=False,
            fontsize=7.5,
            handletextpad=0.1,
            borderpad=0.1,
            title=f"{one_of(comparison)} length" if group == "length" else f"“{group}” in the text",
            title_fontproperties={"size": 8, "weight": "bold"},
            alignment="left",
        )
        rows(axes, labels, size=7.5)
    figure.supxlabel(f"{comparison['split']} accuracy (%)", fontsize=9)
    return titled(figure, f"Accuracy by slice of the {comparison['items']} (their number)")


def reliability(comparison: dict[str, Any]) -> Figure:
    """A panel per rung: accuracy against mean confidence by bin, area by items; ECE as in Guo et al. 2017 eq. 3."""
    rungs = comparison["rungs"]
    figure, panels = canvas(len(rungs), max(1.6, 2.8 / len(rungs)))
    for axes, rung in zip(panels, rungs, strict=True):
        bins = rung["reliability"]
        most = max(found["count"] for found in bins)
        confidence = percent(found["confidence"] for found in bins)
        accuracy = percent(found["accuracy"] for found in bins)
        axes.plot((0, 100), (0, 100), color=GREY, lw=0.8)
        axes.plot(confidence, accuracy, color=BLUE, lw=0.8)
        axes.scatter(confidence, accuracy, [60 * found["count"] / most + 2 for found in bins], color=BLUE, lw=0)
        axes.set_title(f"{wrapped(rung['label'], NARROW)}\nECE {100 * rung['ece']:.1f} %", fontsize=8)
    bins = [found for rung in rungs for found in rung["reliability"]]
    shares = [found[name] for found in bins for name in ("confidence", "accuracy")]
    lowest = 100 * min(filter(math.isfinite, shares), default=0)  # a run that diverged has no confidence
    panels[0].set(xlim=(max(lowest - 5, -3), 103), ylim=(max(lowest - 5, -3), 103))
    answer = "predicted label" if comparison["labels"] else "output"
    figure.supxlabel(f"confidence: probability of the {answer} (%)", fontsize=9)
    figure.supylabel("accuracy (%)", fontsize=9)
    return titled(figure, "Does a probability mean what it says?")


def canvas(count: int, height: float, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels of `height` inches each, in rows of up to `columns`, which share both axes."""
    from matplotlib.figure import Figure

    across = min(columns, count)
    down = math.ceil(count / across)
    figure = Figure(figsize=(WIDTH, height * down + (0.8 if count > 1 else 0)), layout="constrained")
    panels: list[Axes] = []
    for place in range(count):
        first = panels[0] if panels else None
        axes = figure.add_subplot(down, across, place + 1, sharex=first, sharey=first)
        style(axes)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=9 if count == 1 else 8, labelbottom=place + across >= count)
        axes.tick_params(labelleft=place % across == 0)
        panels.append(axes)
    return figure, panels


def titled(figure: Figure, title: str) -> Figure:
    figure.suptitle(title, fontsize=11, fontweight="bold")
    return figure


def rows(axes: Axes, labels: Sequence[str], size: float = 9) -> None:
    """Names a row per label, the first on top."""
    axes.set_yticks(range(len(labels)), [wrapped(label) for label in labels], fontsize=size)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def signed(difference: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")  # no −0.0


def room(labels: Sequence[str], size: float = 9, between: float = 0.1) -> float:
    """Inches that a row per label takes, each as high as the label with the most lines, with `between` them.

    size: of the letters, in points of 1/72 inch.
    """
    return len(labels) * (1.2 * size / 72 * max(wrapped(label).count("\n") + 1 for label in labels) + between)


def wrapped(label: str, width: int = 24) -> str:
    """A long label on several lines, so that it leaves room for the picture; $ stays a letter and starts no formula.

    A word that is itself too long is cut behind an underscore.
    """

    def cut(word: re.Match[str]) -> str:
        return re.sub(rf"^(.{{1,{width - 1}}}_)(?=.)", r"\1 ", word[0])

    label = re.sub(rf"\S{{{width + 1},}}", cut, label.replace("$", r"\$"))
    return "\n".join(line for part in label.split("\n") for line in textwrap.wrap(part, width) or [""])


def percent(values: Iterable[float | None]) -> list[float]:
    """Shares as percent; what is missing becomes nan, which is not drawn."""
    return [math.nan if value is None else 100 * value for value in values]


def one_of(comparison: dict[str, Any]) -> str:
    """What one of the items is called."""
    return str(comparison["items"]).removesuffix("s")


def level(comparison: dict[str, Any]) -> str:
    return f"{100 * comparison['method']['level']:g} %"


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending places from 0 to 1, moved as little as it takes to lie `gap` apart (at most 1 / their number)."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else place)
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], 1 - gap * (len(places) - 1 - i))
    return places


def band(curve: dict[str, Any], factor: float) -> tuple[list[int], list[float], list[float], list[float]]:
    """Epochs, and mean, lowest and highest value of the seeds that reached each of them."""
    found = []
    for place, epoch in enumerate(curve["epochs"]):
        values = [seed[place] for seed in curve["values"] if place < len(seed)]
        if values := [factor * value for value in values if value is not None and math.isfinite(value)]:
            found.append((epoch, sum(values) / len(values), min(values), max(values)))
    epochs, mean, low, high = zip(*found, strict=True) if found else ((), (), (), ())
    return list(epochs), list(mean), list(low), list(high)
