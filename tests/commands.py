"""Commands as functions, for tests that need no process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imdbattn.runs.score import load_predictor, predict
from imdbattn.settings.schema import Predict


def label_texts(cfg: Predict, texts: Sequence[str]) -> tuple[list[Any], Path]:
    """The result of `imdbattn.predict` for each text, and the run folder."""
    predictor, folder = load_predictor(cfg)
    return list(predict(predictor, texts, cfg)), folder
