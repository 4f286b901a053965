"""The tracker of a run that logs to more than metrics.csv."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from imdbattn.runs.callbacks import Tracker
from imdbattn.settings.keys import Plain
from imdbattn.settings.schema import LoggerPart
from imdbattn.tracking.loggers import (
    build_loggers,
    callbacks_of,
    check_loggers,
    finish_loggers,
    log_shares,
    publish_results,
)


class LoggersTracker(Tracker):
    """Logs to metrics.csv and to the loggers that conf/logger names.

    parts: the setting `logger`. Raises UserError for a logger that cannot be used.
    """

    def __init__(self, parts: Mapping[str, LoggerPart]):
        check_loggers(parts)
        self.parts = parts
        self.loggers: list[Logger] = []

    def callbacks(self) -> Sequence[Callback]:
        return callbacks_of(self.parts)

    def start(self, folder: Path, settings: Plain, resume: bool) -> list[Logger]:
        self.loggers = build_loggers(self.parts, folder, settings, resume)
        return self.loggers

    def log_shares(self, shares: Mapping[str, np.ndarray], epoch: int, step: int) -> None:
        log_shares(self.loggers, shares, epoch, step)

    def publish(self, folder: Path, metrics: Plain, choose_by: str) -> None:
        publish_results(self.loggers, folder, metrics, choose_by)

    def finish(self, failed: bool) -> None:
        finish_loggers(self.loggers, failed)
