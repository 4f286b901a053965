"""How a classifier reads a text, with changes: the label, the share of each word, and all attention weights.

Also its position vectors, and what its distances add to the scores.

Shape suffixes: B reviews, H heads, Q queries, K keys, T words that are read, or positions; D width.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from imdbattn.api.model import Model
from imdbattn.data.tokens import Word
from imdbattn.errors import UserError
from imdbattn.explain.figures import position_tables, scores_by_distance
from imdbattn.explain.prediction import Classification, entropy
from imdbattn.explore.changes import Changes, changed, check, has_positions, layers_of, shares
from imdbattn.faithfulness.erasure import keep

MAPS = 1024  # largest number of words for which weights are sent, whose number grows with its square
LONGEST = 20_000  # words that a model may read


@dataclass(frozen=True)
class View:
    """A text as a model reads it. order: the original place of each word; kept: whether it is read."""

    prediction: Classification
    words: Sequence[Word]  # of the original text
    order: np.ndarray
    kept: np.ndarray
    places: list[tuple[int, int]]  # of all words in prediction.text, in `order`
    note: str | None = None  # why there are no weights

    @property
    def names(self) -> list[str]:
        return [word.text for word in self.words]


def read(model: Model, text: str, changes: Changes) -> View:
    """Raises UserError for changes that are not possible, and for a text that is too long."""
    predictor, net = model.predictor, model.net
    words = predictor.words_read(text)
    if len(words) > LONGEST:
        raise UserError(f"{predictor.cfg.model.name} would read {len(words):,} words: cut the text to {LONGEST:,}")
    check(net, changes)
    shown, order, places = text, np.arange(len(words)), [(word.start, word.end) for word in words]
    batches = predictor.batches([text])
    if changes.shuffle is not None:
        order = np.random.default_rng(changes.shuffle).permutation(len(words))
        shown, places = joined([text[words[place].start : words[place].end] for place in order])
        ids = np.array([words[place].id for place in order], dtype=np.int32)
        batches = predictor.batches_of(ids, np.array([0, len(ids)]))
    kept = ~np.isin(order, changes.words)
    batch = batches[0, np.arange(1)]
    if not kept.all():
        batch = keep(batch, torch.from_numpy(kept)[None])
    read_places = [place for place, is_kept in zip(places, kept, strict=True) if is_kept]
    view = partial(View, words=words, order=order, kept=kept, places=places)
    with changed(net, changes), torch.no_grad():
        try:
            if len(read_places) > MAPS:
                raise UserError(f"{len(read_places):,} words: attention is shown for up to {MAPS:,}")
            prediction = predictor.explain_batch(batch, shown, read_places, True, partial(shares, changes))
        except UserError as error:
            (probability_C,) = predictor.probabilities(batch).tolist()
            return view(predictor.result(shown, probability_C), note=str(error))
    assert prediction.attention is not None
    numbers = changes.kept_layers(len(layers_of(net)))
    return view(replace(prediction, attention=replace(prediction.attention, numbers=numbers)))


def joined(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The words with spaces between them, and the place of each."""
    places, at = [], 0
    for word in words:
        places.append((at, at + len(word)))
        at += len(word) + 1
    return " ".join(words), places


def answer(model: Model, text: str, changes: Changes) -> bytes:
    """A view for the page: the length of the JSON (uint32), the JSON, and float32 weights, little-endian."""
    view = read(model, text, changes)
    facts, weights = described(model, view, changes)
    if changes:
        before = model.predictor.label([text])[0]
        facts["before"] = {"label": before.output, "probability": before.probability}
    return framed(facts, weights)


def framed(facts: dict[str, Any], arrays: Sequence[np.ndarray]) -> bytes:
    """JSON padded with spaces so that the numbers after it begin at a multiple of four bytes."""
    header = json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace")
    header += b" " * (-len(header) % 4)
    return b"".join([struct.pack("<I", len(header)), header, *(array.astype("<f4").tobytes() for array in arrays)])


def described(model: Model, view: View, changes: Changes) -> tuple[dict[str, Any], list[np.ndarray]]:
    prediction, net = view.prediction, model.net
    total = len(model.predictor.tokenizer.words(prediction.text)) if changes.shuffle is None else len(view.words)
    share_of = iter(prediction.words)
    words, removed = [], []
    for place, (start, end), is_kept in zip(view.order.tolist(), view.places, view.kept.tolist(), strict=True):
        word = {"start": start, "end": end, "place": place}
        if not is_kept:
            removed.append(word)
        else:
            words.append(word | {"share": next(share_of)[2] if prediction.words else None})
    attentions, weights = attentions_of(net, prediction, changes)
    return {
        "label": prediction.output,
        "probability": prediction.probability,
        "probabilities": prediction.probabilities,
        "text": prediction.text,
        "words": words,
        "removed": removed,
        "unread": total - len(view.words),
        "keys": prediction.attention.keys if prediction.attention else [],
        "cls": bool(prediction.attention and prediction.attention.cls),
        "attentions": attentions,
        "has_positions": has_positions(net),
        "note": view.note,
    }, weights


def attentions_of(
    net: Any, prediction: Classification, changes: Changes
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Each layer and the pooling, and the weights of those that are not skipped, (H, Q, K) each."""
    if prediction.attention is None:
        return [], []
    by_layer, arrays = dict(prediction.attention.numbered()), []
    attentions: list[dict[str, Any]] = []
    for number in range(1, 1 + len(layers_of(net))):
        facts = {"name": f"layer {number}", "layer": number, "skipped": number not in by_layer, "heads": 0}
        if number in by_layer:
            arrays.append(by_layer[number])
            facts |= shape_of(by_layer[number]) | {"disabled": changes.heads_of(number)}
        attentions.append(facts)
    if prediction.attention.pooling is not None:
        arrays.append(prediction.attention.pooling[None, None])
        attentions.append({"name": "pooling", "layer": None, "skipped": False, "disabled": []} | shape_of(arrays[-1]))
    return attentions, arrays


def shape_of(weights_HQK: np.ndarray) -> dict[str, Any]:
    entropies = entropy(weights_HQK).mean(1).tolist()
    return {"heads": weights_HQK.shape[0], "queries": weights_HQK.shape[1], "entropies": entropies}


def answer_positions(model: Model, length: int) -> bytes:
    """The products pe_i . pe_j of the first `length` positions, (T, T), and their means by distance.

    Raises UserError for a model without positions.
    """
    net = model.net
    tables = position_tables(net, length) if hasattr(net, "positions") else {}
    layers = scores_by_distance(net) if layers_of(net) else {}
    if not tables and not layers:
        name = model.predictor.cfg.model.name
        raise UserError(f"{name} has no positions: residual_pe, residual_learned and tuned have")
    facts, arrays = [], []
    for name, pe_TD in tables.items():
        products_TT = pe_TD @ pe_TD.T
        size, apart_TT = len(products_TT), ~np.eye(len(products_TT), dtype=bool)
        means = [float(np.diagonal(products_TT, distance).mean()) for distance in range(size // 2)]
        largest = float(np.abs(products_TT[apart_TT]).max(initial=0))
        facts.append({"name": name, "size": size, "largest": largest, "by_distance": means})
        arrays.append(products_TT)
    distances = [{"name": name, "added": added_HR.tolist()} for name, added_HR in layers.items()]
    return framed({"tables": facts, "distances": distances}, arrays)
