"""Loggers. metrics.csv always; beside it W&B (default), TensorBoard or nothing.

W&B must never stop a run: without a key, or without a network, it writes its files into the run folder.
"""

import logging
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from imdbattn.data.sources import http_status
from imdbattn.errors import UserError

log = logging.getLogger(__name__)

LOGGERS = ("wandb", "tensorboard", "csv", "none")


def wandb_mode(wanted: str | None, timeout: float) -> str:
    """What was asked for, else online where a key is configured and the server answers, else offline."""
    mode = wanted or os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return "offline" if mode == "dryrun" else mode
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host = server.hostname or "api.wandb.ai"
    key = os.environ.get("WANDB_API_KEY")
    if not key:
        try:
            key = (netrc.netrc(os.environ.get("NETRC")).authenticators(host) or (None, None, None))[2]
        except (OSError, netrc.NetrcParseError):
            key = None
    if not key:
        if mode == "online":
            log.warning("W&B: no key is configured (`wandb login`), so this run is kept offline")
        return "offline"
    if http_status(server.geturl(), min(timeout, 5)) is None:
        log.warning("W&B: %s does not answer, so this run is kept offline", host)
        return "offline"
    return "online"


@rank_zero_only
def start_wandb(settings: Mapping[str, Any], folder: Path, config: Mapping[str, Any]) -> Any:
    """A W&B run, online or offline; None when even offline fails (a warning says why)."""
    import wandb

    model, data = config["model"], config["data"]
    mode = wandb_mode(settings["mode"], settings["timeout"])
    for attempt in dict.fromkeys((mode, "offline")):
        try:
            return wandb.init(
                mode=attempt,  # type: ignore[arg-type]
                dir=str(folder),
                project=settings["project"],
                entity=settings["entity"],
                group=settings["group"],
                job_type="train",
                name=f"{model['name']}-s{config['seed']}",
                tags=[model["name"], data["source"], data["tokenizer"]],
                config=dict(config),
                settings=wandb.Settings(
                    init_timeout=settings["timeout"], finish_timeout=60, silent=True, console="off"
                ),
            )
        except Exception as error:  # whatever W&B has to say, training goes on
            log.warning("W&B (%s) did not start: %s", attempt, " ".join(str(error).split()))
    return None


def build_loggers(settings: Mapping[str, Any], folder: Path, config: Mapping[str, Any]) -> list[Logger]:
    """CSV first, then what `logger` names. Raises UserError for an unknown name or a missing package."""
    name = settings["name"]
    if name not in LOGGERS:
        raise UserError(f"logger.name={name} is unknown; choose one of {', '.join(LOGGERS)}")
    loggers: list[Logger] = [CSVLogger(str(folder), name="", version="")]
    if name == "tensorboard":
        try:
            loggers.append(TensorBoardLogger(str(folder), name="", version="tensorboard"))
        except ModuleNotFoundError as error:
            raise UserError("logger=tensorboard needs a package: pip install 'tensorboard>=2.16'") from error
    if name == "wandb" and (run := start_wandb(settings, folder, config)) is not None:
        loggers.append(WandbLogger(experiment=run))
    return loggers


def finish_loggers(failed: bool) -> None:
    """Closes the W&B run of this job, so that the next job in this process starts its own (wandb issue 1314)."""
    import sys

    if "wandb" in sys.modules and (wandb := sys.modules["wandb"]).run is not None:
        wandb.finish(exit_code=int(failed))
