"""The settings of imdbattn.explore, conf/explore.yaml."""

from typing import Annotated

from pydantic import Field

from imdbattn.report.settings import Folders
from imdbattn.settings.schema import Group, LocalData, Natural, Trust


class Explore(Group):
    runs: Folders
    port: Annotated[Natural, Field(le=65535)]
    open: bool
    trust: Trust
    data: LocalData
