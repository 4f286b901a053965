"""The settings of the task `reviews`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.settings.schema import (
    TOGETHER,
    Amount,
    Classifier,
    FunctionName,
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

    choose_by: Literal["accuracy", "loss", "macro_f1"] | FunctionName
    class_weights: Literal["balanced"] | Annotated[list[Amount], Field(min_length=2)] | None = None
    attention_entropy: Amount = 0.0
    data: ReviewData
    model: Classifier
