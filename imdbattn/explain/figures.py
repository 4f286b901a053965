"""Figures of one trained model, made without pyplot: learning curves, positions, and attention to a text.

Shape suffixes: T positions or output symbols, D width, H heads, Q queries, K keys, R distances, S source symbols.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from imdbattn.explain.reading import AttentionWeights, LabelledReview, Reading, WrittenSequence
from imdbattn.files import write_atomically
from imdbattn.nn.ladder import Learned, Sinusoidal, sinusoids

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def png(figure: Figure, bbox_inches: str | None = None) -> bytes:
    """The figure as PNG. bbox_inches: "tight" fits the size to what is drawn."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # characters of reviews that the font lacks
        figure.savefig(buffer, format="png", dpi=150, bbox_inches=bbox_inches)
    return buffer.getvalue()


def write_png(figure: Figure, path: Path) -> Path:
    write_atomically(path, png(figure))
    return path


def style(axes: Axes) -> None:
    """A faint grid, and no frame at the top and on the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def learning_curves(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], training: str, validation: str
) -> Figure:
    """Loss and accuracy over epochs of one run.

    curves: (epochs, values) by name, such as "train/loss" and "val/accuracy". training, validation: names of the lines.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, quantity, factor in zip(figure.subplots(1, 2), ("loss", "accuracy"), (1, 100), strict=True):
        for split, label, color in (("train", training, "tab:gray"), ("val", validation, "tab:blue")):
            epochs, values = curves.get(f"{split}/{quantity}", ([], []))
            axes.plot(epochs, [factor * value for value in values], "o-", ms=3.5, label=label, color=color)
        axes.set(xlabel="epoch", ylabel="cross-entropy" if quantity == "loss" else "accuracy (%)", title=quantity)
        axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, min_n_ticks=1))
        style(axes)
    axes.legend(frameon=False)
    return figure


def draw_positions(net: Any, length: int, folder: Path) -> list[Path]:
    """Writes positions.png, distances.png, or both, for a model that has them; returns their paths."""
    tables, layers = position_tables(net, length), scores_by_distance(net)
    figures = {"positions": tables and dot_products(tables), "distances": layers and by_distance(layers)}
    return [write_png(figure, folder / f"{name}.png") for name, figure in figures.items() if figure]


def position_tables(net: Any, length: int) -> dict[str, np.ndarray]:
    """The first `length` position vectors (T, D) by name; for a learned table also sinusoids of the same width."""
    positions = net.positions
    if isinstance(positions, Sinusoidal):
        return {"this model's sinusoidal positions": positions.pe_TD[:length].cpu().numpy()}
    if isinstance(positions, Learned):
        learned_TD = positions.table.weight[:length].detach().float().cpu().numpy()
        same_TD = sinusoids(*learned_TD.shape).numpy()
        return {"sinusoidal positions of this width": same_TD, "this model's learned positions": learned_TD}
    return {}


@torch.no_grad()
def scores_by_distance(net: Any, reach: int = 20) -> dict[str, np.ndarray]:
    """By layer, what distances from -reach to reach add to the scores of each head: (H, R), R = 2 reach + 1."""
    layers = {}
    for number, layer in enumerate(net.layers, 1):
        # A user's own layer may have neither attribute.
        if (distances := getattr(getattr(layer, "f", None), "distances", None)) is not None:
            query_1HTW, key_11TW = distances(torch.arange(2 * reach + 1, device=distances.cos_HM.device)[None])
            layers[f"layer {number}"] = (query_1HTW[0, :, reach] @ key_11TW[0, 0].T).float().cpu().numpy()
    return layers


def dot_products(tables: Mapping[str, np.ndarray]) -> Figure:
    """For each named table (T, D), a heat map of pe_i . pe_j, and below it the mean by distance.

    The colour range is the largest product of two different positions, so that small products stay visible.
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
        # Up to half the length: few pairs are further apart.
        line_axes.plot([np.diagonal(products_TT, apart).mean() for apart in range(size // 2 + 1)], color="tab:blue")
        line_axes.set(xlabel="distance j − i", ylabel="mean of $pe_i \\cdot pe_j$")
        style(line_axes)
    return figure


def by_distance(layers: Mapping[str, np.ndarray]) -> Figure:
    """What the distance from query to key adds to the scores (H, R): a panel per named layer, a line per head."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6 * len(layers)), layout="constrained")
    panels = figure.subplots(len(layers), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, added_HR) in zip(panels, layers.items(), strict=True):
        reach = added_HR.shape[1] // 2
        for head, added_R in enumerate(added_HR, 1):
            axes.plot(range(-reach, reach + 1), added_R, "o-", ms=3, lw=1.2, label=f"head {head}")
        axes.set(title=name, ylabel="added to the score")
        style(axes)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    panels[-1].set(xlabel="distance j − i from the query, words")
    return figure


def attention_png(reading: Reading, words: int = 40) -> bytes | None:
    """The attention to a text as PNG; None for a model without attention, or if the weights were not recorded."""
    if isinstance(reading, LabelledReview) and reading.attention and reading.attention.received():
        return png(review_attention(reading.attention, words))
    if isinstance(reading, WrittenSequence) and reading.weights_TS is not None:
        return png(sequence_attention(reading), "tight")  # names may be long
    return None


def review_attention(weights: AttentionWeights, words: int = 40) -> Figure:
    """What each word received, one row per layer, and below it the weights of each layer and head, query by key.

    words: a longer review is cut to its first words, which the title says; rows then omit the rest.
    """
    from matplotlib.figure import Figure

    received, entropies = weights.received(), weights.entropies()
    size = min(len(weights.keys), words + weights.cls)
    names = [axis_label(key) for key in weights.keys[:size]]
    heads = len(weights.layers[0]) if weights.layers else 1
    side, strip = max(0.17 * size, 2.5) + 1.6, 0.3 * len(received) + 1.4  # inches
    height = strip + side * len(weights.layers)
    figure = Figure(figsize=(max(side, 6) * heads + 0.8, height + 0.5), layout="constrained")
    grid = figure.add_gridspec(1 + len(weights.layers), heads, height_ratios=[strip, *([side] * len(weights.layers))])
    axes = figure.add_subplot(grid[0, :])
    heat_map(figure, axes, np.stack(list(received.values()))[:, :size], names, list(received))
    total = len(weights.keys) - weights.cls
    cut = f"the first {words} of {total} words" if size < len(weights.keys) else f"{total} words"
    figure.suptitle(f"Attention to {cut}")
    for row, weights_HQK in enumerate(weights.layers, 1):
        for head, weights_QK in enumerate(weights_HQK, 1):
            axes = figure.add_subplot(grid[row, head - 1])
            heat_map(figure, axes, weights_QK[:size, :size], names, names)
            nats, keys = entropies[f"layer {row}, head {head}"], len(weights.keys)
            axes.set(
                title=f"layer {row}, head {head}: entropy {nats:.2f} of at most {math.log(keys):.2f} nats,\n"
                f"mean over queries: {math.exp(nats):.1f} of {keys} keys effectively attended to",
                xlabel="key",
                ylabel="query",
            )
    return figure


def sequence_attention(sequence: WrittenSequence, most: int = 100) -> Figure:
    """Heat map of the weights in square cells: source symbols along the top, output symbols downwards.

    most: a longer source or output is cut to its first symbols, which the title says.
    """
    from matplotlib.figure import Figure

    assert sequence.weights_TS is not None
    rows, keys = ([axis_label(name) for name in names[:most]] for names in (sequence.row_names, sequence.source))
    cell, points = (0.32, 9) if max(len(rows), len(keys)) <= 12 else (0.2, 7)  # inches of a cell, font size
    margins = [0.011 * points * max(map(len, names), default=1) for names in (rows, keys)]  # inches
    size = max(cell * len(keys) + margins[0] + 1.4, 3.2), max(cell * len(rows) + margins[1] + 1.0, 2.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    heat_map(figure, axes, sequence.weights_TS[:most, :most], keys, rows)
    axes.set_aspect("equal")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(labelsize=points)
    axes.tick_params("x", rotation=0 if max(map(len, keys), default=1) == 1 else 90)
    axes.set_xlabel("source", fontsize=8)
    axes.set_ylabel("output", fontsize=8)
    longest = max(len(sequence.row_names), len(sequence.source))
    cut = f": the first {most} symbols of {longest}" if longest > most else ""
    figure.suptitle(f"{sequence.model}{cut}", fontsize=9, parse_math=False)
    return figure


def axis_label(word: str) -> str:
    """The word, shortened, without lone surrogates."""
    word = word if len(word) <= 16 else word[:15] + "…"
    return word.encode("utf-8", "replace").decode()


def heat_map(figure: Figure, axes: Axes, weights: np.ndarray, keys: list[str], rows: list[str]) -> None:
    image = axes.imshow(
        100 * weights, cmap="Oranges", vmin=0, aspect="equal" if rows == keys else "auto", interpolation="nearest"
    )
    # Words with dollar signs are not formulas.
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=7, parse_math=False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, format="{x:g} %", label="weight")
