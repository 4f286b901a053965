"""Trains one model, `python -m imdbattn.train model=residual_pe`, or a sweep,
`+experiment=ladder`.
"""

import importlib
import os
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.launch.command import (
    PARENT_PID,
    QUOTED,
    SWEEP_PID,
    command,
    in_sweep,
    plain_dict,
    without_gc,
)
from imdbattn.settings.keys import named_overrides


@command("train", *QUOTED)
def main(cfg: DictConfig) -> float | None:
    """Returns the best validation accuracy, for Hydra's sweepers; None for a job that failed."""
    if in_sweep():
        from imdbattn.launch.job import run_job

        return run_job(cfg)

    from imdbattn.launch.resume import resumed, was_restarted  # pydantic, which is slow to import
    from imdbattn.tasks.task import validate

    settings, job = plain_dict(cfg), HydraConfig.get()
    folder = Path(settings["resume"] or job.runtime.output_dir).resolve()  # runs/latest is a link
    named = any(word.startswith("hydra.run.dir=") for word in job.overrides.hydra)
    if "TORCHELASTIC_RUN_ID" in os.environ and not named and not settings["resume"]:
        raise UserError(
            "torchrun starts several processes, which need the same folder: add"
            " hydra.run.dir=runs/<a name>"
        )
    if resume := bool(settings["resume"]) or was_restarted(folder):
        settings = resumed(settings, job.overrides.task, folder)
    else:
        settings["overrides"] = named_overrides(job.overrides.task, settings)
    valid = validate(settings)
    if os.environ.get(SWEEP_PID) or os.environ.get("LOCAL_RANK", "0") != "0":
        from imdbattn.launch.job import end_with

        end_with(int(os.environ.get(PARENT_PID, os.getppid())))
    os.environ[PARENT_PID] = str(os.getpid())  # for the processes that DDP starts
    # these imports take seconds, and `--help` and error messages do not need them
    with without_gc():
        if valid.logger.name == "wandb":
            with suppress(Exception):  # a broken W&B does not stop training
                # wandb.init imports it: 0.4 s now, 1.5 s once torch is loaded.
                importlib.import_module("wandb.apis.public")
        from imdbattn.runs.fit import fit

    return fit(valid, folder, resume)["val_accuracy"]


if __name__ == "__main__":
    main()
