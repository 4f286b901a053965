"""Figures from finished run folders. Each function returns a matplotlib figure; `save` writes it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.data.cache import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Writes the figure as PNG, whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomically(path, buffer.getvalue())


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
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
