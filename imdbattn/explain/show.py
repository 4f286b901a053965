"""Results of a trained model and its attention, in the terminal and as one self-contained HTML page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.explain.figures import attention_png
from imdbattn.explain.reading import LabelledReview, Reading, WrittenSequence
from imdbattn.files import write_atomically
from imdbattn.pages import render, terminal
from imdbattn.settings.safety import visible

if TYPE_CHECKING:
    from rich.console import Console

DETAILED = 5  # number of reviews on a page with layers and a figure, which take up to a second and 1 MB each


def print_readings(readings: Sequence[Reading], console: Console | None = None) -> None:
    """Results with their facts; the words of reviews are shaded by their share, sequences have their alignment."""
    from rich.text import Text

    console = console or terminal()
    for reading in readings:
        console.print(Text(printable(reading.heading), style="bold"))
        if isinstance(reading, LabelledReview):
            line = Text()
            for piece, strength in reading.pieces():
                fade = round(255 * (1 - (strength or 0)))
                shade = "dim" if strength is None else f"black on rgb(255,{160 + fade * 95 // 255},{fade})"
                line.append(printable(piece), style=shade)
            console.print(line)
        for name, value in reading.facts().items():
            console.print(f"{name}: {printable(value)}")
        if isinstance(reading, WrittenSequence):
            for aligned in reading.alignment():
                console.print(printable(aligned))
        console.print()


def printable(text: str) -> str:
    """Text without control characters and lone surrogates."""
    return visible(text.encode("utf-8", "replace").decode())


def write_attention(reading: Reading, folder: Path) -> None:
    """Writes attention.png, if there is attention, and attention.html."""
    image = attention_png(reading)
    if image is not None:
        write_atomically(folder / "attention.png", image)
    write_page([reading], folder / "attention.html", [image])


def write_page(readings: Sequence[Reading], path: Path, images: Iterable[bytes | None] | None = None) -> Path:
    """Writes `page` and returns its path. images: drawn if None."""
    images = map(attention_png, readings) if images is None else images
    write_atomically(path, page(readings, images))
    return path


def page(readings: Sequence[Reading], images: Iterable[bytes | None], template: str = "page") -> str:
    """One HTML page of at least one reading. images: PNG of each, or None. template: or "fragment", of a page."""
    shown = list(zip(readings, images, strict=True))
    return render(Path(__file__).with_name(f"{template}.html.jinja"), readings=shown, detailed=DETAILED)


def digest(readings: Sequence[Reading]) -> str:
    """Twelve hex digits that identify the texts."""
    texts = "\0".join(reading.text for reading in readings)
    return hashlib.sha256(texts.encode("utf-8", "replace")).hexdigest()[:12]
