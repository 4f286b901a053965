"""The loggers of a run: metrics.csv, which every run has, and those that conf/logger names."""

import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities import rank_zero_only

from imdbattn.errors import UserError, only_warning, wrapping_errors
from imdbattn.folders.run_folder import group_of
from imdbattn.io.files import read_json
from imdbattn.settings.credentials import without_credentials
from imdbattn.settings.keys import Plain, flat
from imdbattn.settings.objects import load_class, make
from imdbattn.settings.schema import Group, LoggerSettings, validate_as
from imdbattn.tasks.per_class import short_name

if TYPE_CHECKING:
    from imdbattn.report.content import ComparedSet

log = logging.getLogger(__name__)

LOGGED_SCORES = ("accuracy", "loss", "bleu", "macro_f1", "largest_class")
VALUES = {  # name in loggers -> name in metrics.json
    **{f"best/val_{name}": f"val_{name}" for name in LOGGED_SCORES},
    **{f"test/{name}": f"test_{name}" for name in LOGGED_SCORES},
    **{name: name for name in ("parameters", "train_seconds", "epoch_seconds", "tokens_per_s")},
}


@dataclass(frozen=True)
class StartedRun:
    """What a logger receives when a run starts."""

    folder: Path  # the run folder
    name: str  # the model and the seed
    settings: Plain  # without credentials
    environment: Plain  # the content of environment.json
    resume: bool  # whether it continues the run in its folder
    group: str | None  # the name of the sweep or search that it belongs to


class RunLogger(Logger):
    """A Lightning Logger that receives more than settings, curves and results."""

    # the class of its settings, which are checked before data are read
    settings: ClassVar[type[Group] | None] = None

    def begin_sweep(self) -> None:
        """Called in the process of a sweep before its jobs start, which inherit the environment."""

    def start(self, run: StartedRun) -> bool:
        """Called before the first step. Returns False, after a warning, to be left out."""
        return True

    def log_shares(self, shares: Mapping[str, np.ndarray], epoch: int, step: int) -> None:
        """Called at each validation with numbers from 0 to 1 by name, to be shown as histograms."""

    def publish(self, folder: Path, metrics: Plain, values: Mapping[str, float]) -> None:
        """Called when a run is finished.

        Args:
            folder: the run folder.
            metrics: the content of metrics.json.
            values: the results by their names in loggers, see `values_of`.
        """

    def end(self, failed: bool) -> None:
        """Called at the end of a run, also of one that failed or was stopped."""

    def publish_comparison(self, comparison: "ComparedSet", folder: Path, group: str) -> None:
        """Called at the end of a sweep for each set of reviews on which its runs are compared.

        Args:
            comparison: the content of comparison.json.
            folder: the folder of its page, and of its figures in figures/.
            group: the name of the sweep.
        """


class Tracker:
    """Starts and ends the loggers of a run or a sweep, and logs what Lightning does not log.

    named: the setting `logger`. Raises UserError for a missing package, a `_target_` that is not a
    Logger, or wrong arguments.
    """

    def __init__(self, named: Mapping[str, LoggerSettings]):
        self.loggers: list[Logger] = []  # others than that of metrics.csv
        self.to_start: dict[str, Plain] = {}  # `_target_` and arguments, by name
        for name, settings in named.items():
            if settings.needs and find_spec(settings.needs) is None:
                raise UserError(f"logger={name} needs a package: pip install {settings.needs}")
            setting, values = f"logger.{name}", settings.given()
            kind = load_class(settings.target, f"{setting}._target_", Logger)
            with wrapping_errors(setting):
                if issubclass(kind, RunLogger) and kind.settings is not None:
                    values = validate_as(kind.settings, values).given()
                own = ("needs", "_target_")
                arguments = {key: value for key, value in values.items() if key not in own}
                inspect.signature(kind).bind(**arguments)
            self.to_start[name] = {"_target_": settings.target, **arguments}

    def start(self, folder: Path, settings: Plain, resume: bool) -> list[Logger]:
        """Returns the loggers of the Trainer, that of metrics.csv first; in processes other than
        the first it is the only one. Raises UserError of one line that names the logger.

        settings: of the run. resume: whether it continues the run in the folder.
        """
        metrics_csv = CSVLogger(str(folder), name="", version="")
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return [metrics_csv]
        fold = settings["data"].get("fold")
        name = f"{settings['model']['name']}-s{settings['seed']}"
        if fold:
            name += f"-fold{fold}"
        file = folder / "environment.json"
        environment = without_credentials(read_json(file) if file.exists() else {})
        shown, group = without_credentials(settings), group_of(folder)
        run = StartedRun(folder, name, shown, environment, resume, group)
        for choice, arguments in self.to_start.items():
            setting = f"logger.{choice}"
            logger: Logger = make(filled_in(arguments, run), setting, Logger)
            with wrapping_errors(setting):
                if not isinstance(logger, RunLogger):
                    logger.log_hyperparams(flat(run.settings | {"environment": run.environment}))
                elif not logger.start(run):
                    continue
            self.loggers.append(logger)
        return [metrics_csv, *self.loggers]

    def log_shares(self, shares: Mapping[str, np.ndarray], epoch: int, step: int) -> None:
        """Logs histograms to the loggers that have them. A failure causes only a warning."""
        for logger in self.loggers:
            with only_warning(log, f"{type(logger).__name__}: histograms were not logged"):
                if isinstance(logger, RunLogger):
                    logger.log_shares(shares, epoch, step)

    def publish(self, folder: Path, metrics: Plain, choose_by: str) -> None:
        """Logs the results in a run folder. A failure causes only a warning.

        metrics: content of metrics.json. choose_by: the metric that selects the best epoch.
        """
        values = values_of(metrics, choose_by)
        for logger in self.loggers:
            with only_warning(log, f"{type(logger).__name__}: results were not logged"):
                if isinstance(logger, RunLogger):
                    logger.publish(folder, metrics, values)
                else:
                    logger.log_metrics(values, step=metrics["steps"])

    def finish(self, failed: bool) -> None:
        """Ends the loggers, so that nothing of the next job in this process is logged to them."""
        for logger in self.loggers:
            with only_warning(log, f"{type(logger).__name__} did not end"):
                if isinstance(logger, RunLogger):
                    logger.end(failed)
                else:  # again, after the results
                    logger.finalize("failed" if failed else "success")

    def begin_sweep(self) -> None:
        """Prepares the loggers for the jobs of a sweep, which start loggers of their own."""
        for logger in self.run_loggers():
            logger.begin_sweep()

    def publish_comparison(self, comparison: "ComparedSet", folder: Path, group: str) -> None:
        """Logs a comparison of the runs of a sweep. A failure causes only a warning."""
        for logger in self.run_loggers():
            with only_warning(log, f"{type(logger).__name__}: the comparison was not logged"):
                logger.publish_comparison(comparison, folder, group)

    def run_loggers(self) -> Iterator[RunLogger]:
        """Yields new loggers, which are not started, of those that receive more than curves."""
        for choice, arguments in self.to_start.items():
            if issubclass(load_class(arguments["_target_"], choice, Logger), RunLogger):
                yield make(arguments, f"logger.{choice}", RunLogger)


def filled_in(arguments: Plain, run: StartedRun) -> Plain:
    """Returns `_target_` and arguments, with the run's values for {run}, {parent} and {name}."""
    folder = run.folder.resolve()
    filled = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, str):
            value = value.replace("{run}", str(folder)).replace("{parent}", str(folder.parent))
            filled[key] = value.replace("{name}", run.name)
    return filled


def values_of(metrics: Plain, choose_by: str = "accuracy") -> dict[str, float]:
    """Returns the best validation and test values, and the speed, by their names in loggers.

    choose_by: the metric that selects the best epoch, which may be a custom function.
    """
    chosen = short_name(choose_by)
    names = VALUES | {f"best/val_{chosen}": f"val_{chosen}", f"test/{chosen}": f"test_{chosen}"}
    return {name: metrics[key] for name, key in names.items() if key in metrics}
