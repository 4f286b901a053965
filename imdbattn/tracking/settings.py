"""The settings of imdbattn.dashboard, conf/dashboard.yaml, and which loggers are of W&B."""

from collections.abc import Mapping
from typing import TypeVar

from imdbattn.settings.schema import Group, Text


class Dashboard(Group):
    entity: Text | None
    project: Text
    group: Text | None
    by: Text
    dry_run: bool
    out: Text


LoggerSettings = TypeVar("LoggerSettings", bound=Mapping[str, object])
TARGET = "imdbattn.tracking.wandb_logger.WandbLogger"


def wandb_parts(loggers: Mapping[str, LoggerSettings]) -> dict[str, LoggerSettings]:
    """Returns the settings of our W&B logger, by the name of the logger."""
    return {name: part for name, part in loggers.items() if part["_target_"] == TARGET}
