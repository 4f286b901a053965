"""Lightning's loggers: metrics.csv always, and W&B (default), TensorBoard or nothing in
addition.
"""

import json
import logging
import os
import shlex
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from imdbattn.errors import UserError
from imdbattn.tracking.wandb_run import finish_wandb, start_wandb

log = logging.getLogger(__name__)


def check_logger(settings: Any) -> None:
    """Raises UserError for a missing package."""
    if settings.name == "tensorboard" and not any(map(find_spec, ("tensorboard", "tensorboardX"))):
        raise UserError("logger=tensorboard needs a package: pip install 'tensorboard>=2.16'")


def build_loggers(
    settings: Any, folder: Path, config: Mapping[str, Any], resume: bool = False
) -> list[Logger]:
    """The loggers of a training run; `resume` continues the W&B run of its folder."""
    loggers: list[Logger] = [CSVLogger(str(folder), name="", version="")]
    if settings.name == "tensorboard":
        loggers.append(TensorBoardLogger(str(folder), name="", version="tensorboard"))
        log.info("learning curves:  tensorboard --logdir %s", shlex.quote(os.path.relpath(folder)))
    if settings.name == "wandb" and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        rung, data = config["model"]["name"], config["data"]
        environment = folder / "environment.json"
        extra = {"environment": json.loads(environment.read_text())} if environment.exists() else {}
        tags = [rung, data["source"], data.get("tokenizer", "seq2seq")]
        values = {"rung": rung, **config, **extra}
        name = f"{rung}-s{config['seed']}" + (f"-fold{fold}" if (fold := data.get("fold")) else "")
        run = start_wandb(settings, folder, values, name, "train", tags, resume=resume)
        if run is not None:
            loggers.append(WandbLogger(experiment=run))
    return loggers


def wandb_run_of(loggers: Iterable[Logger]) -> Any:
    """The W&B run that they log to, or None."""
    return next((logger.experiment for logger in loggers if isinstance(logger, WandbLogger)), None)


def finish_loggers(loggers: Iterable[Logger], failed: bool) -> None:
    """Finishes their W&B run, so that nothing of the next job in this process is logged to it."""
    if (run := wandb_run_of(loggers)) is not None:
        finish_wandb(run, failed)
