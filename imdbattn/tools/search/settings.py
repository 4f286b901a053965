"""The settings of imdbattn.search, conf/search.yaml."""

from typing import Annotated, Any, Literal

from pydantic import Field

from imdbattn.settings.schema import Count, Group, Natural, Seed, Text, Trust


class Search(Group):
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
    space: Annotated[dict[str, Any], Field(min_length=1)]
