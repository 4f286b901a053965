"""What a model attended to in a review: shaded in the terminal, and as one HTML page that needs no network.

Shape suffixes: H heads, Q queries, K keys.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.files import write_atomically
from imdbattn.settings.safety import visible

if TYPE_CHECKING:
    import numpy as np

WHOLE = 5  # reviews of a page that get every layer and figure; each takes most of a second and up to a megabyte


@dataclass(frozen=True)
class Attended:
    """The weights of every attention to one review, each row of which sums to 1 over the keys.

    keys: names of what is attended to: the words that were read, behind <cls> where the model has one.
    layers: (H, K, K) for each layer, query by key. pooling: (K,), or None where the pooling asks nothing.
    """

    keys: list[str]
    layers: list[np.ndarray]
    pooling: np.ndarray | None = None
    cls: bool = False

    def received(self) -> dict[str, np.ndarray]:
        """What each key gets (K,), mean over the heads: of <cls> where there is one, else of the mean query."""
        who = "<cls>" if self.cls else "mean query"
        rows = {
            f"layer {number}, {who}": (weights_HQK[:, 0] if self.cls else weights_HQK.mean(1)).mean(0)
            for number, weights_HQK in enumerate(self.layers, 1)
        }
        return rows if self.pooling is None else rows | {"pooling": self.pooling}

    def entropies(self) -> dict[str, float]:
        """Entropy of the weights in nats, mean over queries: of each layer and head, of <cls> alone, of the pooling.

        exp of it is the effective number of keys attended to, at most K.
        """
        found = {}
        for layer, weights_HQK in enumerate(self.layers, 1):
            for head, weights_QK in enumerate(weights_HQK, 1):
                found[f"layer {layer}, head {head}"] = float(entropy(weights_QK).mean())
                if self.cls:
                    found[f"layer {layer}, head {head}, <cls> alone"] = float(entropy(weights_QK[0]))
        return found if self.pooling is None else found | {"pooling": float(entropy(self.pooling))}


def entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy of (..., K) weights in nats: log K if all are equal, 0 if one has all."""
    from scipy.special import entr

    return entr(weights).sum(-1)


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
    attended: Attended | None = None

    def pieces(self, shares: Sequence[float] | None = None) -> list[tuple[str, float | None]]:
        """The whole text in order as (piece, strength 0 to 1); None for what lies between words or was not read.

        shares: other shares of the words than their own.
        """
        shares = [share for *_, share in self.words] if shares is None else shares
        strongest = max(shares, default=0) or 1
        pieces: list[tuple[str, float | None]] = []
        at = 0
        for (start, end, _), share in zip(self.words, shares, strict=True):
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


METHOD = (
    "Shade: share of each word in the pooled vector, estimated by attention rollout; the darkest of a review is full."
)


def print_explanations(explanations: Sequence[Explanation]) -> None:
    """The reviews in the terminal, words shaded by their share."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for found in explanations:
        console.print(Text(f"{visible(found.label)}  {100 * found.probability:.1f} %", style="bold"))
        line = Text()
        for piece, strength in found.pieces():
            if strength is None:
                line.append(visible(piece), style="dim")
            else:
                fade = round(255 * (1 - strength))
                line.append(visible(piece), style=f"black on rgb(255,{160 + fade * 95 // 255},{fade})")
        console.print(line)
        console.print("most: " + ", ".join(f"{visible(word)} {100 * share:.1f} %" for word, share in found.top()))
        console.print()
    console.print(METHOD, style="dim")


# Pages show strangers' reviews. All text is escaped; a tag that got through all the same could load and run nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fdfcfa; --quiet: #6b6b73; --shade: 255 150 0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e3; --paper: #17171a; --quiet: #9a9aa3; --shade: 150 80 0 } }
body { font: 17px/1.7 Georgia, serif; color: var(--ink); background: var(--paper); max-width: 46rem;
       margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word }
h1, h2, table, summary, .note { font-family: system-ui, sans-serif }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem } summary { font-size: .95rem; margin: .6rem 0 }
.note { color: var(--quiet); font-size: .85rem } p { white-space: pre-wrap }
mark { color: inherit; border-radius: 3px; background: rgb(var(--shade) / var(--s)) } .out { color: var(--quiet) }
th, td { padding: 0 1rem 0 0; font-size: .85rem; text-align: left }
th + th, td + td { text-align: right; font-variant-numeric: tabular-nums } td.text { font-size: 1rem }
.figure { overflow-x: auto; margin: 1rem 0 } img { background: #fff; border-radius: 4px; zoom: .5 }
@media print { :root { --paper: #fff } body { margin: 0 } mark { print-color-adjust: exact }
  img { zoom: 1; max-width: 100%; max-height: 24cm; break-inside: avoid } }
"""


def page(explanations: Sequence[Explanation], images: Sequence[bytes | None] = ()) -> str:
    """One self-contained HTML page; review texts and labels are escaped.

    images: for each review its figure as PNG (pictures.drawn), or None.
    """
    model = explanations[0].model if explanations else ""
    parts = [section(found, image) for found, image in zip_longest(explanations, images)]
    if len(explanations) > WHOLE:
        parts.append(f'<div class="note">Layers and figures: of the first {WHOLE} reviews.</div>')
    return framed(f"What {model} attended to", METHOD, parts)


def framed(title: str, note: str, parts: Sequence[str]) -> str:
    """A whole page around `parts`, which are HTML; title and note are text."""
    title = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body>\n"
        f'<h1>{title}</h1>\n<div class="note">{html.escape(note)}</div>\n' + "\n".join(parts) + "\n</body></html>\n"
    )


def section(found: Explanation, image: bytes | None) -> str:
    """One review of the page."""
    rows = "".join(f"<tr><td>{html.escape(word)}</td><td>{100 * share:.1f} %</td></tr>" for word, share in found.top())
    return (
        f"<h2>{html.escape(found.label)}, {100 * found.probability:.1f} %</h2>\n"
        f"<p>{shaded(found)}</p>\n<table>{rows}</table>\n{by_layer(found)}{embedded(image)}"
    )


def shaded(found: Explanation, shares: Sequence[float] | None = None) -> str:
    return "".join(
        f'<span class="out">{html.escape(piece)}</span>'
        if strength is None
        else f'<mark style="--s:{strength:.2f}">{html.escape(piece)}</mark>'
        for piece, strength in found.pieces(shares)
    )


def by_layer(found: Explanation) -> str:
    """Each attention's weights, if they were kept: folded shadings of the text, and a table of entropies."""
    attended = found.attended
    if attended is None or not (received := attended.received()):
        return ""
    first = int(attended.cls)
    shares = {name: weights_K[first : first + len(found.words)].tolist() for name, weights_K in received.items()}
    foldings = "".join(
        f"<details><summary>Attention: {html.escape(name)} (darkest: {100 * max(ours, default=0):.1f} %)</summary>"
        f"<p>{shaded(found, ours)}</p></details>\n"
        for name, ours in shares.items()
    )
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{nats:.2f}</td><td>{math.exp(nats):.1f}</td></tr>"
        for name, nats in attended.entropies().items()
    )
    keys = len(attended.keys)
    return (
        f"{foldings}<table><tr><th>attention</th><th>entropy, nats</th><th>effective number of keys</th></tr>{rows}"
        f"<tr><td>most possible: log {keys}</td><td>{math.log(keys):.2f}</td><td>{keys}</td></tr></table>\n"
    )


def embedded(image: bytes | None, says: str = "weights, query by key") -> str:
    if image is None:
        return ""
    source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    return f'<div class="figure"><img alt="{html.escape(says)}" src="{source}"></div>\n'


def digest(explanations: Sequence[Explanation]) -> str:
    """Twelve hex digits that name the texts that are explained."""
    return digest_of(found.text for found in explanations)


def digest_of(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:12]


def write_page(explanations: Sequence[Explanation], images: Sequence[bytes | None], path: Path) -> Path:
    """Writes the page and returns its path."""
    write_atomically(path, page(explanations, images).encode("utf-8", "replace"))  # a text may hold half characters
    return path
