"""How a classifier reads a text, with changes: the label, the share of each word, and all attention
weights.

Also its position vectors, and what its distances add to the scores.

Shape suffixes: B reviews, H heads, Q queries, K keys, T words that are read, or positions; D width.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from imdbattn.api.model import Model
from imdbattn.data.tokens import UNK
from imdbattn.errors import UserError
from imdbattn.tasks.prediction import Classification, Prediction, entropy
from imdbattn.tools.explain.figures import position_tables, scores_by_distance
from imdbattn.tools.explore.changes import Changes, changed, positional, shares, shuffled
from imdbattn.tools.explore.runs import Message, Runs
from imdbattn.tools.faithfulness.erasure import keep

# largest number of words for which weights are sent, whose number grows with its square
MAPS = 1024


class Reading:
    """A text as a model reads it: shuffled, and with words removed, as the changes say.

    Attributes: batch of one review; text, shuffled; for each word of `text` in order: places (start
    and end), order_T (original place), kept_T (is it read); unread, number of words in the middle
    that are not read.
    """

    def __init__(self, model: Model, text: str, changes: Changes):
        self.model, self.text, self.changes = model, text, changes
        predictor = model.predictor
        words = predictor.words_read(text)
        self.order_T, self.places = (
            np.arange(len(words)),
            [(word.start, word.end) for word in words],
        )
        self.unread = (
            0 if changes.shuffle is not None else len(predictor.tokenizer.words(text)) - len(words)
        )
        batches = predictor.batches([text])
        if changes.shuffle is not None:
            self.order_T = np.array(shuffled(len(words), changes.shuffle), dtype=np.int64)
            names = [text[words[place].start : words[place].end] for place in self.order_T]
            self.text, self.places = " ".join(names), []
            for name in names:
                start = self.places[-1][1] + 1 if self.places else 0
                self.places.append((start, start + len(name)))
            ids = np.array([words[place].id for place in self.order_T], dtype=np.int32)
            batches = predictor.batches_of(ids, np.array([0, len(ids)]))
        self.batch, self.kept_T = batches[0, np.arange(1)], ~np.isin(self.order_T, changes.words)
        if not self.kept_T.all():
            self.batch = keep(self.batch, torch.from_numpy(self.kept_T)[None])

    @property
    def unknown(self) -> int:
        """The number of words that are read and have no vector."""
        return int((self.batch.tokens_BT == UNK).sum())

    @property
    def read_places(self) -> list[tuple[int, int]]:
        return [place for place, is_kept in zip(self.places, self.kept_T, strict=True) if is_kept]

    def explained(self) -> tuple[Classification, str | None]:
        """The prediction, and why it has no attention weights, if it has none."""
        predictor, net, places = self.model.predictor, self.model.net, self.read_places
        with changed(net, self.changes), torch.no_grad():
            try:
                if len(places) > MAPS:
                    raise UserError(f"{len(places):,} words: attention is shown for up to {MAPS:,}")
                prediction = predictor.explain_batch(
                    self.batch, self.text, places, True, partial(shares, self.changes)
                )
            except UserError as error:
                (probability_C,) = predictor.probabilities(self.batch).tolist()
                return predictor.result(self.text, probability_C), str(error)
        numbers = self.changes.kept_layers(len(getattr(net, "layers", ())))
        return replace(prediction, attention=replace(prediction.attention, numbers=numbers)), None


class Read(Message):
    run: str
    text: str
    changes: Changes = Changes()

    def reading(self, runs: Runs) -> Reading:
        return Reading(runs.model(self.run), self.text, self.changes)

    def prediction(self, runs: Runs) -> Prediction:
        return self.reading(runs).explained()[0]

    def answer(self, runs: Runs) -> bytes:
        """As `framed`, with the weights (H, Q, K) of enabled layers and of the pooling."""
        reading = self.reading(runs)
        model, (prediction, note) = reading.model, reading.explained()
        shares_T = np.full(len(reading.order_T), None)
        if prediction.words:
            shares_T[reading.kept_T] = [share for *_, share in prediction.words]
        columns = zip(
            reading.places, reading.order_T.tolist(), shares_T, reading.kept_T.tolist(), strict=True
        )
        attention, shown = prediction.attention, list[tuple[dict[str, Any], np.ndarray]]()
        if attention is not None:
            shown = [
                ({"name": f"layer {number}", "layer": number}, layer)
                for number, layer in attention.numbered()
            ]
            if by_label := getattr(attention, "by_label", {}):  # a query for each label
                weights_C1K = np.stack(list(by_label.values()))[:, None]
                shown.append(({"name": "pooling", "labels": list(by_label)}, weights_C1K))
            elif attention.pooling is not None:
                shown.append(({"name": "pooling"}, attention.pooling[None, None]))
        facts = {
            "label": prediction.output,
            "probability": prediction.probability,
            "probabilities": prediction.probabilities,
            "text": prediction.text,
            "words": [
                {"start": start, "end": end, "place": place, "share": share, "removed": not is_kept}
                for (start, end), place, share, is_kept in columns
            ],
            "unknown": reading.unknown,
            "unread": reading.unread,
            "keys": attention.keys if attention else [],
            "cls": bool(attention and attention.cls),
            "layers": len(getattr(model.net, "layers", ())),
            "attentions": [
                about
                | {
                    "heads": len(each),
                    "queries": each.shape[1],
                    "entropies": entropy(each).mean(1).tolist(),
                }
                for about, each in shown
            ],
            "has_positions": bool(positional(model.net)),
            "note": note,
        }
        if self.changes:
            facts["before"] = dict(model.predictor.label([self.text])[0].probabilities)
        return framed(facts, [each for _, each in shown])


class Positions(Message):
    """length: number of positions."""

    run: str
    length: Annotated[int, Field(ge=2, le=512)] = 128

    def answer(self, runs: Runs) -> bytes:
        """As `framed`, the products pe_i . pe_j (T, T), and what distances add to scores."""
        net = runs.model(self.run).net
        tables = position_tables(net, self.length) if hasattr(net, "positions") else {}
        layers = scores_by_distance(net) if hasattr(net, "layers") else {}
        products = [pe_TD @ pe_TD.T for pe_TD in tables.values()]
        facts = [
            {"name": name, "size": len(each)} for name, each in zip(tables, products, strict=True)
        ]
        distances = [
            {"name": name, "added": added_HR.tolist()} for name, added_HR in layers.items()
        ]
        return framed({"tables": facts, "distances": distances}, products)


def framed(facts: dict[str, Any], arrays: Sequence[np.ndarray]) -> bytes:
    """The length of the JSON (uint32), the JSON, and float32 numbers, little-endian.

    Spaces after the JSON let the numbers begin at a multiple of four bytes.
    """
    header = json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace")
    header += b" " * (-len(header) % 4)
    return b"".join(
        [
            struct.pack("<I", len(header)),
            header,
            *(array.astype("<f4").tobytes() for array in arrays),
        ]
    )
