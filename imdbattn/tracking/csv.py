"""The learning curve of a run in metrics.csv, which every run has."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from lightning.pytorch.loggers import CSVLogger, Logger

from imdbattn.settings.keys import Plain


class CsvTracker:
    """Reports the progress of a run; this class writes metrics.csv only."""

    def __init__(self) -> None:
        self.loggers: list[Logger] = []  # others than that of metrics.csv

    def start(self, folder: Path, settings: Plain, resume: bool) -> list[Logger]:
        """Returns the loggers of the Trainer, that of metrics.csv first.

        settings: of the run. resume: whether it continues the run in the folder.
        """
        return [CSVLogger(str(folder), name="", version="")]

    def log_shares(self, shares: Mapping[str, np.ndarray], epoch: int, step: int) -> None:
        """Logs histograms to the loggers that have them. A failure causes only a warning."""

    def publish(self, folder: Path, metrics: Plain, choose_by: str) -> None:
        """Logs the results in a run folder. A failure causes only a warning.

        metrics: content of metrics.json. choose_by: the metric that selects the best epoch.
        """

    def finish(self, failed: bool) -> None:
        """Ends the loggers, so that nothing of the next job in this process is logged to them."""
