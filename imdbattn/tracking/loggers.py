"""The loggers of a run: metrics.csv always, and those that conf/logger names by `_target_`."""

import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities import rank_zero_only

from imdbattn.errors import UserError, naming, only_warning
from imdbattn.settings.credentials import without_credentials
from imdbattn.settings.keys import Plain, flat
from imdbattn.settings.objects import load_class, make
from imdbattn.settings.schema import Group, LoggerPart, validate_as
from imdbattn.tasks.per_class import short_name

log = logging.getLogger(__name__)

NEEDS = "needs"  # key of a logger's settings: the package that it needs
LOGGED_SCORES = ("accuracy", "loss", "bleu", "macro_f1", "largest_class")
VALUES = {  # name in loggers -> name in metrics.json
    **{f"best/val_{name}": f"val_{name}" for name in LOGGED_SCORES},
    **{f"test/{name}": f"test_{name}" for name in LOGGED_SCORES},
    **{name: name for name in ("parameters", "train_seconds", "epoch_seconds", "tokens_per_s")},
}


@dataclass(frozen=True)
class Start:
    """What a logger receives when a run starts.

    folder: of the run. name: model and seed. settings: without credentials. environment: content of
    environment.json. resume: whether it continues the run in its folder.
    """

    folder: Path
    name: str
    settings: Plain
    environment: Plain
    resume: bool


class RunLogger(Logger):
    """A Lightning Logger that receives more than curves; any other Logger receives what the methods
    of this class log.

    Attributes:
        settings: the class of its settings, which are checked before data are read; None for none.
    """

    settings: ClassVar[type[Group] | None] = None

    def start(self, run: Start) -> bool:
        """Called before the first step. Returns False, after a warning, to be left out."""
        log_settings(self, run)
        return True

    def publish(self, folder: Path, metrics: Plain, values: Mapping[str, float]) -> None:
        """Called when a run is finished.

        folder: of the run. metrics: content of metrics.json. values: those of `values_of`.
        """
        self.log_metrics(dict(values), step=metrics["steps"])

    def log_shares(self, shares: Mapping[str, np.ndarray], epoch: int, step: int) -> None:
        """Called at each validation with numbers from 0 to 1 by name, to be shown as histograms."""

    def end(self, failed: bool) -> None:
        """Called at the end of a run, also of one that failed or was stopped."""

    @classmethod
    def callbacks(cls, arguments: Plain) -> list[Callback]:
        """Returns callbacks of the Trainer that log to it. arguments: those of the class."""
        return []


def log_settings(logger: Logger, run: Start) -> None:
    """Logs the settings of a run, with dotted keys."""
    logger.log_hyperparams(flat(run.settings | {"environment": run.environment}))


def check_loggers(parts: Mapping[str, LoggerPart]) -> None:
    """Raises UserError for a missing package, a `_target_` that is not a Logger, or wrong
    arguments.
    """
    for name, part in parts.items():
        if part.needs and find_spec(part.needs) is None:
            raise UserError(f"logger={name} needs a package: pip install {part.needs}")
        key = f"logger.{name}"
        values = part.given()
        kind = load_class(part.target, f"{key}._target_", Logger)
        with naming(key):
            if issubclass(kind, RunLogger) and kind.settings is not None:
                validate_as(kind.settings, values)
            inspect.signature(kind).bind(**arguments_of(values))


def callbacks_of(parts: Mapping[str, LoggerPart]) -> list[Callback]:
    """Returns the callbacks of the loggers in these settings."""
    callbacks: list[Callback] = []
    for name, part in parts.items():
        kind = load_class(part.target, f"logger.{name}._target_", Logger)
        if issubclass(kind, RunLogger):
            callbacks += kind.callbacks(arguments_of(part.given()))
    return callbacks


def arguments_of(part: Plain) -> Plain:
    """Returns the arguments of a logger's class."""
    return {key: value for key, value in part.items() if key not in (NEEDS, "_target_")}


def build_loggers(
    parts: Mapping[str, LoggerPart], folder: Path, config: Plain, resume: bool = False
) -> list[Logger]:
    """Builds the loggers of a training run: that of metrics.csv, then those of `parts`.

    Only the first process has those. config: the settings of the run. resume: whether it continues
    the run in the folder. Raises UserError of one line that names the logger.
    """
    loggers: list[Logger] = [CSVLogger(str(folder), name="", version="")]
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return loggers
    fold = config["data"].get("fold")
    name = f"{config['model']['name']}-s{config['seed']}"
    if fold:
        name += f"-fold{fold}"
    file = folder / "environment.json"
    environment = json.loads(file.read_text()) if file.exists() else {}
    run = Start(folder, name, without_credentials(config), without_credentials(environment), resume)
    for choice, part in parts.items():
        key = f"logger.{choice}"
        logger: Logger = make(with_places(part.given(), run), key, Logger)
        started = True
        with naming(key):
            if isinstance(logger, RunLogger):
                started = logger.start(run)
            else:
                log_settings(logger, run)
        if started:
            loggers.append(logger)
    return loggers


def with_places(part: Plain, run: Start) -> Plain:
    """Returns `_target_` and arguments, with the run's values for {run}, {parent} and {name}."""
    folder = run.folder.resolve()
    replaced = {"{run}": str(folder), "{parent}": str(folder.parent), "{name}": run.name}
    arguments = {"_target_": part["_target_"], **arguments_of(part)}
    for key, value in arguments.items():
        if isinstance(value, str):
            for mark, text in replaced.items():
                value = value.replace(mark, text)
            arguments[key] = value
    return arguments


def values_of(metrics: Plain, choose_by: str = "accuracy") -> dict[str, float]:
    """Returns the best validation and test values, and the speed, by their names in loggers.

    choose_by: the metric that selects the best epoch, which may be a function of one's own.
    """
    chosen = short_name(choose_by)
    names = VALUES | {f"best/val_{chosen}": f"val_{chosen}", f"test/{chosen}": f"test_{chosen}"}
    return {name: metrics[key] for name, key in names.items() if key in metrics}


def publish_results(
    loggers: Sequence[Logger], folder: Path, metrics: Plain, choose_by: str
) -> None:
    """Logs the results in a run folder. A failure causes only a warning."""
    values = values_of(metrics, choose_by)
    for logger in loggers[1:]:  # the first one is that of metrics.csv
        with only_warning(log, f"{type(logger).__name__}: results were not logged"):
            if isinstance(logger, RunLogger):
                logger.publish(folder, metrics, values)
            else:
                logger.log_metrics(values, step=metrics["steps"])


def log_shares(
    loggers: Sequence[Logger], shares: Mapping[str, np.ndarray], epoch: int, step: int
) -> None:
    """Logs histograms to the loggers that have them. A failure causes only a warning."""
    for logger in loggers:
        if isinstance(logger, RunLogger):
            with only_warning(log, f"{type(logger).__name__}: histograms were not logged"):
                logger.log_shares(shares, epoch, step)


def finish_loggers(loggers: Sequence[Logger], failed: bool) -> None:
    """Finishes their runs, so that nothing of the next job in this process is logged to them."""
    for logger in loggers[1:]:
        with only_warning(log, f"{type(logger).__name__} did not end"):
            if isinstance(logger, RunLogger):
                logger.end(failed)
            elif hasattr(logger, "close"):
                logger.close()
