"""Trains a model, `python -m imdbattn.train model=residual_pe`, or a sweep, `experiment=ladder`."""

from omegaconf import DictConfig

from imdbattn.launch.command import command, in_sweep
from imdbattn.runs.signals import BEFORE_TRAINING, Signals


@command("train")
def main(cfg: DictConfig) -> float | None:
    """Returns the validation accuracy for Hydra's sweepers; None for a job that failed."""
    # these imports are slow, and `--help` does not need them
    if in_sweep():
        from imdbattn.launch.job_process import run_job

        return run_job(cfg)

    with Signals(BEFORE_TRAINING):
        from imdbattn.launch.single import run_single
    return run_single(cfg)


if __name__ == "__main__":
    main()
