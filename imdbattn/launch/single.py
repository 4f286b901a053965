"""A single run of imdbattn.train in this process, and in the processes that DDP starts."""

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError
from imdbattn.io.processes import PARENT_PID, SWEEP_PID
from imdbattn.launch.command import plain_dict
from imdbattn.launch.process import end_with, without_gc
from imdbattn.launch.resume import plan
from imdbattn.settings.schema import validate


def run_single(cfg: DictConfig) -> float:
    """Trains the model that `cfg` describes, and returns its best validation accuracy."""
    settings, job = plain_dict(cfg), HydraConfig.get()
    named = any(word.startswith("hydra.run.dir=") for word in job.overrides.hydra)
    if "TORCHELASTIC_RUN_ID" in os.environ and not named and not settings["resume"]:
        raise UserError(
            "torchrun starts several processes, which need the same folder: add"
            " hydra.run.dir=runs/<a name>"
        )
    planned = plan(settings, job.overrides.task, Path(job.runtime.output_dir).resolve())
    valid = validate(planned.settings)
    if os.environ.get(SWEEP_PID) or os.environ.get("LOCAL_RANK", "0") != "0":
        end_with(int(os.environ.get(PARENT_PID, os.getppid())))
    os.environ[PARENT_PID] = str(os.getpid())  # for the processes that DDP starts
    # these imports take seconds, and error messages do not need them
    with without_gc():
        if valid.logger.name == "wandb":
            with suppress(Exception):  # a broken W&B does not stop training
                # wandb.init imports it: 0.4 s now, 1.5 s once torch is loaded.
                importlib.import_module("wandb.apis.public")
        from imdbattn.runs.fit import fit
    valid = with_decided_source(valid)
    metrics = fit(valid, planned.folder, planned.resume, planned.start)
    return float(metrics["val_accuracy"])


def with_decided_source(cfg: DictConfig) -> DictConfig:
    """Returns the settings of a run in several processes with what data.source=auto stands for.

    Lightning starts the other processes with the same command line, to which it is added: their
    data must not differ.
    """
    one_device = cfg.trainer.get("devices") in (1, "1") and cfg.trainer.get("num_nodes", 1) == 1
    if one_device or cfg.data.source != "auto":
        return cfg
    from imdbattn.data.reviews import decided_source

    if (source := decided_source(cfg)) is None:
        return cfg
    sys.argv.append(f"data.source={source}")
    return validate(OmegaConf.merge(cfg, {"data": {"source": source}}))
