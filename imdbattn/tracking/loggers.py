"""Lightning's loggers: metrics.csv always, W&B by default, and those that conf/logger names by
`_target_`.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from imdbattn.errors import UserError, naming, only_warning
from imdbattn.settings.build import class_at, make
from imdbattn.settings.keys import as_dict, flat
from imdbattn.settings.safety import without_credentials
from imdbattn.tracking.publish import publish_run, send_changes, values_of
from imdbattn.tracking.wandb_run import finish_wandb, start_wandb

log = logging.getLogger(__name__)

NEEDS = "needs"  # key of a logger's settings: the package that it needs


def check_logger(settings: Any) -> None:
    """Raises UserError for a missing package, and for a `_target_` that is not a Logger."""
    for name, part in as_dict(settings).get("loggers", {}).items():
        package = part.get(NEEDS)
        if package and find_spec(package) is None:
            raise UserError(f"logger={name} needs a package: pip install {package}")
        class_at(part["_target_"], f"logger.loggers.{name}", Logger)


def build_loggers(
    settings: Any, folder: Path, config: Mapping[str, Any], resume: bool = False
) -> list[Logger]:
    """The loggers of a training run; `resume` continues the W&B run of its folder.

    Only the first process has loggers besides the one of metrics.csv.
    """
    loggers: list[Logger] = [CSVLogger(str(folder), name="", version="")]
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return loggers
    rung, data = config["model"]["name"], config["data"]
    environment = folder / "environment.json"
    extra = {"environment": json.loads(environment.read_text())} if environment.exists() else {}
    values = {"rung": rung, **config, **extra}
    name = f"{rung}-s{config['seed']}" + (f"-fold{fold}" if (fold := data.get("fold")) else "")
    if settings.name == "wandb":
        tokenizer = data.get("tokenizer", "seq2seq")
        tag = tokenizer if isinstance(tokenizer, str) else "own tokenizer"
        run = start_wandb(
            settings, folder, values, name, "train", [rung, data["source"], tag], resume=resume
        )
        if run is not None:
            loggers.append(WandbLogger(experiment=run))
            if settings.git:
                send_changes(run)
    for choice, part in as_dict(settings).get("loggers", {}).items():
        loggers.append(build_logger(choice, part, folder, name, values))
    return loggers


def callbacks_of(settings: Any) -> list[Callback]:
    """The callbacks of the loggers in these settings."""
    if settings.name != "wandb":
        return []
    from imdbattn.tracking.predictions import PredictionsOverTime

    return [PredictionsOverTime()]


def build_logger(
    choice: str, part: Mapping[str, Any], folder: Path, name: str, values: Mapping[str, Any]
) -> Logger:
    """The logger that a file of conf/logger describes, with the settings of the run.

    choice: name of the file. name: of the run. Raises UserError of one line that names the logger.
    """
    run = folder.resolve()
    places = {"{run}": str(run), "{parent}": str(run.parent), "{name}": name}
    arguments = {}
    for key, value in part.items():
        if isinstance(value, str):
            for place, text in places.items():
                value = value.replace(place, text)
        arguments[key] = value
    arguments.pop(NEEDS, None)
    key = f"logger.loggers.{choice}"
    logger: Logger = make(arguments, key, Logger)
    with naming(key):
        logger.log_hyperparams(flat(without_credentials(values)))
    return logger


def wandb_run_of(loggers: Iterable[Logger]) -> Any:
    """The W&B run that they log to, or None."""
    return next((logger.experiment for logger in loggers if isinstance(logger, WandbLogger)), None)


def publish_results(loggers: Iterable[Logger], folder: Path, metrics: Mapping[str, Any]) -> None:
    """Logs the results in a run folder: to W&B see `publish_run`; to others the best values, and to
    MLflow also the pictures, the predictions and metrics.json, which has the confusion matrix.

    A failure causes only a warning.
    """
    loggers = list(loggers)
    publish_run(wandb_run_of(loggers), folder, metrics)
    for logger in loggers:
        if isinstance(logger, (CSVLogger, WandbLogger)):
            continue
        with only_warning(log, f"{type(logger).__name__}: results were not logged"):
            logger.log_metrics(values_of(metrics), step=metrics["steps"])
            if isinstance(logger, MLFlowLogger):
                for file in (*folder.glob("pictures/*"), *folder.glob("*predictions.parquet")):
                    logger.experiment.log_artifact(logger.run_id, str(file), file.parent.name)
                logger.experiment.log_artifact(logger.run_id, str(folder / "metrics.json"))


def finish_loggers(loggers: Iterable[Logger], failed: bool) -> None:
    """Finishes their runs, so that nothing of the next job in this process is logged to them."""
    if (run := wandb_run_of(loggers)) is not None:
        finish_wandb(run, failed)
    for logger in loggers:
        close = getattr(logger, "close", None)
        if close is not None:
            with only_warning(log, f"{type(logger).__name__} did not end"):
                close()
