"""The prediction for one text: the class of a review, or the output of an encoder-decoder.

Shape suffixes: H heads, Q queries, K keys, T output symbols, S source symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

EOS_TEXT = "<eos>"
# Number of reviews on a page with maps of each layer, up to 1 MB and a second per review
MAX_DETAILED = 5


@dataclass(frozen=True)
class AttentionWeights:
    """Weights of each attention of a classifier to one review; each row sums to 1 over the keys.

    keys: the words that were read, after <cls> if the model has one. layers: weights (H, Q, K) by
    the layer's number, from 1. pooling: (K,), or None if the pooling has no query of its own.
    by_label: (K,) for each label, if the pooling has a query for each; pooling is then their mean.
    """

    keys: list[str]
    layers: Mapping[int, np.ndarray]
    pooling: np.ndarray | None = None
    cls: bool = False
    by_label: Mapping[str, np.ndarray] = field(default_factory=dict)

    def received(self) -> dict[str, np.ndarray]:
        """Returns the weight of each key (K,) by attention, averaged over heads: from <cls> if
        there is one, else over queries.
        """
        query = "<cls>" if self.cls else "mean query"
        rows = {}
        for number, weights_HQK in self.layers.items():
            weights_HK = weights_HQK[:, 0] if self.cls else weights_HQK.mean(1)
            rows[f"layer {number}, {query}"] = weights_HK.mean(0)
        return rows | self.poolings()

    def poolings(self) -> dict[str, np.ndarray]:
        """Returns the weights of each query of the pooling, (K,)."""
        if self.by_label:
            return {f"pooling, {label}": weights_K for label, weights_K in self.by_label.items()}
        return {} if self.pooling is None else {"pooling": self.pooling}

    def entropies(self) -> dict[str, float]:
        """Returns the entropy of each head of a layer in nats, averaged over queries, and of
        each query of the pooling.

        exp(entropy) is the effective number of keys attended to, at most K.
        """
        rows = {}
        for number, weights_HQK in self.layers.items():
            for head, nats in enumerate(entropy(weights_HQK).mean(1).tolist(), 1):
                rows[f"layer {number}, head {head}"] = nats
        for name, weights_K in self.poolings().items():
            rows[name] = float(entropy(weights_K))
        return rows


def entropy(weights: np.ndarray) -> np.ndarray:
    """Returns the entropy of (..., K) weights in nats: log K if all are equal, 0 if one is 1."""
    from scipy.special import entr

    return entr(weights).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """output: the label or written text. probability: its probability. model: the model's name.

    probabilities: the probability of each class by its name; empty for a written text.
    """

    text: str
    output: str
    probability: float
    model: str = field(repr=False)
    probabilities: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.output

    @property
    def unread(self) -> Sequence[str]:
        """The parts of the text that the model cannot read."""
        return ()

    def facts(self) -> dict[str, str]:
        """Returns what a page shows below the heading."""
        return {}

    def columns(self) -> dict[str, object]:
        """Returns its columns in a table of predictions."""
        return {"output": self.output, "probability": self.probability}

    @property
    def heading(self) -> str:
        return f"{self.output or '(nothing)'}, {percent_text(self.probability)}"

    @property
    def line(self) -> str:
        """Output, probability, and the beginning of the text."""
        return (
            f"{self.output}  {100 * self.probability:5.1f} %  {' '.join(self.text.split())[:100]}"
        )


@dataclass(frozen=True, kw_only=True)
class Classification(Prediction):
    """words: (start, end, share) of each word that was read: its place in `text`, and its share in
    the pooled vector. has_words: whether the model read a word.

    The shares sum to 1, or to less if <cls> keeps a part of itself. Empty without an explanation.
    """

    has_words: bool = field(repr=False)
    words: Sequence[tuple[int, int, float]] = field(default=(), repr=False)
    attention: AttentionWeights | None = field(default=None, repr=False)

    @property
    def unread(self) -> Sequence[str]:
        return () if self.has_words else (self.text,)

    def columns(self) -> dict[str, object]:
        columns: dict[str, object] = {"label": self.label, "probability": self.probability}
        for name, probability in self.probabilities.items():
            columns[f"probability_{name}"] = probability
        return columns

    def facts(self) -> dict[str, str]:
        largest = sorted(self.words, key=lambda word: -word[2])[:8]
        shares = ", ".join(
            f"{quoted(self.text[start:end])} {percent_text(share)}" for start, end, share in largest
        )
        return {"largest shares": shares} if shares else {}

    def pieces(self, shares: Sequence[float] | None = None) -> list[tuple[str, float | None]]:
        """Returns the whole text in order as (piece, strength 0 to 1); the strength is None for
        text that is not a word.

        shares: used instead of the words' own shares.
        """
        shares = [share for *_, share in self.words] if shares is None else shares
        largest = max(shares, default=0) or 1
        pieces: list[tuple[str, float | None]] = []
        at = 0
        for (start, end, _), share in zip(self.words, shares, strict=True):
            pieces += [
                (self.text[at:start], None),
                (self.text[max(start, at) : end], share / largest),
            ]
            at = end
        return [(piece, strength) for piece, strength in (*pieces, (self.text[at:], None)) if piece]

    def shares_by_attention(self) -> dict[str, list[float]]:
        """Returns, for each attention, the weight that each word receives."""
        received = self.attention.received() if self.attention else {}
        return {
            name: weights_K[len(weights_K) - len(self.words) :].tolist()
            for name, weights_K in received.items()
        }


@dataclass(frozen=True, kw_only=True)
class Translation(Prediction):
    """The output of an encoder-decoder for one source; source, written: lists of symbols.

    weights_TS: each row sums to 1 over the source; one row per written symbol, and one for <eos> if
    it was produced; None for a model without attention. unknown: source symbols that are not in the
    vocabulary. reference: a correct output, as text.
    """

    source: list[str]
    written: list[str]
    weights_TS: np.ndarray | None = field(default=None, repr=False)
    unknown: Sequence[str] = ()
    reference: str | None = None

    @property
    def unread(self) -> Sequence[str]:
        return self.unknown

    @property
    def row_names(self) -> list[str]:
        """The output symbol of each row of the weights."""
        return [*self.written, EOS_TEXT][: 0 if self.weights_TS is None else len(self.weights_TS)]

    def facts(self) -> dict[str, str]:
        facts = {"source": self.text}
        if self.reference is not None:
            facts["reference"] = self.reference
        if self.unknown:
            unknown = ", ".join(self.unknown)
            facts["unknown"] = f"{unknown} (not in the vocabulary: read as <unk>)"
        if self.weights_TS is None:
            facts["attention"] = "none: the decoder uses a single vector of the source"
        return facts

    def alignment(self) -> list[str]:
        """Returns, for each output symbol, the source symbol with the largest weight, and the next
        two if they are above 5 %.
        """
        if self.weights_TS is None:
            return []
        lines = []
        for name, weights_S in zip(self.row_names, self.weights_TS, strict=True):
            first, *others = np.argsort(-weights_S, kind="stable")[:3]
            chosen = [first, *(s for s in others if weights_S[s] > 0.05)]
            symbols = (f"{self.source[s]} {percent_text(weights_S[s])}" for s in chosen)
            lines.append(f"{name} <- {', '.join(symbols)}")
        return lines


def percent_text(share: float) -> str:
    return "under 0.1 %" if 0 <= share < 0.0005 else f"{100 * share:.1f} %"


def quoted(word: str) -> str:
    """Returns the word, in quotation marks if it has no letter or digit, such as a comma."""
    return word if any(map(str.isalnum, word)) else f"“{word}”"
