"""The task `masked_words`: pretraining of a classifier's encoder."""

from typing import Literal

from imdbattn.settings.schema import InnerShare, SettingsGroup, Several
from imdbattn.tasks.reviews.task import EncoderSettings, ReviewTask


class MaskedSettings(SettingsGroup):
    """Which words are masked."""

    share: InnerShare
    words: Several


class MaskedWordSettings(EncoderSettings):
    """Settings for predicting masked words."""

    choose_by: Literal["accuracy", "loss"]
    masked: MaskedSettings


class MaskedWordTask(ReviewTask):
    """Predicts masked words of reviews; model=pretrained starts from the result."""

    name = "masked_words"
    settings_class = MaskedWordSettings
    data = "imdbattn.tasks.masked_words.module.MaskedWordData"
    module = "imdbattn.tasks.masked_words.module.MaskedWordModule"
    predictor = None
    encoder_prefix = "encoder."
    next_model = "pretrained"
