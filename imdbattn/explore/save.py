"""The page as one offline HTML file without scripts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imdbattn.explain.figures import attention_png
from imdbattn.explain.reading import Reading
from imdbattn.explain.show import encoded_images, explained_values
from imdbattn.pages import render

WORDS = 40  # of the maps, which are images


def saved_page(readings: Sequence[tuple[str, Sequence[str], Reading]]) -> str:
    """Name of the run, changes in words, and result of each. At least one."""
    only = [reading for *_, reading in readings]
    images = encoded_images(attention_png(reading, WORDS) for reading in only)
    sections = [
        (name, changes, reading, image) for (name, changes, reading), image in zip(readings, images, strict=True)
    ]
    values: dict[str, Any] = explained_values()
    return render(Path(__file__).with_name("saved.html.jinja"), sections=sections, words=WORDS, **values)
