"""The settings of imdbattn.explore, conf/explore.yaml."""

from typing import Annotated, Literal

from pydantic import Field

from imdbattn.report.settings import Folders
from imdbattn.settings.command_settings import LocalDataSettings
from imdbattn.settings.schema import Count, Flag, Group, Natural, Text, Trust


class ExploreSettings(Group):
    runs: Folders
    port: Annotated[Natural, Field(le=65535)]
    open: Flag
    out: Text | None
    words: Count | None
    precision: Literal["float32", "float16"]
    reviews: Annotated[Natural, Field(le=1000)]
    trust: Trust
    data: LocalDataSettings
