"""The settings of the task `reviews`."""

from collections.abc import Mapping
from typing import Any, Literal

from imdbattn.errors import UserError
from imdbattn.settings.schema import (
    TOGETHER,
    Classifier,
    ReviewData,
    Training,
    are_for_pairs,
)


class ReviewSettings(Training):
    """The settings of a run that classifies reviews."""

    @classmethod
    def check_groups(cls, settings: Mapping[str, Any]) -> None:
        if any(are_for_pairs(settings)):
            raise UserError(TOGETHER)

    choose_by: Literal["accuracy", "loss"]
    data: ReviewData
    model: Classifier
