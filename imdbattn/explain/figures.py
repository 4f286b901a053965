"""Figures of one trained model: its positions, its attention, and why scores are divided by sqrt(d). Arrays in.

Shape suffixes: T positions, D width, H heads, Q queries, K keys, R distances, W widths that were measured.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from imdbattn.comparison import figures
from imdbattn.explain.show import Attended, Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def png(figure: Figure, bbox_inches: str | None = None) -> bytes:
    """The figure as PNG; characters of reviews that the font lacks become boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        return figures.png(figure, bbox_inches)


def dot_products(tables: Mapping[str, np.ndarray]) -> Figure:
    """Heat maps of pe_i . pe_j for all i, j, one for each named table (T, D), and below their means by distance.

    Colours reach to the largest product of two different positions, so that learned tables show more than |pe_i|^2.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(tables), 7.6), layout="constrained")
    rows = figure.subplots(2, len(tables), squeeze=False, height_ratios=[2, 1])
    for map_axes, line_axes, (name, pe_TD) in zip(*rows, tables.items(), strict=True):
        products_TT = pe_TD @ pe_TD.T
        size = len(products_TT)
        most = np.abs(products_TT[~np.eye(size, dtype=bool)]).max(initial=0) or 1
        image = map_axes.imshow(products_TT, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
        figure.colorbar(image, ax=map_axes, fraction=0.046, pad=0.03, label="$pe_i \\cdot pe_j$")
        map_axes.set(title=name, xlabel="position j", ylabel="position i")
        # Up to half the length, behind which few pairs are so far apart.
        line_axes.plot([np.diagonal(products_TT, apart).mean() for apart in range(size // 2 + 1)], color="tab:blue")
        line_axes.set(xlabel="distance j − i", ylabel="mean of $pe_i \\cdot pe_j$")
        figures.style(line_axes)
    return figure


def by_distance(layers: Mapping[str, np.ndarray]) -> Figure:
    """What the distance from query to key adds to the scores: for each named layer a panel, for each head a line.

    layers: (H, 2 R + 1) each, of the distances -R to R.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6 * len(layers)), layout="constrained")
    panels = figure.subplots(len(layers), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, added_HR) in zip(panels, layers.items(), strict=True):
        reach = added_HR.shape[1] // 2
        for head, added_R in enumerate(added_HR, 1):
            axes.plot(range(-reach, reach + 1), added_R, "o-", ms=3, lw=1.2, label=f"head {head}")
        axes.set(title=name, ylabel="added to the score")
        figures.style(axes)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    panels[-1].set(xlabel="distance j − i from the query, words")
    return figure


def drawn(found: Explanation, words: int = 40) -> bytes | None:
    """`attention` to a review as PNG; None where nothing attends, or the weights were not kept."""
    return png(attention(found.attended, words)) if found.attended and found.attended.received() else None


def attention(attended: Attended, words: int = 40) -> Figure:
    """What each word received, a row for each layer, and under it every layer's and head's weights, query by key.

    words: a longer review is cut to so many of its first words, which the title says; rows then miss what is cut.
    Raises ValueError where nothing attends.
    """
    from matplotlib.figure import Figure

    received = attended.received()
    if not received:
        raise ValueError("the model has no attention")
    size = min(len(attended.keys), words + attended.cls)
    names = [label(key) for key in attended.keys[:size]]
    heads = len(attended.layers[0]) if attended.layers else 1
    side, strip = max(0.17 * size, 2.5) + 1.6, 0.3 * len(received) + 1.4  # inches
    height = strip + side * len(attended.layers)
    figure = Figure(figsize=(max(side, 6) * heads + 0.8, height + 0.5), layout="constrained")
    grid = figure.add_gridspec(1 + len(attended.layers), heads, height_ratios=[strip, *([side] * len(attended.layers))])
    axes = figure.add_subplot(grid[0, :])
    matrix(figure, axes, np.stack(list(received.values()))[:, :size], names, list(received))
    left_out = len(attended.keys) - size
    cut = f"the first {words} of {words + left_out} words" if left_out else f"{len(attended.keys) - attended.cls} words"
    figure.suptitle(f"Attention to {cut}")
    entropies = attended.entropies()
    for row, weights_HQK in enumerate(attended.layers, 1):
        for head, weights_QK in enumerate(weights_HQK, 1):
            axes = figure.add_subplot(grid[row, head - 1])
            matrix(figure, axes, weights_QK[:size, :size], names, names)
            nats, keys = entropies[f"layer {row}, head {head}"], len(attended.keys)
            axes.set(
                title=f"layer {row}, head {head}: entropy {nats:.2f} of at most {math.log(keys):.2f} nats,\n"
                f"mean over queries: as if {math.exp(nats):.1f} of {keys} keys were attended to",
                xlabel="key",
                ylabel="query",
            )
    return figure


def label(word: str) -> str:
    """A word as it may stand on an axis."""
    word = word if len(word) <= 16 else word[:15] + "…"
    return word.encode("utf-8", "replace").decode()


def matrix(figure: Figure, axes: Axes, weights: np.ndarray, keys: list[str], rows: list[str]) -> None:
    """One heat map of weights, with names on both axes."""
    image = axes.imshow(
        100 * weights, cmap="Oranges", vmin=0, aspect="equal" if rows == keys else "auto", interpolation="nearest"
    )
    # Words are no formulas, whatever dollar signs they hold.
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=7, parse_math=False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, format="{x:g} %", label="weight")


@dataclass(frozen=True)
class Scaling:
    """What scores of random q, k ~ N(0, 1) do to a softmax over K keys, by the width d of q and k.

    widths_W. For each kind of score: variance_W of the scores; entropy_3W of the weights p in nats and gradient_3W, the
    Frobenius norm of dp/ds = diag(p) - p p^T, s being the scores: quartiles and median of all queries.
    """

    keys: int
    widths_W: np.ndarray
    variance_W: dict[str, np.ndarray]
    entropy_3W: dict[str, np.ndarray]
    gradient_3W: dict[str, np.ndarray]


DERIVATION = (
    "$q\\cdot k=\\sum_{h=1}^{d}q_hk_h$ adds $d$ independent terms of mean 0 and variance "
    "$E[q_h^2]\\,E[k_h^2]=1$, so $\\mathrm{Var}(q\\cdot k)=d$.\n"
    "$\\mathrm{Var}(q\\cdot k/\\sqrt{d})=d/d=1$ at any width. Unscaled, $p$ tends to one-hot, "
    "$\\partial p/\\partial s=\\mathrm{diag}(p)-pp^\\top$ to 0, and queries and keys stop learning.\n"
    "Measured with $q,k\\sim N(0,1)$; beside the variance, lines are medians over queries, bands their middle half."
)


def scaling(measured: Scaling) -> Figure:
    """Variance, entropy and gradient against the width, scaled and unscaled, over the derivation in two lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.6), layout="constrained")
    variance, spread, gradient = figure.subplots(1, 3)
    for (kind, values_W), color, marker in zip(
        measured.variance_W.items(), ("tab:blue", "tab:orange"), "os", strict=True
    ):
        variance.plot(measured.widths_W, values_W, marker=marker, color=color, label=kind)
        for axes, low_median_high in ((spread, measured.entropy_3W[kind]), (gradient, measured.gradient_3W[kind])):
            low_W, median_W, high_W = low_median_high
            axes.plot(measured.widths_W, median_W, marker=marker, color=color)
            axes.fill_between(measured.widths_W, low_W, high_W, color=color, alpha=0.2, lw=0)
    variance.set(yscale="log", ylabel="variance", title="variance of the scores $s$")
    spread.axhline(math.log(measured.keys), color="gray", ls=":", label=f"log {measured.keys}, all keys alike")
    spread.set(ylabel="entropy (nats)", title=f"entropy of $p$ = softmax($s$), {measured.keys} keys")
    gradient.set(yscale="log", ylabel="Frobenius norm", title="gradient $\\partial p/\\partial s$")
    for axes in (variance, spread, gradient):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("width d of query and key")
        figures.style(axes)
    variance.legend(frameon=False)
    spread.legend(frameon=False)
    figure.supxlabel(DERIVATION, fontsize=10)
    return figure
