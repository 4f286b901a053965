"""Runs the jobs of a sweep on this machine, one after another or side by side."""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import mean

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log
from omegaconf import DictConfig, open_dict
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from imdbattn.errors import UserError, in_line
from imdbattn.launch.fork import CONSOLE
from imdbattn.launch.job import Job, SideBySide, complete, ended, job_of, outcome
from imdbattn.launch.machine import gpus_for, jobs_side_by_side, threads_each
from imdbattn.settings.schema import Training

log = logging.getLogger(__name__)


class Line(tqdm):
    """The progress of a sweep, in a terminal only."""

    monitor_interval = 0  # no thread, because jobs are forks

    def __init__(self, jobs: int):
        super().__init__(total=jobs, bar_format="|{bar:20}| {desc}", leave=False, disable=None)


class LocalJobs:
    """The jobs of a sweep; each is a fork of this process, see `job.start_run`.

    config: of the sweep. n_jobs: how many run side by side; None: what the machine takes of jobs
    like the first one.
    """

    def __init__(self, config: DictConfig, loader: ConfigLoader, n_jobs: int | None):
        if n_jobs is not None and n_jobs < 1:
            raise UserError(f"hydra.launcher.n_jobs={n_jobs} must be greater than 0, or null")
        self.config, self.loader, self.n_jobs = config, loader, n_jobs
        self.runs = SideBySide()  # its places are chosen for the first job
        self.jobs: dict[int, Job] = {}  # number of a job that has started -> job
        self.accuracies: dict[int, float | None] = {}  # number of a job that has ended -> result
        self.seconds: list[float] = []  # of the jobs that have run
        self.best = self.shown = ""  # in the progress line

    def run(self, batch: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        """Runs jobs with these overrides and returns what Hydra's sweepers expect: the validation
        accuracies, None for a failed job. first: the number of the first one.
        """
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        self.line = Line(len(batch))
        in_terminal = not self.line.disable
        redirected = logging_redirect_tqdm() if in_terminal else nullcontext()
        try:
            with self.line, redirected, self.runs:
                for number, overrides in enumerate(batch, first):
                    self.begin(number, overrides)
                while self.runs.running:
                    self.wait()
        except BaseException:
            for one in self.runs.running:
                ended(one.folder, "stopped", "stopped with its sweep")
            raise
        results = []
        for number, overrides in enumerate(batch, first):
            result = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
            result.return_value = self.accuracies[number]
            results.append(result)
        return results

    def begin(self, number: int, overrides: Sequence[str]) -> None:
        """Starts a job as soon as there is a place for it, unless its results exist."""
        config = self.loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = config.hydra.job.id = number
        HydraConfig.instance().set_config(config)
        folder = Path(config.hydra.sweep.dir, config.hydra.sweep.subdir)
        while any(one.folder == folder for one in self.runs.running):
            self.wait()  # Optuna may try the same settings twice
        try:
            job = job_of(config, folder)
            has_results = complete(folder, job.settings)
        except Exception as error:  # any exception: the other jobs run nevertheless
            self.end(number, folder, "failed", in_line(error, None))
            return
        if has_results:
            self.end(number, folder, "kept", settings=job.settings)
            return
        if not self.runs.places:
            self.choose_places(job.settings)
        while len(self.runs.running) >= self.runs.places:
            self.wait()
        self.jobs[number] = job
        self.runs.start(number, job.cfg, job.settings, folder)

    def choose_places(self, settings: Training) -> None:
        """Decides from the settings of a job how many run side by side, and on which GPUs."""
        gpus = gpus_for(settings)
        places = min(self.n_jobs or jobs_side_by_side(settings, gpus), self.line.total)
        self.runs.gpus, self.runs.places = gpus, places
        where = f"GPU {', '.join(gpus)}" if gpus else "the CPU"
        threads = threads_each(places)
        how = f"{places} jobs side by side" if threads else "One job after another"
        threads_text = f", {threads} CPU thread{'s' * (threads != 1)} each" if threads else ""
        log.info("%s on %s%s; output: <job>/%s", how, where, threads_text, CONSOLE)

    def wait(self) -> None:
        """Waits a moment, and takes note of the jobs that have ended."""
        for one in self.runs.wait():
            job = self.jobs[one.number]
            seconds = time.monotonic() - one.since
            self.seconds.append(seconds)
            status, reason = outcome(job, one.process)
            common = {override.lower() for override in self.config.hydra.overrides.task}
            own = (word for word in job.cfg.hydra.overrides.task if word.lower() not in common)
            about = f"{seconds:.0f} s  {' '.join(own)}"
            self.end(one.number, one.folder, status, reason, job.settings, about)
        self.show()

    def end(
        self,
        number: int,
        folder: Path,
        status: str,
        reason: str = "",
        settings: Training | None = None,
        about: str = "",
    ) -> None:
        """Takes note of a job that has ended; see `job.ended`."""
        accuracy = ended(folder, status, reason, settings, about)
        self.accuracies[number] = accuracy
        values = [value for value in self.accuracies.values() if value is not None]
        if accuracy is not None and accuracy == max(values):
            self.best = f", best {100 * accuracy:.2f} % ({folder.name})"
        self.line.n += 1
        self.show()

    def show(self) -> None:
        """Writes the progress line again if it has changed."""
        done = sum(value is not None for value in self.accuracies.values())
        running = self.runs.running
        counts = {"done": done, "running": len(running), "failed": self.line.n - done}
        text = ", ".join(f"{count} {name}" for name, count in counts.items())
        if self.seconds:
            now, each = time.monotonic(), mean(self.seconds)
            waiting = self.line.total - self.line.n - len(running)
            left = sum(max(each - (now - one.since), 0) for one in running) + each * waiting
            text += f", {left / self.runs.places:.0f} s left"
        if text + self.best != self.shown:
            self.shown = text + self.best
            self.line.set_description_str(self.shown)
