"""The launcher of sweeps on this machine: Hydra looks for launchers in packages of this name."""

from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LocalLauncher(Launcher):
    """Runs the jobs of a sweep on this machine, `n_jobs` at a time (None: see launch.machine)."""

    def __init__(self, n_jobs: int | None = None):
        self.n_jobs = n_jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        from imdbattn.launch.local import LocalJobs  # other commands do not load it

        jobs = LocalJobs(self.config, self.loader, self.n_jobs)
        return jobs.run(job_overrides, initial_job_idx)
