"""How a classifier reads a text, with changes: label, shares of words, attention weights.

Also its position vectors, and what its distances add to the scores.

Shape suffixes: B reviews, H heads, Q queries, K keys, T words that are read, or positions; D width.
"""

from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from imdbattn.data.ragged import ragged_from_lists
from imdbattn.data.tokenizer import UNK
from imdbattn.errors import UserError
from imdbattn.report.run_figures import position_tables, scores_by_distance
from imdbattn.tasks.prediction import AttentionWeights, Classification, entropy
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tools.explore.changes import Changes, changed, enabled_rollout, positional, shuffled
from imdbattn.tools.explore.runs import Answer, Message, Runs
from imdbattn.tools.faithfulness.erasure import keep_words

# Weights are sent for up to this number of words; their number grows with its square.
MAPPED_WORDS = 1024


class Reading:
    """A text as a model reads it, with its words shuffled and removed as in `changes`.

    Attributes:
        batch: a batch of this review.
        text: the text, with its words in the shuffled order.
        spans: the start and end of each word in `text`.
        order: the original index of each word in `text`.
        is_kept: whether each word in `text` is read.
        unread: the number of words in the middle of the text that are not read.
    """

    def __init__(self, predictor: ReviewPredictor, text: str, changes: Changes):
        self.predictor = predictor
        self.text = text
        self.changes = changes
        words = predictor.words_read(text)
        self.unread = len(predictor.tokenizer.words(text)) - len(words)
        self.order = list(range(len(words)))
        self.spans = [(word.start, word.end) for word in words]
        maker = predictor.batch_maker([text])
        if changes.shuffle is not None:
            self.order = shuffled(len(words), changes.shuffle)
            names = [text[slice(*self.spans[index])] for index in self.order]
            self.text = " ".join(names)
            self.spans = []
            start = 0
            for name in names:
                self.spans.append((start, start + len(name)))
                start += len(name) + 1
            ids = [words[index].id for index in self.order]
            maker = predictor.batch_maker_of_ids(ragged_from_lists([ids]))
        self.batch = maker.of_items(np.arange(1))
        self.is_kept = [index not in changes.words for index in self.order]
        if not all(self.is_kept):
            self.batch = keep_words(self.batch, torch.tensor([self.is_kept]))

    @property
    def word_spans(self) -> list[tuple[int, int]]:
        """The start and end of each word that is not removed."""
        return list(compress(self.spans, self.is_kept))

    def explained(self) -> tuple[Classification, str | None]:
        """Returns the prediction, and why it has no attention weights, if it has none."""
        predictor = self.predictor
        spans = self.word_spans
        with changed(predictor.net, self.changes), torch.no_grad():
            try:
                if len(spans) > MAPPED_WORDS:
                    raise UserError(
                        f"{len(spans):,} words: attention is shown for up to {MAPPED_WORDS:,}"
                    )
                shares = partial(enabled_rollout, self.changes)
                return predictor.explain_batch(self.batch, self.text, spans, True, shares), None
            except UserError as error:
                (probability_C,) = predictor.probabilities(self.batch).tolist()
                return predictor.result(self.text, probability_C, bool(spans)), str(error)


def attentions_of(
    weights: AttentionWeights | None, numbers: Sequence[int]
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Returns facts and weights (H, Q, K) of the enabled layers, which have these numbers, then of
    the pooling; nothing without weights.

    Facts are its name, the numbers of heads and queries, the entropy of each head, and the number
    of a layer, or the labels of a pooling with a query for each label.
    """
    if weights is None:
        return [], []
    every: list[dict[str, Any]] = [{"name": f"layer {n}", "layer": n} for n in numbers]
    arrays = list(weights.layers.values())
    if poolings := weights.poolings():
        by_label = {"labels": list(weights.by_label)} if weights.by_label else {}
        every.append({"name": "pooling", **by_label})
        arrays.append(np.stack(list(poolings.values()))[:, None])
    for facts, weights_HQK in zip(every, arrays, strict=True):
        facts["heads"], facts["queries"], _ = weights_HQK.shape
        facts["entropies"] = entropy(weights_HQK).mean(1).tolist()
    return every, arrays


class Read(Message):
    """Asks how a run reads a text."""

    run: str
    text: str
    changes: Changes = Changes()

    def reading(self, runs: Runs) -> Reading:
        return Reading(runs.predictor(self.run), self.text, self.changes)

    def answer(self, runs: Runs) -> Answer:
        """Returns facts, and the weights (H, Q, K) of the layers and of the pooling."""
        reading = self.reading(runs)
        net = reading.predictor.net
        layers = len(getattr(net, "layers", ()))
        prediction, note = reading.explained()
        attention = prediction.attention
        attentions, weights = attentions_of(attention, self.changes.kept_layers(layers))
        facts = {
            "label": prediction.output,
            "probability": prediction.probability,
            "probabilities": prediction.probabilities,
            "text": prediction.text,
            "words": word_facts(reading, prediction),
            "unknown": int((reading.batch.tokens_BT == UNK).sum()),
            "unread": reading.unread,
            "keys": attention.keys if attention else [],
            "cls": bool(attention and attention.cls),
            "layers": layers,
            "attentions": attentions,
            "has_positions": bool(positional(net)),
            "note": note,
        }
        if self.changes:
            facts["before"] = dict(reading.predictor.label([self.text])[0].probabilities)
        return facts, weights


def word_facts(reading: Reading, prediction: Classification) -> list[dict[str, Any]]:
    """Returns the words that are read, in the order in which they are shown: start and end in the
    displayed text, index in the text that was sent (`place`), share, and whether it is removed.
    """
    shares = iter([share for *_, share in prediction.words])  # of the words that are kept
    words = []
    for (start, end), index, kept in zip(
        reading.spans, reading.order, reading.is_kept, strict=True
    ):
        share = next(shares, None) if kept else None
        word = {"start": start, "end": end, "place": index, "share": share, "removed": not kept}
        words.append(word)
    return words


class Positions(Message):
    """Asks for the positions of a run. length: their number."""

    run: str
    length: Annotated[int, Field(ge=2, le=512)] = 128

    def answer(self, runs: Runs) -> Answer:
        """Returns what distances add, and the products pe_i . pe_j (T, T) of each table."""
        net = runs.predictor(self.run).net
        tables = position_tables(net, self.length)
        layers = scores_by_distance(net)
        products = [pe_TD @ pe_TD.T for pe_TD in tables.values()]
        sizes = [{"name": name, "size": len(pe_TD)} for name, pe_TD in tables.items()]
        distances = [{"name": name, "added": added.tolist()} for name, added in layers.items()]
        return {"tables": sizes, "distances": distances}, products
