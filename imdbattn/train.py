"""Trains a model, `python -m imdbattn.train model=residual_pe`, or a sweep, `experiment=ladder`."""

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from imdbattn.launch.command import run_command


def train(cfg: DictConfig) -> float | None:
    """Returns the validation accuracy for Hydra's sweepers; None for a job that failed."""
    # the imports are slow, and `--help` does not need them
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        # a launcher that is not ours runs each job of a sweep in this way
        from imdbattn.launch.job_process import run_job

        return run_job(cfg)

    from imdbattn.launch.single_run import run_single

    return run_single(cfg)


def main() -> None:
    run_command("train", train)


if __name__ == "__main__":
    main()
