"""Predictions and their attention, in the terminal and as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.errors import visible
from imdbattn.io.files import write_atomically
from imdbattn.report.pages import render, terminal
from imdbattn.report.run_figures import attention_png
from imdbattn.tasks.prediction import MAX_DETAILED, Classification, Prediction, Translation

if TYPE_CHECKING:
    from rich.console import Console


def print_predictions(predictions: Sequence[Prediction], console: Console | None = None) -> None:
    """Prints predictions: words of reviews are shaded by their share, sequences are aligned."""
    from rich.text import Text

    console = console or terminal()
    for prediction in predictions:
        console.print(Text(printable(prediction.heading), style="bold"))
        if isinstance(prediction, Classification):
            line = Text()
            for piece, strength in prediction.pieces():
                line.append(printable(piece), style=shade(strength))
            console.print(line)
        for name, value in prediction.facts().items():
            console.print(f"{name}: {printable(value)}")
        if isinstance(prediction, Translation):
            for aligned in prediction.alignment():
                console.print(printable(aligned))
        console.print()


def shade(strength: float | None) -> str:
    """Returns rich's style of a word; None is text that is not a word."""
    if strength is None:
        return "dim"
    fade = round(255 * (1 - strength))
    return f"black on rgb(255,{160 + fade * 95 // 255},{fade})"


def printable(text: str) -> str:
    """Returns text without control characters and lone surrogates."""
    return visible(text.encode("utf-8", "replace").decode())


def write_attention(prediction: Prediction, folder: Path) -> None:
    """Writes attention.png, if there is attention, and attention.html."""
    if image := attention_png(prediction):
        write_atomically(folder / "attention.png", image)
    write_atomically(folder / "attention.html", page([prediction], [image]))


def page(
    predictions: Sequence[Prediction],
    images: Iterable[bytes | None] | None = None,
    is_fragment: bool = False,
) -> str:
    """Returns at least one prediction as HTML.

    Args:
        images: a PNG or None for each prediction; by default they are drawn.
        is_fragment: a part of a notebook's page instead of a page.
    """
    shown = list(zip(predictions, images or map(attention_png, predictions), strict=True))
    file = Path(__file__).with_name("prediction.html.jinja")
    return render(file, predictions=shown, detailed=MAX_DETAILED, is_fragment=is_fragment)
