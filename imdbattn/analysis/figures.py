"""Figures from finished run folders and from their comparison (the dict that analysis.comparison makes).

Each function returns a matplotlib figure, made without pyplot. Accuracies are drawn in percent.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.8  # inches: at the width of a phone a letter of 10 points is then still 10 pixels high
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"  # told apart by the colour-blind (Okabe & Ito)
VERDICTS = {"better": (BLUE, "o"), "worse": (ORANGE, "s"), "undecided": (GREY, "D")}


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG with its letters drawn as shapes; the same figure gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "imdbattn", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def read_curves(metrics_csv: Path) -> dict[str, tuple[list[int], list[float]]]:
    """metrics.csv as name -> (epochs counted from 1, values); Lightning leaves most cells of a line empty."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    with metrics_csv.open(newline="") as file:
        for line in csv.DictReader(file):
            for name, value in line.items():
                if value and name not in ("epoch", "step") and line.get("epoch"):
                    epochs, values = curves.setdefault(name, ([], []))
                    epochs.append(int(float(line["epoch"])) + 1)
                    values.append(float(value))
    return curves


def style(axes: Axes) -> None:
    """A faint grid, and no frame above and on the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def learning_curves(metrics_csv: Path) -> Figure:
    """Loss and accuracy of training and validation over epochs, of one run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    curves = read_curves(metrics_csv)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, quantity, factor in zip(figure.subplots(1, 2), ("loss", "accuracy"), (1, 100), strict=True):
        for split, label, color in (
            ("train", "training, words dropped", "tab:gray"),
            ("val", "validation", "tab:blue"),
        ):
            epochs, values = curves.get(f"{split}/{quantity}", ([], []))
            axes.plot(epochs, [factor * value for value in values], "o-", ms=3.5, label=label, color=color)
        axes.set(xlabel="epoch", ylabel="cross-entropy" if quantity == "loss" else "accuracy (%)", title=quantity)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style(axes)
    axes.legend(frameon=False)
    return figure


def figures(comparison: dict[str, Any]) -> dict[str, Figure]:
    """All figures of a comparison by name, in the order of a page; one for which there is no data is left out."""
    rungs = comparison["rungs"]
    drawn = {"accuracies": accuracies(comparison)}
    if comparison["pairs"]:
        drawn["differences"] = differences(comparison)
    if sum(bool(rung["train_seconds"]) for rung in rungs) > 1:
        drawn["time"] = time_and_accuracy(comparison)
    for quantity in ("accuracy", "loss"):
        if any(f"val/{quantity}" in rung["curves"] for rung in rungs):
            drawn[f"curves_{quantity}"] = curves_of_seeds(comparison, quantity)
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
    return titled(figure, f"Accuracy on {comparison['reviews']:,} {split} reviews")


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
    from matplotlib.ticker import MaxNLocator

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
        axes.set_title(wrapped(rung["label"]), fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if axes.xaxis.get_tick_params()["labelbottom"]:  # the lowest of a column
            axes.set_xlabel("epoch", fontsize=8)
    panels[0].plot([], [], color=BLUE, label="validation")
    panels[0].plot([], [], "--", color=ORANGE, label="training")
    if len(rungs) > 1:
        panels[0].plot([], [], color=GREY, lw=0.6, label="validation of the others")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.supylabel("accuracy (%)" if quantity == "accuracy" else "cross-entropy (nats)", fontsize=9)
    return titled(figure, f"Learning curves: {quantity}, band over seeds")


def slices(comparison: dict[str, Any]) -> Figure:
    """Accuracy by review length and by contrast word: a panel per way of slicing, a line of dots per rung."""
    import matplotlib

    rungs = comparison["rungs"]
    groups = rungs[0]["slices"]
    labels = [rung["label"] for rung in rungs]
    figure, panels = canvas(len(groups), 1 + room(labels, size=7.5, between=0.06), columns=2)
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
            title="review length" if group == "length" else f"“{group}” in the text",
            title_fontproperties={"size": 8, "weight": "bold"},
            alignment="left",
        )
        rows(axes, labels, size=7.5)
    figure.supxlabel(f"{comparison['split']} accuracy (%)", fontsize=9)
    return titled(figure, "Accuracy by slice of the reviews (their number)")


def reliability(comparison: dict[str, Any]) -> Figure:
    """A panel per rung: accuracy against mean confidence by bin, area by reviews; ECE as in Guo et al. 2017 eq. 3."""
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
        axes.set_title(f"{wrapped(rung['label'])}\nECE {100 * rung['ece']:.1f} %", fontsize=8)
    bins = [found for rung in rungs for found in rung["reliability"]]
    shares = [found[name] for found in bins for name in ("confidence", "accuracy")]
    lowest = 100 * min(filter(math.isfinite, shares), default=0)  # a run that diverged has no confidence
    panels[0].set(xlim=(max(lowest - 5, -3), 103), ylim=(max(lowest - 5, -3), 103))
    figure.supxlabel("confidence: probability of the predicted label (%)", fontsize=9)
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


def wrapped(label: str) -> str:
    """A long label on several lines, so that it leaves room for the picture; $ stays a letter and starts no formula."""
    label = label.replace("$", r"\$")
    return "\n".join(line for part in label.split("\n") for line in textwrap.wrap(part, 24) or [""])


def percent(values: Iterable[float | None]) -> list[float]:
    """Shares as percent; what is missing becomes nan, which is not drawn."""
    return [math.nan if value is None else 100 * value for value in values]


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
