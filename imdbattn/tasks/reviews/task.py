"""The task `reviews`: classification of reviews, and of other texts."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from imdbattn.settings.schema import (
    Amount,
    ClassifierModel,
    FunctionName,
    ReviewDataSettings,
    TrainingSettings,
)
from imdbattn.tasks.task import Task

if TYPE_CHECKING:
    from imdbattn.data.splits import Source
    from imdbattn.tasks.predictor import Predictor


class EncoderSettings(TrainingSettings):
    """Settings for training a classifier, or its encoder, on reviews."""

    data: ReviewDataSettings
    model: ClassifierModel


class ReviewSettings(EncoderSettings):
    """Settings for classifying reviews."""

    choose_by: Literal["accuracy", "loss", "macro_f1"] | FunctionName
    class_weights: Literal["balanced"] | Annotated[list[Amount], Field(min_length=2)] | None = None
    attention_entropy: Amount = 0.0


class ReviewTask(Task):
    """Classifies texts: sentiment of reviews by default."""

    name = "reviews"
    settings_class: ClassVar[type[TrainingSettings]] = ReviewSettings
    data = "imdbattn.tasks.reviews.module.ReviewData"
    module = "imdbattn.tasks.reviews.module.ReviewClassifier"
    predictor: ClassVar["type[Predictor] | str | None"] = (
        "imdbattn.tasks.reviews.predictor.ReviewPredictor"
    )

    @classmethod
    def find_source(cls, data: Any) -> "Source | None":
        from imdbattn.data.corpus import find_source  # this imports torch, which is slow

        return find_source(data)
