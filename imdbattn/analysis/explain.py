"""What a model attended to in a review: shaded in the terminal, and as one HTML page that needs no network."""

import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imdbattn.data.cache import write_atomically


@dataclass(frozen=True)
class Explanation:
    """One labelled review. `words` are (start, end, share): places in `text`, and shares of the pooled vector.

    The shares sum to 1, or to less where <cls> keeps a part of itself; there are none unless they were asked for.
    """

    text: str
    label: str
    probability: float
    words: list[tuple[int, int, float]]
    model: str = ""

    def pieces(self) -> list[tuple[str, float | None]]:
        """The whole text in order as (piece, strength 0 to 1); None for what lies between words or was not read."""
        strongest = max((share for *_, share in self.words), default=0) or 1
        pieces: list[tuple[str, float | None]] = []
        at = 0
        for start, end, share in self.words:
            if start > at:
                pieces.append((self.text[at:start], None))
            if end > at:
                pieces.append((self.text[max(start, at) : end], share / strongest))
            at = max(at, end)
        return [*pieces, (self.text[at:], None)]

    def top(self, count: int = 8) -> list[tuple[str, float]]:
        """The words with the largest shares."""
        strongest = sorted(self.words, key=lambda word: -word[2])[:count]
        return [(self.text[start:end], share) for start, end, share in strongest]


METHOD = "Shade: share of each word in the pooled vector, by attention rollout; the darkest word of a review is full."


def print_explanations(explanations: Sequence[Explanation]) -> None:
    """The reviews in the terminal, words shaded by their share."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for found in explanations:
        console.print(Text(f"{found.label}  {100 * found.probability:.1f} %", style="bold"))
        line = Text()
        for piece, strength in found.pieces():
            if strength is None:
                line.append(piece, style="dim")
            else:
                fade = round(255 * (1 - strength))
                line.append(piece, style=f"black on rgb(255,{160 + fade * 95 // 255},{fade})")
        console.print(line)
        console.print("most: " + ", ".join(f"{word} {100 * share:.1f} %" for word, share in found.top()), markup=False)
        console.print()
    console.print(METHOD, style="dim")


STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fdfcfa; --quiet: #6b6b73; --shade: 255 150 0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e3; --paper: #17171a; --quiet: #9a9aa3; --shade: 230 130 0 } }
body { font: 17px/1.7 Georgia, serif; color: var(--ink); background: var(--paper); max-width: 46rem;
       margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word }
h1, h2, table, .note { font-family: system-ui, sans-serif }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem }
.note { color: var(--quiet); font-size: .85rem } p { white-space: pre-wrap }
mark { color: inherit; border-radius: 3px; background: rgb(var(--shade) / var(--s)) } .out { color: var(--quiet) }
td { padding: 0 1rem 0 0; font-size: .85rem } td + td { text-align: right; font-variant-numeric: tabular-nums }
@media print { body { margin: 0 } mark { print-color-adjust: exact } }
"""


def page(explanations: Sequence[Explanation]) -> str:
    """One self-contained HTML page; review texts and labels are escaped."""
    parts = []
    for found in explanations:
        words = "".join(
            f'<span class="out">{html.escape(piece)}</span>'
            if strength is None
            else f'<mark style="--s:{strength:.2f}">{html.escape(piece)}</mark>'
            for piece, strength in found.pieces()
        )
        rows = "".join(
            f"<tr><td>{html.escape(word)}</td><td>{100 * share:.1f} %</td></tr>" for word, share in found.top()
        )
        title = f"{html.escape(found.label)}, {100 * found.probability:.1f} %"
        parts.append(f"<h2>{title}</h2>\n<p>{words}</p>\n<table>{rows}</table>")
    model = html.escape(explanations[0].model) if explanations else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>What {model} attended to</title><style>{STYLE}</style></head>\n<body>\n"
        f'<h1>What {model} attended to</h1>\n<div class="note">{METHOD}</div>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def write_page(explanations: Sequence[Explanation], folder: Path) -> Path:
    """Writes the page into `folder`/explanations, named by what it explains, and returns its path."""
    name = hashlib.sha256("\0".join(found.text for found in explanations).encode("utf-8", "replace")).hexdigest()[:12]
    path = folder / "explanations" / f"{name}.html"
    write_atomically(path, page(explanations))
    return path
