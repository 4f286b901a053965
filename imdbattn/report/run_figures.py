"""Figures of one trained model: learning curves, positions, and attention to a text.

Shape suffixes: T positions or symbols, D width, H heads, Q queries, K keys, R distances, S sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from imdbattn.folders.run import Curves, mean_curve
from imdbattn.folders.run_folder import ATTENTION_SHARE, head_name
from imdbattn.io.files import write_atomically
from imdbattn.nn.beyond.attention import RotaryAttention
from imdbattn.nn.ladder import LearnedPositions, SinusoidalPositions, sinusoids
from imdbattn.report.numbers import percents
from imdbattn.report.pages import integer_ticks, new_figure, png, style_axes
from imdbattn.tasks.prediction import AttentionWeights, Classification, Prediction, Translation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec
    from matplotlib.image import AxesImage

REACH = 20  # largest distance in a figure
MAX_WORDS = 40  # words of a review in a figure
MAX_SYMBOLS = 100  # symbols of a source, and of an output, in a figure


def learning_curves(curves: Curves, training: str, validation: str) -> Figure:
    """Draws loss and accuracy over epochs of one run, with the given labels of the lines."""
    figure = new_figure(9, 3.6)
    quantities = (("loss", "cross-entropy", 1), ("accuracy", "accuracy (%)", 100))
    for axes, (quantity, unit, factor) in zip(figure.subplots(1, 2), quantities, strict=True):
        for split, label, color in (
            ("train", training, "tab:gray"),
            ("val", validation, "tab:blue"),
        ):
            points = curves.get(f"{split}/{quantity}", {})
            values = [factor * value for value in points.values()]
            axes.plot([*points], values, "o-", ms=3.5, label=label, color=color)
        axes.set(xlabel="epoch", ylabel=unit, title=quantity)
        integer_ticks(axes)
        style_axes(axes)
    axes.legend(frameon=False)
    return figure


def attention_over_epochs(curves: Curves, query_shares: Mapping[str, np.ndarray]) -> Figure:
    """Draws the entropy of each attention over epochs: by head, for right and wrong reviews, and as
    a histogram over queries.

    Entropies are shares of the entropy of equal weights.

    Args:
        curves: the curves in metrics.csv.
        query_shares: the entropies of queries by attention, (N, H) for N queries and H heads, from
            runs.attention_over_time.measure.
    """
    figure = new_figure(9, 2.4 * len(query_shares) + 0.4)
    grid = figure.subplots(len(query_shares), 3, squeeze=False)
    bins = np.linspace(0, 100, 21).tolist()
    for (name, shares_NH), axes_3 in zip(query_shares.items(), grid, strict=True):
        by_head, by_answer, queries = axes_3
        heads = [head_name(name, number) for number in range(1, shares_NH.shape[1] + 1)]
        for head, shares_N in zip(heads, shares_NH.T, strict=True):
            points = curves.get(f"{ATTENTION_SHARE}{head}", {})
            (line,) = by_head.plot([*points], percents(points.values()), "o-", ms=3)
            color = line.get_color()
            queries.hist(100 * shares_N, bins=bins, histtype="step", color=color)
        for answer, color in (("right", "tab:blue"), ("wrong", "tab:red")):
            of_heads = [curves.get(f"attention_share_{answer}/{head}", {}) for head in heads]
            means = mean_curve(of_heads)
            values = percents(means.values())
            by_answer.plot([*means], values, "o-", ms=3, color=color, label=answer)
        title = name.replace("layer", "layer ")
        by_head.set(title=title, ylabel="entropy (% of equal weights)", xlabel="epoch")
        by_answer.set(title=f"{title}, by answer", xlabel="epoch")
        queries.set(title=f"{title}, best epoch", xlabel="entropy (%)", ylabel="queries")
        for axes in (by_head, by_answer):
            integer_ticks(axes)
        for axes in (by_head, by_answer, queries):
            style_axes(axes)
        if len(heads) > 1:
            names = [f"head {number}" for number in range(1, 1 + len(heads))]
            beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
            queries.legend(by_head.get_lines(), names, frameon=False, fontsize=8, **beside)
        by_answer.legend(frameon=False, fontsize=8)
    return figure


def write_position_figures(net: nn.Module, length: int, folder: Path) -> None:
    """Writes positions.png, distances.png, or both, for a model that has them."""
    if tables := position_tables(net, length):
        write_atomically(folder / "positions.png", png(dot_products(tables)))
    if layers := scores_by_distance(net):
        write_atomically(folder / "distances.png", png(by_distance(layers)))


def position_tables(net: Any, length: int) -> dict[str, np.ndarray]:
    """Returns the first `length` position vectors (T, D) by name, with sinusoids if learned.

    Sinusoids are shown at scale 1. For rotary positions, vectors of ones are rotated.
    """
    positions = getattr(net, "positions", None)  # a custom net may have none
    if isinstance(positions, SinusoidalPositions):
        added = "" if positions.scale == 1 else f" (the model adds {positions.scale:g} pe)"
        pe_TD = sinusoids(length, positions.pe_TD.shape[1])
        return {f"sinusoidal positions pe{added}": pe_TD.numpy()}
    layers = [*getattr(net, "layers", ())]
    rotary = getattr(layers[0], "f", None) if layers else None
    if isinstance(rotary, RotaryAttention):
        width = rotary.query.out_features // rotary.heads
        ones_11Td = rotary.frequency_M.new_ones(1, 1, length, width)
        rotated_11Td = rotary.rotate(ones_11Td, torch.arange(length, device=ones_11Td.device)[None])
        return {"a vector of ones, rotated at each position": rotated_11Td[0, 0].cpu().numpy()}
    if isinstance(positions, LearnedPositions):
        learned_TD = positions.table.weight[:length].detach().float().cpu().numpy()
        same_TD = sinusoids(*learned_TD.shape).numpy()
        return {
            "sinusoidal positions of this width": same_TD,
            "this model's learned positions": learned_TD,
        }
    return {}


@torch.no_grad()
def scores_by_distance(net: Any) -> dict[str, np.ndarray]:
    """Returns what distances up to REACH add to the scores of each head, by layer: (H, R)."""
    layers = {}
    for number, layer in enumerate(getattr(net, "layers", ()), 1):
        # A custom layer may lack these attributes.
        distances = getattr(getattr(layer, "f", None), "distances", None)
        if distances is not None:
            positions_T = torch.arange(2 * REACH + 1, device=next(distances.parameters()).device)
            query_1HTW, key_11TW = distances(positions_T[None])
            added_HR = query_1HTW[0, :, REACH] @ key_11TW[0, 0].T
            layers[f"layer {number}"] = added_HR.float().cpu().numpy()
    return layers


def dot_products(tables: Mapping[str, np.ndarray]) -> Figure:
    """Draws for each named table (T, D) a heat map of pe_i . pe_j, and its mean by distance.

    The color scale ends at the largest product of different positions, so that small products
    remain visible.
    """
    figure = new_figure(5.2 * len(tables), 7.6)
    rows = figure.subplots(2, len(tables), squeeze=False, height_ratios=[2, 1])
    for map_axes, line_axes, (name, pe_TD) in zip(*rows, tables.items(), strict=True):
        products_TT = pe_TD @ pe_TD.T
        size = len(products_TT)
        most = np.abs(products_TT[~np.eye(size, dtype=bool)]).max(initial=0) or 1
        image = map_axes.imshow(
            products_TT, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest"
        )
        figure.colorbar(image, ax=map_axes, fraction=0.046, pad=0.03, label="$pe_i \\cdot pe_j$")
        map_axes.set(title=name, xlabel="position j", ylabel="position i")
        # Up to half the length: few pairs are further apart.
        line_axes.plot([np.diagonal(products_TT, apart).mean() for apart in range(size // 2 + 1)])
        line_axes.set(xlabel="distance j − i", ylabel="mean of $pe_i \\cdot pe_j$")
        style_axes(line_axes)
    return figure


def by_distance(layers: Mapping[str, np.ndarray]) -> Figure:
    """Draws what distance adds to the scores (H, R): a panel per layer, a line per head."""
    figure = new_figure(9, 2.6 * len(layers))
    panels = figure.subplots(len(layers), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, added_HR) in zip(panels, layers.items(), strict=True):
        heads = [f"head {head + 1}" for head in range(len(added_HR))]
        axes.plot(range(-REACH, REACH + 1), added_HR.T, "o-", ms=3, lw=1.2, label=heads)
        axes.set(title=name, ylabel="added to the score")
        style_axes(axes)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_xlabel("distance j − i from query i to key j (words)")
    return figure


def attention_png(prediction: Prediction) -> bytes | None:
    """Returns the attention to a text as PNG; None for a model without attention."""
    if isinstance(prediction, Classification):
        attention = prediction.attention
        if attention is None or not attention.received():
            return None
        return png(review_attention(attention), "tight")
    if isinstance(prediction, Translation) and prediction.weights_TS is not None:
        return png(sequence_attention(prediction), "tight")  # names may be long
    return None


def review_attention(weights: AttentionWeights) -> Figure:
    """Draws the weight that each word receives in each layer, and a map for each layer and head.

    A dozen words and five heads are legible at a width of 800 pixels. A text of more than 1.1 times
    MAX_WORDS words, and its weights, are cut after MAX_WORDS.
    """
    received = weights.received()
    count = len(weights.keys) - weights.cls
    is_cut = count > 1.1 * MAX_WORDS
    size = MAX_WORDS + weights.cls if is_cut else len(weights.keys)
    names = list(map(axis_label, weights.keys[:size]))
    layers = len(weights.layers)
    heads = max(map(len, weights.layers.values()), default=1)
    # Inches; the map of a single layer is as wide as the strip of received weights.
    label_height = 0.08 * max(map(len, names), default=0)
    strip_height = 0.25 * len(received) + 0.4 + label_height
    map_side = max(0.125 * size, 1.2 if layers > 1 else 5 / heads)
    map_height = map_side + 0.5
    width = max(map_side * heads, 5) + 1.2 + label_height
    height = strip_height + map_height * layers + 0.7
    if layers:
        height += label_height
    figure = new_figure(width, height)
    height_ratios = [strip_height, *[map_height] * layers]
    grid = figure.add_gridspec(1 + layers, heads, height_ratios=height_ratios)
    axes = figure.add_subplot(grid[0, :])
    image = heat_map(axes, np.stack(list(received.values()))[:, :size], names, list(received))
    figure.colorbar(image, ax=axes, pad=0.01, format="%g %%")
    first = f"the first {MAX_WORDS} of " if is_cut else ""
    figure.suptitle(f"Attention to {first}{count} word{'s' * (count != 1)}")
    if layers:
        draw_maps(weights, figure, grid, names)
    return figure


def draw_maps(
    weights: AttentionWeights, figure: Figure, grid: GridSpec, names: Sequence[str]
) -> None:
    """Draws a map for each layer and head below the first row of the grid.

    names: the names of the first words, which the maps show.
    """
    from matplotlib.colors import PowerNorm

    entropies = weights.entropies()
    total = len(weights.keys)
    size = len(names)
    layers = len(weights.layers)
    images: list[AxesImage] = []
    for row, (layer, weights_HQK) in enumerate(weights.layers.items(), 1):
        for head, weights_QK in enumerate(weights_HQK, 1):
            axes = figure.add_subplot(grid[row, head - 1])
            image = heat_map(axes, weights_QK[:size, :size], names, names, "equal")
            image.set_norm(PowerNorm(0.5, 0, 100))  # small weights stay visible
            axes.tick_params(labelbottom=row == layers, labelleft=head == 1)
            axes.set_ylabel("query" if head == 1 else "")
            keys = math.exp(entropies[f"layer {layer}, head {head}"])
            axes.set_title(f"layer {layer}, head {head}\n{keys:.1f} of {total} keys", fontsize=9)
            images.append(image)
    maps = [image.axes for image in images]
    shrink = 1 if layers == 1 else 0.5
    # All maps have the same colors.
    bar = figure.colorbar(
        images[0], ax=maps, pad=0.01, shrink=shrink, format="%g %%", panchor=False
    )
    bar.set_label("weight (square-root scale)", fontsize=9)
    note = "key; above each map: effective number of keys,\nfrom the mean entropy of the queries"
    figure.supxlabel(note, fontsize=10)


def sequence_attention(sequence: Translation) -> Figure:
    """Draws a heat map of the weights: source symbols from left to right, output symbols downwards.

    Only the first MAX_SYMBOLS symbols are drawn.
    """
    assert sequence.weights_TS is not None
    longest = max(len(sequence.row_names), len(sequence.source))
    rows = [axis_label(name) for name in sequence.row_names[:MAX_SYMBOLS]]
    keys = [axis_label(name) for name in sequence.source[:MAX_SYMBOLS]]
    # letters of the longest names
    wide = max(map(len, rows), default=1)
    high = max(map(len, keys), default=1)
    cell = 0.32 if longest <= 12 else 0.2  # inches
    width = max(cell * len(keys) + 0.1 * wide + 1.6, 3.2)
    figure = new_figure(width, cell * len(rows) + 0.1 * high + 1)
    axes = figure.subplots()
    image = heat_map(axes, sequence.weights_TS[:MAX_SYMBOLS, :MAX_SYMBOLS], keys, rows, "equal")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params("x", rotation=0 if high == 1 else 90)
    axes.set(xlabel="source", ylabel="output")
    figure.colorbar(image, ax=axes, format="%g %%", label="weight")
    cut = f": the first {MAX_SYMBOLS} symbols of {longest}" if longest > MAX_SYMBOLS else ""
    figure.suptitle(f"{sequence.model}{cut}", fontsize=10, parse_math=False)
    return figure


def heat_map(
    axes: Axes,
    weights: np.ndarray,
    keys: Sequence[str],
    rows: Sequence[str],
    aspect: Literal["auto", "equal"] = "auto",
) -> AxesImage:
    """Draws weights in percent, with names of keys (columns) and of rows. Returns the image."""
    image = axes.imshow(
        100 * weights, cmap="Oranges", vmin=0, aspect=aspect, interpolation="nearest"
    )
    # Without parse_math=False, matplotlib would render words between dollar signs as formulas.
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=8, parse_math=False)
    axes.tick_params(length=0)
    return image


def axis_label(word: str) -> str:
    """Returns the word, shortened, without lone surrogates."""
    word = word if len(word) <= 20 else word[:19] + "…"
    return word.encode("utf-8", "replace").decode()
