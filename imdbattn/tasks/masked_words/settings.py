"""The settings of the task `masked_words`."""

from typing import Annotated, Literal

from pydantic import Field

from imdbattn.settings.schema import Group, InnerShare
from imdbattn.tasks.reviews.settings import ReviewSettings


class Masked(Group):
    """Which words are masked."""

    share: InnerShare
    words: Annotated[int, Field(ge=2)]


class MaskedWordSettings(ReviewSettings):
    """The settings of a run that predicts masked words."""

    choose_by: Literal["accuracy", "loss"]
    masked: Masked
