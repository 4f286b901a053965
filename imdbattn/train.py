"""Trains one rung, `python -m imdbattn.train model=residual_pe`, or a sweep of them, `+experiment=ladder`."""

import importlib
import os
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.settings.cli import FIRST_PID, SWEEP_PID, command, in_sweep, plain_dict, without_gc


@command("train", "data.path", "data.glove.path", "data.cache_dir", "data.unlabelled", "init", "resume")
def main(cfg: DictConfig) -> float | None:
    """Returns the best validation accuracy, which Hydra's sweepers maximise or ignore; None for a job that failed."""
    if in_sweep():
        from imdbattn.sweep.sweep import run_job

        return run_job(cfg)
    from imdbattn.runs.resume import begun_before, resumed
    from imdbattn.settings.schema import validate  # pydantic: `--help` does not wait for it

    settings, job = plain_dict(cfg), HydraConfig.get()
    folder = Path(job.runtime.output_dir).resolve()  # runs/latest is a link
    named = any(word.startswith("hydra.run.dir=") for word in job.overrides.hydra)
    if "TORCHELASTIC_RUN_ID" in os.environ and not named and not settings["resume"]:
        raise UserError("torchrun starts several processes that need one folder: add hydra.run.dir=runs/<a name>")
    if settings["resume"] and Path(settings["resume"]).resolve() != folder:
        raise UserError("resume= and hydra.run.dir= name two folders: leave hydra.run.dir= away")
    if resume := bool(settings["resume"]) or begun_before(folder):
        settings = resumed(settings, job.overrides.task, folder)
    settings = validate(settings, extra="allow" if resume else None).model_dump()
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    if os.environ.get(SWEEP_PID) or not first:
        from imdbattn.sweep.sweep import end_with_parent

        end_with_parent(None if first or FIRST_PID not in os.environ else int(os.environ[FIRST_PID]))
    if first:
        os.environ[FIRST_PID] = str(os.getpid())
    with without_gc():  # they take seconds: `--help` and a wrong key don't wait
        if settings["logger"]["name"] == "wandb":
            with suppress(Exception):  # what W&B has to say does not stop training
                # wandb.init does: in 0.4 s, but in 1.5 s once torch is loaded.
                importlib.import_module("wandb.apis.public")
        from imdbattn.runs.fit import fit

    return fit(settings, folder, resume)["val_accuracy"]


if __name__ == "__main__":
    main()
