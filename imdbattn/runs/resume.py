"""What a stopped run has saved, and how a run continues from it, on a CPU with the same bits as a
run that was not interrupted. Other runs do not load this file.
"""

import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch

from imdbattn.errors import UserError
from imdbattn.folders.run_folder import LAST, finished, has_results
from imdbattn.io.files import Checkpoint, read_checkpoint, read_json, write_atomically
from imdbattn.settings.keys import NestedDict
from imdbattn.settings.logger_places import logger_places
from imdbattn.settings.trust import read_settings, trust_option, untrusted

log = logging.getLogger(__name__)


def what_is_saved(folder: Path, test: bool) -> str | None:
    """Returns what the run in a folder has saved, with the command that resumes it; None if it has
    no state. test: whether the run is scored on test.
    """
    if has_results(folder, test):
        return "the run is finished, its results are written"
    if not (folder / LAST).exists():
        return None
    command = f"python -m imdbattn.train resume={shlex.quote(os.path.relpath(folder))}"
    settings = read_settings(folder / "config.yaml")
    needed = [*untrusted(settings), *logger_places(settings.get("logger", {}), {})]
    return f"the state is saved, resume it with:  {command}{trust_option(needed)}"


def results_of(folder: Path, test: bool) -> NestedDict | None:
    """Returns the content of metrics.json if there is nothing left to do, which is logged.

    Raises UserError if a finished run must be scored on test, but has no state.
    """
    if has_results(folder, test):
        log.info("This run is already finished:")
        return read_json(folder / "metrics.json")
    if finished(folder) and not (folder / LAST).exists():
        run = os.path.relpath(folder)
        raise UserError(
            f"{run} is finished, but {LAST} is missing, so it would be trained again: score it"
            f" with imdbattn.evaluate run={run}"
        )
    return None


def read_state(folder: Path) -> Checkpoint | None:
    """Returns the state of a stopped run; None, with a warning, if none was saved."""
    if (folder / LAST).exists():
        return read_checkpoint(folder / LAST)
    log.warning("%s does not exist: training starts from the beginning", folder / LAST)
    return None


def check_unchanged(now: Mapping[str, object], before: Mapping[str, object], folder: Path) -> None:
    """Raises UserError if the run in a folder was trained with other data or devices.

    now, before: see `RunState.trained_with`.
    """
    if changed := [
        f"{key}={now[key]}, not {before[key]}" for key in now if now[key] != before[key]
    ]:
        run = f"{os.path.relpath(folder)} was trained with other data or devices"
        raise UserError(f"{run} ({changed[0]}): restore these, or start a new run")


def restore_curve(csv_logger: Any, file: Path, curve: str) -> None:
    """Lets a logger of metrics.csv continue a curve. curve: the content that the file had."""
    writer = csv_logger.experiment  # creating it removes the file
    write_atomically(file, curve)
    writer.metrics_keys = curve.splitlines()[0].split(",")


def restore_at_start(
    state: Mapping[str, torch.Tensor], trainer: L.Trainer, module: L.LightningModule
) -> None:
    """Restores what must wait until training starts: torch's random state, because other components
    draw random numbers during their setup. state: of this process.
    """
    loop = trainer.fit_loop.epoch_loop
    if loop.batch_progress.current.completed == 0:
        # With max_steps, Lightning would otherwise treat the epoch as begun.
        loop.restarting = False
    torch.set_rng_state(state["random"])
    if "cuda" in state and module.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], module.device)
