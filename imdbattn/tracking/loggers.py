"""The loggers of a run: metrics.csv, which every run has, and the loggers in conf/logger."""

import inspect
import logging
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from lightning.pytorch.loggers import CSVLogger, Logger
from packaging.requirements import Requirement

from imdbattn.errors import UserError, only_warning, wrapping_errors
from imdbattn.folders.run_folder import is_first_process
from imdbattn.io.files import read_json
from imdbattn.settings.keys import NestedDict, flattened, run_label
from imdbattn.settings.objects import import_class
from imdbattn.settings.schema import LoggerSettings, validate_as

if TYPE_CHECKING:
    from imdbattn.report.comparison_types import ComparedSet

log = logging.getLogger(__name__)

# Numbers in metrics.json that loggers receive under the same names
LOGGED_FACTS = ("parameters", "train_seconds", "epoch_seconds", "tokens_per_s")


class RunLogger:
    """A mixin for a Logger that receives tables and pictures, not only curves and settings."""

    # the class of its settings, which are checked before data are read
    settings_class: ClassVar[type[LoggerSettings]] = LoggerSettings

    def start(self, folder: Path, config: NestedDict, resume: bool) -> bool:
        """Called before the first step. Returns False, after logging a warning, to be skipped.

        Args:
            folder: the run folder.
            config: the settings of the run, and the content of environment.json as `environment`.
            resume: whether the run continues the one in the folder.
        """
        return True

    def publish(self, folder: Path, metrics: NestedDict) -> None:
        """Called when a run is finished. metrics: the content of metrics.json."""

    def end(self, failed: bool) -> None:
        """Called at the end of a run, even if it failed or was stopped."""

    def publish_comparison(self, comparison: "ComparedSet", folder: Path, group: str) -> None:
        """Called at the end of a sweep for each set of reviews on which its runs are compared.

        Args:
            comparison: the content of comparison.json.
            folder: the folder of its page, and of its figures in figures/.
            group: the name of the sweep.
        """


class AdaptedLogger(RunLogger):
    """Passes settings and results to a Lightning Logger, which receives the curves itself."""

    def __init__(self, logger: Logger):
        self.logger = logger

    def start(self, folder: Path, config: NestedDict, resume: bool) -> bool:
        self.logger.log_hyperparams(flattened(config))
        return True

    def publish(self, folder: Path, metrics: NestedDict) -> None:
        self.logger.log_metrics(logged_results(metrics), step=metrics["steps"])

    def end(self, failed: bool) -> None:
        # The Trainer has finalized the logger before the results were logged.
        self.logger.finalize("failed" if failed else "success")


class Tracker:
    """Starts the loggers of a run or a sweep, and logs what Lightning does not log. As a context
    manager, it ends the loggers of a run.

    loggers: the setting `logger`. Raises UserError for a missing package, a `_target_` that is not
    a Logger, or wrong arguments.
    """

    def __init__(self, loggers: Mapping[str, LoggerSettings]):
        self.to_start: dict[str, tuple[type[Logger], NestedDict]] = {}  # classes and arguments
        self.started: dict[str, RunLogger] = {}
        for name, settings in loggers.items():
            if settings.needs and not is_installed(settings.needs):
                raise UserError(f"logger={name} needs a package: pip install '{settings.needs}'")
            setting, values = f"logger.{name}", settings.dump()
            logger_class = import_class(settings.target, f"{setting}._target_", Logger)
            with wrapping_errors(setting):
                if issubclass(logger_class, RunLogger):
                    values = validate_as(logger_class.settings_class, values).dump()
                values = {key: values[key] for key in values if key not in ("needs", "_target_")}
                inspect.signature(logger_class).bind(**values)
            self.to_start[name] = logger_class, values

    # --- a run ------------------------------------------------------------------------------------

    def start(self, folder: Path, settings: NestedDict, resume: bool) -> list[Logger]:
        """Returns the Trainer's loggers. The logger of metrics.csv is the first and, in processes
        other than the first, the only one. Raises UserError of one line that names the logger.

        settings: the run's settings. resume: whether the run continues the one in the folder.
        """
        loggers: list[Logger] = [CSVLogger(str(folder), name="", version="")]
        if not is_first_process():
            return loggers
        config = settings | {"environment": read_json(folder / "environment.json")}
        for choice, (logger_class, arguments) in self.to_start.items():
            with wrapping_errors(f"logger.{choice}"):
                logger = logger_class(**fill_placeholders(arguments, folder, run_label(settings)))
                receiver = logger if isinstance(logger, RunLogger) else AdaptedLogger(logger)
                if receiver.start(folder, config, resume):
                    loggers.append(logger)
                    self.started[choice] = receiver
        return loggers

    def publish(self, folder: Path, metrics: NestedDict) -> None:
        """Logs the results of the run. A failure causes only a warning.

        metrics: the content of metrics.json.
        """
        for choice, logger in self.started.items():
            with only_warning(log, f"logger.{choice}: not all results were logged"):
                logger.publish(folder, metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Ends the loggers, so that they log nothing from the next job in this process."""
        for choice, logger in self.started.items():
            with only_warning(log, f"logger.{choice} did not end"):
                logger.end(failed=error is not None)

    # --- a sweep ----------------------------------------------------------------------------------

    def publish_comparison(self, comparison: "ComparedSet", folder: Path, group: str) -> None:
        """Logs a comparison of a sweep's runs to new loggers, because the runs' loggers have ended.
        A failure causes only a warning.
        """
        for choice, (logger_class, arguments) in self.to_start.items():
            if issubclass(logger_class, RunLogger):
                with only_warning(log, f"logger.{choice}: the comparison was not logged"):
                    logger = logger_class(**fill_placeholders(arguments, folder, group))
                    logger.publish_comparison(comparison, folder, group)


def is_installed(requirement: str) -> bool:
    """Returns whether a package is installed in a version that a requirement allows, such as
    `swanlab[dashboard]` or `mlflow>=3`. The requirements of its extras are not looked up.
    """
    needed = Requirement(requirement)
    try:
        return needed.specifier.contains(metadata.version(needed.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def fill_placeholders(arguments: NestedDict, folder: Path, name: str) -> NestedDict:
    """Returns a logger's arguments with {run} replaced by the folder, {parent} by the folder that
    contains it, and {name} by the name.
    """
    folder = folder.resolve()
    filled = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, str):
            value = value.replace("{run}", str(folder)).replace("{parent}", str(folder.parent))
            filled[key] = value.replace("{name}", name)
    return filled


def logged_results(metrics: NestedDict) -> dict[str, float]:
    """Returns the best validation values, the test values and the speed in metrics.json by their
    names in loggers.
    """
    values = {name: metrics[name] for name in LOGGED_FACTS if name in metrics}
    for prefix, shown in (("val_", "best/val_"), ("test_", "test/")):
        for key, value in metrics.items():
            if key.startswith(prefix) and isinstance(value, float):
                values[shown + key.removeprefix(prefix)] = value
    return values
