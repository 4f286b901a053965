"""The settings of imdbattn.search, conf/search.yaml."""

from typing import Annotated, Literal

from pydantic import Field

from imdbattn.settings.schema import Count, Group, Natural, Seed, Text, Trust


class SearchSettings(Group):
    n_trials: Count
    n_jobs: Annotated[Count, Field(le=1024)]
    seed: Seed
    seeds: Annotated[Natural, Field(le=100)]
    pruner: Literal["median", "hyperband", "none"]
    startup_trials: Natural
    warmup_epochs: Natural
    resume: Text | None
    trust: Trust
    train: list[Text]
    space: Annotated[dict[str, object], Field(min_length=1)]
