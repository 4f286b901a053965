"""Loggers. metrics.csv always; beside it W&B (default), TensorBoard or nothing."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from imdbattn.errors import UserError
from imdbattn.tracking.wandb_run import start_wandb


@rank_zero_only
def start_training_run(settings: Mapping[str, Any], folder: Path, config: Mapping[str, Any], resume: bool) -> Any:
    """The W&B run of a training job, named `<rung>-s<seed>`; None where W&B does not start."""
    model, data = config["model"], config["data"]
    facts = folder / "environment.json"  # versions, hardware, commit
    environment = {"environment": json.loads(facts.read_text())} if facts.exists() else {}
    return start_wandb(
        settings,
        folder,
        {"rung": model["name"], **config, **environment},
        name=f"{model['name']}-s{config['seed']}",
        job_type="train",
        tags=[model["name"], data["source"], *([data["tokenizer"]] if "tokenizer" in data else ["seq2seq"])],
        resume=resume,
    )


def check_logger(settings: Mapping[str, Any]) -> None:
    """Raises UserError for a missing package."""
    if settings["name"] == "tensorboard" and not any(map(find_spec, ("tensorboard", "tensorboardX"))):
        raise UserError("logger=tensorboard needs a package: pip install 'tensorboard>=2.16'")


def build_loggers(
    settings: Mapping[str, Any], folder: Path, config: Mapping[str, Any], resume: bool = False
) -> list[Logger]:
    """CSV first, then what `logger` names; `resume` continues the folder's W&B run."""
    name = settings["name"]
    loggers: list[Logger] = [CSVLogger(str(folder), name="", version="")]
    if name == "tensorboard":
        loggers.append(TensorBoardLogger(str(folder), name="", version="tensorboard"))
    if name == "wandb" and (run := start_training_run(settings, folder, config, resume)) is not None:
        loggers.append(WandbLogger(experiment=run))
    return loggers


def finish_loggers(failed: bool) -> None:
    """Closes the W&B run of this job, so that the next job in this process starts its own (wandb issue 1314)."""
    import sys

    if "wandb" in sys.modules and (wandb := sys.modules["wandb"]).run is not None:
        wandb.finish(exit_code=int(failed))
