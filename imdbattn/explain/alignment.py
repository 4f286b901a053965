"""What an encoder-decoder wrote and where it looked: in the terminal, as a figure, and as one HTML page.

Shape suffixes: T output symbols, S source symbols.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imdbattn.explain.figures import label, matrix, png
from imdbattn.explain.show import digest_of, embedded, framed
from imdbattn.files import write_atomically
from imdbattn.settings.safety import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EOS = "<eos>"
SHADES = " ░▒▓█"
METHOD = (
    "Each row of a map is a symbol that was written, each column a symbol of the source: the fuller a cell's shade, "
    "the more the model looked there when it wrote that symbol. A row sums to 100 %."
)
WITHOUT = "This model has no attention: it wrote from one vector of the whole source, so there is no map."


@dataclass(frozen=True)
class Decoded:
    """One source, and what a model wrote for it.

    probability: of the whole output, by the model. weights_TS: each row sums to 1 over the source symbols; a row for
    each output symbol, and one for <eos> where it was produced; None for a model without attention. unknown: symbols
    of the source as typed that the vocabulary lacks. reference: as text, symbols joined by spaces. joiner: what stands
    between two symbols where they are shown.
    """

    source: list[str]
    output: list[str]
    probability: float
    weights_TS: np.ndarray | None
    model: str
    unknown: list[str]
    reference: str | None = None
    joiner: str = " "

    @property
    def written(self) -> list[str]:
        """What each row of the weights stands for."""
        return [*self.output, EOS][: 0 if self.weights_TS is None else len(self.weights_TS)]

    def told(self) -> dict[str, str]:
        """What a person reads of it, by name; nothing that does not apply."""
        rows = {
            "source": self.joiner.join(self.source),
            "output": self.joiner.join(self.output) or "(nothing)",
            "probability": in_percent(self.probability),
        }
        if self.reference is not None:
            rows["reference"] = self.joiner.join(self.reference.split(" "))
        if self.unknown:
            rows["unknown"] = f"{', '.join(self.unknown)} (not in the vocabulary: read as <unk>)"
        return rows


def in_percent(probability: float) -> str:
    return "under 0.1 %" if 0 <= probability < 0.0005 else f"{100 * probability:.1f} %"


def alignment(found: Decoded, most: int = 100) -> Figure:
    """Heat map of the weights: source symbols along the top, output symbols downwards, in square cells.

    most: of longer sources and outputs so many of the first symbols are drawn, which the title says. Raises ValueError
    without weights.
    """
    from matplotlib.figure import Figure

    if found.weights_TS is None:
        raise ValueError("the model has no attention")
    weights_TS = found.weights_TS[:most, :most]
    rows, keys = ([label(symbol) for symbol in symbols[:most]] for symbols in (found.written, found.source))
    cell, points = (0.32, 9) if max(len(rows), len(keys)) <= 12 else (0.2, 7)  # a cell in inches, its letters' size
    margins = [0.011 * points * max(map(len, names), default=1) for names in (rows, keys)]  # inches for the names
    size = max(cell * len(keys) + margins[0] + 1.4, 3.2), max(cell * len(rows) + margins[1] + 1.0, 2.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    matrix(figure, axes, weights_TS, keys, rows)
    axes.set_aspect("equal")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(labelsize=points)
    axes.tick_params("x", rotation=0 if max(map(len, keys), default=1) == 1 else 90)
    axes.set_xlabel("source", fontsize=8)
    axes.set_ylabel("output", fontsize=8)
    whole = len(found.written), len(found.source)
    cut = f": the first {most} symbols of {max(whole)}" if max(whole) > most else ""
    figure.suptitle(f"{found.model}{cut}", fontsize=9, parse_math=False)
    return figure


def drawn(found: Decoded) -> bytes | None:
    """The `alignment` as PNG; None for a model without attention."""
    return None if found.weights_TS is None else png(alignment(found), "tight")  # names may be long


def print_decoded(found: Sequence[Decoded]) -> None:
    """Source and output in the terminal, and where there are weights a map of them, a row per output symbol.

    A map that is wider than the terminal becomes a line per output symbol that names the strongest sources.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for one in found:
        for name, text in one.told().items():
            console.print(Text(f"{name:12}", style="dim").append(readable(text), "bold" if name == "output" else ""))
        if one.weights_TS is None:
            console.print(WITHOUT, style="dim")
        else:
            console.print()
            for line in map_lines(one, console.width):
                console.print(line, no_wrap=True, overflow="ellipsis")
        console.print()
    if any(one.weights_TS is not None for one in found):
        console.print(METHOD, style="dim")


def map_lines(found: Decoded, width: int) -> Iterator[str]:
    """The weights as lines of at most `width` columns where names let them: a shaded map, or the strongest sources."""
    from rich.cells import cell_len, set_cell_size

    assert found.weights_TS is not None
    weights_TS = np.nan_to_num(found.weights_TS)
    rows, keys = ([shown(symbol) for symbol in symbols] for symbols in (found.written, found.source))
    margin = max(map(cell_len, rows), default=0) + 1
    names = [" " * (margin - 1 - cell_len(row)) + row + " " for row in rows]  # on the right, next to the map
    for gap in (1, 0) if all(cell_len(key) == 1 for key in keys) else (1,):
        widths = [cell_len(key) + gap for key in keys]
        if margin + sum(widths) <= width:
            break
    else:
        for row, weights_S in zip(rows, weights_TS, strict=True):
            yield f"{row} <- {', '.join(strongest(keys, weights_S))}"
        return
    most = weights_TS.max(initial=0) or 1
    yield " " * margin + "".join(set_cell_size(key, size) for key, size in zip(keys, widths, strict=True))
    for name, weights_S in zip(names, weights_TS, strict=True):
        shades = (SHADES[round(4 * weight / most)] for weight in weights_S)
        yield name + "".join(shade * size for shade, size in zip(shades, widths, strict=True))
    yield f"{' ' * margin}█ is {100 * most:.0f} %"


def strongest(keys: Sequence[str], weights_S: np.ndarray, count: int = 3) -> list[str]:
    """The sources with the largest weights, in percent; at most `count`, and after the first only from 5 % on."""
    order = np.argsort(-weights_S, kind="stable")[:count]
    return [
        f"{keys[s]} {100 * weights_S[s]:.0f} %" for place, s in enumerate(order) if not place or weights_S[s] > 0.05
    ]


def shown(symbol: str) -> str:
    """A symbol on one line of a terminal, never empty."""
    return "".join(readable(symbol).split()) or "␣"


def readable(text: str) -> str:
    """Text that a terminal shows and does not obey, and that can be printed: half characters become question marks."""
    return visible(text.encode("utf-8", "replace").decode())


def page(found: Sequence[Decoded], images: Sequence[bytes | None] = ()) -> str:
    """One self-contained HTML page; sources and outputs are escaped. images: for each its figure as PNG, or None."""
    model = found[0].model if found else ""
    parts = [section(one, image) for one, image in zip_longest(found, images)]
    said = METHOD if any(one.weights_TS is not None for one in found) else WITHOUT
    return framed(f"What {model} wrote, and where it looked", said, parts)


def section(found: Decoded, image: bytes | None) -> str:
    """One source of the page."""
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td class="text">{html.escape(text)}</td></tr>'
        for name, text in found.told().items()
    )
    said = f'<div class="note">{WITHOUT}</div>' if found.weights_TS is None else ""
    picture = embedded(image, "weights: a row for each output symbol, a column for each source symbol")
    heading = html.escape(found.told()["output"])
    return f"<h2>{heading}</h2>\n<table>{rows}</table>\n{said}{picture}"


def digest(found: Sequence[Decoded]) -> str:
    """Twelve hex digits that name the sources."""
    return digest_of(" ".join(one.source) for one in found)


def write_page(found: Sequence[Decoded], images: Sequence[bytes | None], path: Path) -> Path:
    """Writes the page and returns its path."""
    write_atomically(path, page(found, images).encode("utf-8", "replace"))  # a text may hold half characters
    return path
