"""Runs the jobs of a sweep on this machine, one after another or side by side."""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log
from omegaconf import DictConfig, open_dict
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from imdbattn.errors import UserError, one_line
from imdbattn.launch.fork import CONSOLE_FILE
from imdbattn.launch.job import has_current_results, job_of, log_end
from imdbattn.launch.job_process import JobPool, outcome
from imdbattn.launch.machine import gpus_for, jobs_side_by_side, threads_each
from imdbattn.settings.schema import TrainingSettings

log = logging.getLogger(__name__)

PROGRESS = "|{bar:20}| {n_fmt} of {total_fmt} jobs, {remaining} left{postfix}"


class LocalJobs:
    """The jobs of a sweep; each is a fork of this process, see `job_process.start_job`.

    config: the sweep's config. n_jobs: how many jobs run side by side; None for as many as the
    machine can run of jobs like the first one.
    """

    def __init__(self, config: DictConfig, loader: ConfigLoader, n_jobs: int | None):
        if n_jobs is not None and n_jobs < 1:
            raise UserError(f"hydra.launcher.n_jobs={n_jobs} must be greater than 0, or null")
        self.config, self.loader, self.n_jobs = config, loader, n_jobs
        self.jobs = JobPool()  # its limit is chosen for the first job
        self.failed = 0  # number of jobs without results

    def run(self, batch: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        """Runs jobs with these overrides and returns what Hydra's sweepers expect: the validation
        accuracies, None for a failed job. first: the first job's number.
        """
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        tqdm.monitor_interval = 0  # tqdm starts no thread, because jobs are forks
        # a line of progress, in a terminal only
        self.line = tqdm(total=len(batch), bar_format=PROGRESS, leave=False, disable=None)
        in_terminal = not self.line.disable
        redirected = logging_redirect_tqdm() if in_terminal else nullcontext()
        results = []
        try:
            with self.line, redirected, self.jobs:
                for number, overrides in enumerate(batch, first):
                    results.append(JobReturn(overrides=overrides, status=JobStatus.COMPLETED))
                    self.begin(number, overrides, results[-1])
                while self.jobs.running:
                    self.wait()
        except BaseException:
            for each in self.jobs.running:
                log_end(each.job.folder, "stopped", "stopped with its sweep")
            raise
        return results

    def begin(self, number: int, overrides: Sequence[str], result: JobReturn) -> None:
        """Starts a job as soon as the limit allows it, unless its results exist. result: receives
        its validation accuracy at its end.
        """
        config = self.loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = config.hydra.job.id = number
        HydraConfig.instance().set_config(config)
        folder = Path(config.hydra.sweep.dir, config.hydra.sweep.subdir)
        while any(each.job.folder == folder for each in self.jobs.running):
            self.wait()  # Optuna may try the same settings twice
        try:
            job = job_of(config, folder)
            if has_current_results(folder, job.settings):
                self.end(result, log_end(folder, "kept"))
                return
        except Exception as error:  # the other jobs must still run
            self.end(result, log_end(folder, "failed", one_line(error, None)))
            return
        if not self.jobs.limit:
            self.choose_limit(job.settings)
        while len(self.jobs.running) >= self.jobs.limit:
            self.wait()
        self.jobs.start(result, job)

    def choose_limit(self, settings: TrainingSettings) -> None:
        """Decides from a job's settings how many jobs run side by side, and on which GPUs."""
        gpus = gpus_for(settings)
        limit = min(self.n_jobs or jobs_side_by_side(settings, gpus), self.line.total)
        self.jobs.gpus, self.jobs.limit = gpus, limit
        where = f" on GPU {', '.join(gpus)}" if gpus else ""
        threads = threads_each(limit)
        how = f"{limit} jobs side by side" if threads else "One job after another"
        threads_text = f", {threads} CPU thread{'s' * (threads != 1)} each" if threads else ""
        log.info("%s%s%s; output: <job>/%s", how, where, threads_text, CONSOLE_FILE)

    def wait(self) -> None:
        """Waits a moment, and records the jobs that have ended."""
        for each in self.jobs.wait():
            seconds = time.monotonic() - each.since
            common = {override.lower() for override in self.config.hydra.overrides.task}
            overrides = each.job.cfg.hydra.overrides.task
            own = (override for override in overrides if override.lower() not in common)
            about = f"{seconds:.0f} s  {' '.join(own)}"
            accuracy = log_end(each.job.folder, *outcome(each.job, each.process), about)
            self.end(each.owner, accuracy)
        self.line.set_postfix_str(f"{len(self.jobs.running)} running, {self.failed} failed")

    def end(self, result: JobReturn, accuracy: float | None) -> None:
        """Notes the result of a job that has ended."""
        result.return_value = accuracy
        self.failed += accuracy is None
        self.line.update()
