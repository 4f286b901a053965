"""Results of a trained model and its attention, in the terminal and as one self-contained HTML
page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.io.files import write_atomically
from imdbattn.report.pages import render, terminal
from imdbattn.settings.safety import visible
from imdbattn.tasks.prediction import DETAILED, Classification, Prediction, Translation
from imdbattn.tools.explain.figures import attention_png

if TYPE_CHECKING:
    from rich.console import Console


def print_predictions(predictions: Sequence[Prediction], console: Console | None = None) -> None:
    """Results with their facts; the words of reviews are shaded by their share, sequences have
    their alignment.
    """
    from rich.text import Text

    console = console or terminal()
    for prediction in predictions:
        console.print(Text(printable(prediction.heading), style="bold"))
        if isinstance(prediction, Classification):
            line = Text()
            for piece, strength in prediction.pieces():
                fade = round(255 * (1 - (strength or 0)))
                shade = (
                    "dim"
                    if strength is None
                    else f"black on rgb(255,{160 + fade * 95 // 255},{fade})"
                )
                line.append(printable(piece), style=shade)
            console.print(line)
        for name, value in prediction.facts().items():
            console.print(f"{name}: {printable(value)}")
        if isinstance(prediction, Translation):
            for aligned in prediction.alignment():
                console.print(printable(aligned))
        console.print()


def printable(text: str) -> str:
    """Text without control characters and lone surrogates."""
    return visible(text.encode("utf-8", "replace").decode())


def write_attention(prediction: Prediction, folder: Path) -> None:
    """Writes attention.png, if there is attention, and attention.html."""
    if image := attention_png(prediction):
        write_atomically(folder / "attention.png", image)
    write_atomically(folder / "attention.html", page([prediction], [image]))


def write_page(predictions: Sequence[Prediction], path: Path) -> Path:
    """Writes `page` and returns its path."""
    write_atomically(path, page(predictions))
    return path


def page(
    predictions: Sequence[Prediction],
    images: Iterable[bytes | None] | None = None,
    template: str = "page",
) -> str:
    """One HTML page of at least one prediction. images: PNG of each, or None. template: or
    "fragment", of a page.
    """
    shown = list(zip(predictions, images or map(attention_png, predictions), strict=True))
    return render(
        Path(__file__).with_name(f"{template}.html.jinja"), predictions=shown, detailed=DETAILED
    )


def digest(predictions: Sequence[Prediction]) -> str:
    """Twelve hex digits that identify the texts."""
    texts = "\0".join(prediction.text for prediction in predictions)
    return hashlib.sha256(texts.encode("utf-8", "replace")).hexdigest()[:12]
