"""The settings of imdbattn.faithfulness, conf/faithfulness.yaml."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from imdbattn.comparison.settings import OfRuns
from imdbattn.settings.schema import Count, Group, InnerShare, LocalData, Natural, Part, Share, Text, Trust

ScoreName = Literal[
    "rollout",
    "last_layer",
    "all_layers",
    "norms",
    "norm_rollout",
    "value_zeroing",
    "value_zeroing_rollout",
    "gradient",
    "integrated_gradients",
    "leave_one_out",
    "random",
]


# Random scores are always among them: the others are compared with these.
Scores = Annotated[list[ScoreName | Part], AfterValidator(lambda own: own if "random" in own else [*own, "random"])]


class Adversary(Group):
    reviews: Natural
    epsilon: InnerShare
    steps: Count
    restarts: Count


class AopcSearch(Group):
    reviews: Natural
    beam: Count


class Faithfulness(OfRuns):
    split: Literal["test", "validation"]
    reviews: Count
    scores: Scores
    shares: Annotated[list[InnerShare], Field(min_length=1)]
    costly_reviews: Count
    search: AopcSearch
    random_reviews: Natural
    permutations: Count
    adversary: Adversary
    epoch_reviews: Natural
    pairs_of: Text | None
    margin: Share
    trust: Trust
    data: LocalData
