"""Predictions of a model, and the explanation of one of them.

Shape suffixes: N texts, C classes, W words that were read, T output symbols, S source symbols.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imdbattn.api.display import html
from imdbattn.io.files import with_home, write_atomically
from imdbattn.report.pages import printed
from imdbattn.report.prediction_page import page, print_predictions, printable
from imdbattn.tasks.prediction import AttentionWeights, Classification, Prediction, Translation

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 20  # number of predictions that are printed


class Predictions(tuple[Prediction, ...]):
    """A prediction for each text, in order: `text`, `label`, `probability` of the label,
    `probabilities` by class.

    For an encoder-decoder, a label is the written sequence, and there are no classes.

    >>> texts = ["A great and lovely film.", "A bad and awful film."]
    >>> predictions = imdbattn.load("runs/latest").predict(texts)
    >>> predictions[1].label
    'neg'
    >>> predictions.probabilities.shape
    (2, 2)
    """

    __slots__ = ()

    @property
    def labels(self) -> np.ndarray:
        """The labels, (N,), as text."""
        return np.array([item.label for item in self], dtype=object)

    @property
    def probabilities(self) -> np.ndarray:
        """The probabilities (N, C), in the order of `Model.labels`; (N, 1) for an
        encoder-decoder.
        """
        rows = [list(item.probabilities.values()) or [item.probability] for item in self]
        return np.array(rows, dtype=float)

    def to_frame(self) -> pd.DataFrame:
        """Returns a table with the columns that imdbattn.predict writes, after the text."""
        import pandas as pd

        # This removes lone surrogates.
        texts = [item.text.encode("utf-8", "replace").decode() for item in self]
        rows = [item.columns() for item in self]
        return pd.DataFrame([{"text": text, **row} for text, row in zip(texts, rows, strict=True)])

    def __repr__(self) -> str:
        more = [f"and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        return printable("\n".join([*(item.line for item in self[:SHOWN]), *more]) or "no texts")

    def _repr_html_(self) -> str:
        return html(self.to_frame(), max_rows=SHOWN, show_dimensions=True)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a model attended to in one text, displayed as shaded text, in notebooks with weights.

    >>> explanation = imdbattn.load("runs/latest").explain("Not bad, but not good.")
    >>> len(explanation.words) == len(explanation.weights)
    True
    """

    prediction: Prediction

    @property
    def words(self) -> list[str]:
        """The W words that were read; the S source symbols of an encoder-decoder."""
        prediction = self.prediction
        if isinstance(prediction, Classification):
            return [prediction.text[start:end] for start, end, _ in prediction.words]
        assert isinstance(prediction, Translation)
        return prediction.source

    @property
    def weights(self) -> np.ndarray:
        """The share of each word in the pooled vector, (W,).

        The sum is 1, or less if <cls> keeps a part of itself.

        For an encoder-decoder (T, S): the attention of each output symbol; (0, S) without it.
        """
        prediction = self.prediction
        if isinstance(prediction, Classification):
            return np.array([share for *_, share in prediction.words])
        assert isinstance(prediction, Translation)
        if prediction.weights_TS is None:
            return np.zeros((0, len(self.words)))
        return prediction.weights_TS

    @property
    def attention(self) -> AttentionWeights | None:
        """The weights of every layer and head of a classifier."""
        return self.prediction.attention if isinstance(self.prediction, Classification) else None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a self-contained HTML page, and returns its path."""
        file = with_home(path)
        write_atomically(file, page([self.prediction]))
        return file

    def __repr__(self) -> str:
        return printed(lambda console: print_predictions([self.prediction], console))

    def _repr_html_(self) -> str:
        return page([self.prediction], is_fragment=True)
