"""Commands as functions, for tests that need no process, and settings with changed values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imdbattn.runs.apply import load_predictor, predictions_of
from imdbattn.runs.command_settings import Predict
from imdbattn.settings.keys import as_dict
from imdbattn.tasks.task import validate


def label_texts(cfg: Predict, texts: Sequence[str]) -> tuple[list[Any], Path]:
    """The result of `imdbattn.predict` for each text, and the run folder."""
    predictor, folder = load_predictor(cfg)
    return list(predictions_of(predictor, texts, cfg)), folder


def changed(cfg: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """The settings of a training run with these values of dotted keys."""
    settings = OmegaConf.create(as_dict(cfg))
    for key, value in values.items():
        OmegaConf.update(settings, key, value)
    return validate(settings)
