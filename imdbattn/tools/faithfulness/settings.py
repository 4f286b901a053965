"""The settings of imdbattn.faithfulness, conf/faithfulness.yaml."""

from typing import Annotated, Literal

from pydantic import Field

from imdbattn.report.settings import RunsSettings
from imdbattn.settings.command_settings import LocalDataSettings
from imdbattn.settings.schema import (
    ClassSettings,
    Count,
    Group,
    InnerShare,
    Natural,
    Seed,
    Text,
    Trust,
)


class AopcSettings(Group):
    reviews: Natural
    beam: Count


class FaithfulnessSettings(RunsSettings):
    split: Literal["test", "validation"]
    seed: Seed
    reviews: Count
    scores: list[Text | ClassSettings]  # names, which faithfulness/experiment checks, and functions
    shares: Annotated[list[InnerShare], Field(min_length=1)]
    costly_reviews: Count
    search: AopcSettings
    random_reviews: Natural
    pairs_of: Text | None
    trust: Trust
    data: LocalDataSettings
