"""Figures of the tests of faithfulness (the dict that summary makes)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from imdbattn.comparison.figures import (
    BLUE,
    COLORS,
    GREEN,
    GREY,
    ORANGE,
    WIDTH,
    finish,
    interval_row,
    level,
    percents,
    row_chart,
    signed,
    small_multiples,
    wrapped,
)
from imdbattn.pages import new_figure, style

SCORES = {  # name -> how it is shown, in text and in figures
    "rollout": ("attention rollout", BLUE, "o"),
    "last_layer": ("attention, last layer", COLORS[6], "s"),
    "all_layers": ("attention, all layers", COLORS[5], "^"),
    "gradient": ("gradient × input", ORANGE, "D"),
    "integrated_gradients": ("integrated gradients", COLORS[4], "v"),
    "leave_one_out": ("leave one out", GREEN, "P"),
    "random": ("random", GREY, "X"),
}
ROW_CHARTS = {  # figure -> the quantity of each score, title, label of the axis
    "comprehensiveness": ("comprehensiveness", "Comprehensiveness", "mean loss of probability; higher is better"),
    "sufficiency": ("sufficiency", "Sufficiency", "mean loss of probability; lower is better"),
    "rationales": ("auprc", "Known rationales", "average precision (AUPRC); higher is better"),
    "stability_seeds": ("seeds", "Stability between seeds", "rank correlation of word scores"),
    "stability_epochs": ("epochs", "Stability between epochs", "rank correlation of word scores"),
}
UNITS = {"removable": (BLUE, "o"), "needed": (ORANGE, "s"), "undecided": (GREY, "D"), "": ("black", "o")}


def drawings(summary: dict[str, Any]) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures with data, by name."""
    drawn: dict[str, Callable[[], Figure]] = {}
    if rungs := with_values(summary, "comprehensiveness"):
        drawn["erasure"] = partial(erasure, rungs, summary["method"]["shares"])
    for name, (quantity, title, label) in ROW_CHARTS.items():
        if rungs := with_values(summary, quantity):
            drawn[name] = partial(dots, rungs, quantity, f"{title}, with {level(summary)} intervals", label)
    if rungs := [rung for rung in summary["rungs"] if rung["permutation"]]:
        drawn["permutation"] = partial(permutation, rungs)
    if rungs := [rung for rung in summary["rungs"] if rung["ablation"]]:
        drawn["ablation"] = partial(ablation, rungs, summary)
    return drawn


def measured(rung: Mapping[str, Any], name: str, quantity: str) -> Any:
    """A quantity of a word score, such as comprehensiveness; None if it was not measured."""
    return rung["scores"].get(name, {}).get(quantity)


def with_values(summary: dict[str, Any], quantity: str) -> list[dict[str, Any]]:
    """The rungs in which any score has the quantity."""
    return [rung for rung in summary["rungs"] if any(measured(rung, name, quantity) for name in SCORES)]


def erasure(rungs: Sequence[dict[str, Any]], shares: Sequence[float]) -> Figure:
    """A panel for each rung: comprehensiveness over the share of removed words, a line for each score."""
    figure, panels = small_multiples([rung["label"] for rung in rungs])
    for axes, rung in zip(panels, rungs, strict=True):
        for name, score in rung["scores"].items():
            _, color, marker = SCORES[name]
            line = "--" if name == "random" else "-"
            values = score["comprehensiveness"]["by_share"]
            axes.plot(percents(shares), values, line, color=color, marker=marker, ms=3, lw=1.3)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(percents(shares)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axhline(0, color="black", lw=0.6)
        axes.set_xlabel("removed words (%)", fontsize=8)
    figure.supylabel("loss of probability", fontsize=9)
    figure.set_figheight(figure.get_figheight() + 0.8)  # for the legend
    names = [name for name in SCORES if any(measured(rung, name, "comprehensiveness") for rung in rungs)]
    return with_scores(figure, panels[0], names, "Erasure of the highest-scored words")


def dots(rungs: Sequence[dict[str, Any]], quantity: str, title: str, label: str) -> Figure:
    """A row for each rung, with a quantity of each score and its interval."""
    names = [name for name in SCORES if any(measured(rung, name, quantity) for rung in rungs)]
    figure, axes = row_chart([rung["label"] for rung in rungs], extra=1.5, lines=len(names) * 0.8)
    step = 0.8 / len(names)
    for row, rung in enumerate(rungs):
        for place, name in enumerate(names):
            if values := measured(rung, name, quantity):
                _, color, marker = SCORES[name]
                at = row + step * (place - (len(names) - 1) / 2)
                axes.plot(values["interval"], (at, at), color=color, lw=1.5, solid_capstyle="butt")
                axes.plot(values["mean"], at, marker, color=color, ms=4.5)
        if row:
            axes.axhline(row - 0.5, color=GREY, lw=0.5)
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color="black", lw=0.6)
    axes.set_xlabel(label, fontsize=9)
    return with_scores(figure, axes, names, title, lines=False)


def with_scores(figure: Figure, axes: Axes, names: Sequence[str], title: str, lines: bool = True) -> Figure:
    """The finished figure with a legend of these scores. lines: whether the figure has lines, not only markers."""
    for name in names:
        shown, color, marker = SCORES[name]
        line = "" if not lines else "--" if name == "random" else "-"
        axes.plot([], [], line, marker=marker, color=color, ms=4, label=shown)
    return finish(figure, title, legend=2)


def permutation(rungs: Sequence[dict[str, Any]]) -> Figure:
    """A panel for each rung: median change of the output over the largest weight, with a band between quartiles."""
    figure, panels = small_multiples([rung["label"] for rung in rungs], sharex=False)
    for axes, rung in zip(panels, rungs, strict=True):
        bins = rung["permutation"]["by_weight"]
        middle = [(one["low"] + one["high"]) / 2 for one in bins]
        low, median, high = zip(*(one["quartiles"] for one in bins), strict=True)
        axes.fill_between(middle, low, high, color=BLUE, alpha=0.25, lw=0)
        axes.plot(middle, median, color=BLUE, marker="o", ms=3, lw=1.3)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(3))
    panels[0].set_ylim(bottom=0)
    figure.supxlabel("largest attention weight of the review", fontsize=9)
    figure.supylabel("total variation distance", fontsize=9)
    return finish(figure, "Change of the output with permuted weights")


def ablation(rungs: Sequence[dict[str, Any]], summary: dict[str, Any]) -> Figure:
    """A panel for each rung, with the change of accuracy for each removed unit."""
    verdicts = {(claim["rung"], claim["unit"]): claim["verdict"] for claim in summary["claims"]}
    margin = summary["method"]["margin"]
    counts = [len(rung["ablation"]) for rung in rungs]
    figure = new_figure(WIDTH, 1.1 + 0.3 * len(rungs) + 0.22 * sum(counts))
    panels = figure.subplots(len(rungs), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
    shown = {}
    for axes, rung in zip(panels, rungs, strict=True):
        style(axes)
        axes.axvline(0, color="black", lw=0.8)
        axes.axvline(-100 * margin, color="black", lw=0.8, ls=":")
        for row, unit in enumerate(rung["ablation"]):
            verdict = verdicts.get((rung["label"], unit["unit"]), "")
            shown[verdict] = UNITS[verdict]
            interval_row(axes, row, unit["change"], unit["interval"], *UNITS[verdict], signed(unit["change"]))
        axes.set_yticks(range(len(rung["ablation"])), [wrapped(unit["unit"], 30) for unit in rung["ablation"]])
        axes.set_ylim(len(rung["ablation"]) - 0.4, -0.6)
        axes.tick_params(labelsize=8)
        axes.set_title(wrapped(rung["label"], 40), fontsize=9, loc="left")
    for verdict, (color, marker) in shown.items():
        if verdict:
            panels[0].plot([], [], f"{marker}-", color=color, lw=2, ms=6, label=verdict)
    panels[0].plot([], [], ":", color="black", lw=0.8, label=f"margin, −{100 * margin:g}")
    panels[-1].set_xlabel(f"change of accuracy (points), {level(summary)} interval", fontsize=9)
    return finish(figure, "Accuracy without a layer or head", legend=2)
