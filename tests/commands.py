"""Commands as functions, for tests that need no process, and settings with changed values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from imdbattn.runs.apply import load_predictor, predictions_of
from imdbattn.settings.command_settings import Predict
from imdbattn.settings.keys import plain
from imdbattn.settings.schema import Training
from imdbattn.tasks.task import validate


def label_texts(cfg: Predict, texts: Sequence[str]) -> tuple[list[Any], Path]:
    """The result of `imdbattn.predict` for each text, and the run folder."""
    predictor, folder = load_predictor(cfg)
    return list(predictions_of(predictor, texts, cfg)), folder


def changed(cfg: Training, values: Mapping[str, Any]) -> Training:
    """The settings of a training run with these values of dotted keys."""
    settings = OmegaConf.create(cfg.dump())
    for key, value in values.items():
        OmegaConf.update(settings, key, value)
    return validate(plain(settings))
