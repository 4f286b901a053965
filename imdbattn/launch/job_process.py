"""The processes in which the jobs of a sweep, and the trials of a search, train."""

import copy
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Self

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from imdbattn.errors import one_line
from imdbattn.folders.run_folder import has_results
from imdbattn.launch.failure import fail
from imdbattn.launch.fork import STDERR_FILE, start_fork, stop, wait_for
from imdbattn.launch.hydra_config import quote
from imdbattn.launch.job import Job, has_current_results, job_of, log_end, resumable
from imdbattn.launch.machine import one_process, threads_each
from imdbattn.launch.single_run import run_single
from imdbattn.settings.keys import as_text
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.task import task_of

POLL = 0.1  # seconds between two checks of the processes


def run_job(cfg: DictConfig) -> float | None:
    """Runs one job in the process of a launcher that is not ours, such as SLURM's, unless its
    folder already contains its results.

    Returns the best validation accuracy, or None for a failed or stopped job, as Optuna expects.
    """
    hydra: Any = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        with open_dict(cfg):
            cfg.hydra = hydra
        job = job_of(cfg, folder)
        if has_current_results(folder, job.settings):
            return log_end(folder, "kept")
        # a process of Ray has threads, which a fork does not copy
        cpus = OmegaConf.select(hydra, "launcher.ray.remote.num_cpus")
        process = wait_for(start_job(job, cpus, as_command=True))
        return log_end(folder, *outcome(job, process))
    except Exception as error:  # the other jobs must still run
        return log_end(folder, "failed", one_line(error, None))
    except BaseException:  # Ctrl-C or SIGTERM
        log_end(folder, "stopped", "stopped with its sweep")
        raise


def start_job(
    job: Job, threads: int | None, gpu: str | None = None, as_command: bool = False
) -> BaseProcess:
    """Starts a job in a process of its own, which writes into its folder, and continues from the
    last checkpoint in it.

    A process of its own frees its memory and its GPU at its end, has its own W&B run, and can crash
    without ending the sweep.

    Args:
        job: the job.
        threads: number of threads, if the settings have none.
        gpu: the only GPU that it sees, by its name in CUDA_VISIBLE_DEVICES.
        as_command: whether the process is `python -m imdbattn.train`, not a fork of this one. Jobs
            that need several processes, and all jobs outside of Linux, are commands in any case.
    """
    folder, settings = job.folder, job.settings
    folder.mkdir(parents=True, exist_ok=True)
    resume = str(folder) if resumable(folder, settings) else None
    cfg = copy.deepcopy(job.cfg)
    with open_dict(cfg), read_write(cfg.hydra):
        for key, value in (("threads", settings.threads or threads), ("resume", resume)):
            cfg[key] = value
            # on a command line, the last value of a key counts
            cfg.hydra.overrides.task.append(quote(f"{key}={as_text(value)}"))
    # In a SLURM task, Lightning would wait for the processes of srun.
    environment = {**os.environ, "SLURM_JOB_NAME": "interactive"}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    if as_command or not one_process(settings.trainer) or sys.platform != "linux":
        overrides = [*cfg.hydra.overrides.task, "hydra.mode=RUN", *search_path()]
        overrides.append(quote(f"hydra.run.dir={folder}"))
        return start_fork(partial(execute, overrides), environment, folder)
    import_for_training(settings)
    return start_fork(partial(train_in_fork, cfg, folder), environment, folder)


def execute(overrides: Sequence[str]) -> None:
    """Replaces this process by `python -m imdbattn.train overrides...`."""
    os.execv(sys.executable, [sys.executable, "-m", "imdbattn.train", *overrides])


def search_path() -> list[str]:
    """Returns the folders of --config-dir and hydra.searchpath, as an override."""
    sources = HydraConfig.get().runtime.config_sources
    folders = [s.path for s in sources if s.provider not in ("hydra", "main", "schema")]
    urls = (json.dumps(path if "://" in path else f"file://{path}") for path in folders)
    return [f"hydra.searchpath=[{','.join(urls)}]"] if folders else []


def train_in_fork(cfg: DictConfig, folder: Path) -> None:
    """Trains in this process, a fork, as `python -m imdbattn.train` does. cfg: with `hydra`."""
    with read_write(cfg.hydra):
        cfg.hydra.runtime.output_dir, cfg.hydra.job.name = str(folder), "train"
    HydraConfig.instance().set_config(cfg)
    configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)
    os.environ |= {name: str(value) for name, value in cfg.hydra.job.env_set.items()}
    try:
        run_single(cfg)
    except Exception as error:
        fail(error, "train", folder)


def import_for_training(settings: TrainingSettings) -> None:
    """Imports what runs with these settings import, and what a sweep needs at its end, so that a
    fork imports nothing again.

    Custom classes are left to the runs.
    """
    task = task_of(settings)
    classes = [task.data, task.module, task.predictor]
    classes += [logger.target for logger in settings.logger.values()]
    for name in classes:
        if isinstance(name, str) and name.startswith("imdbattn."):
            importlib.import_module(name.rpartition(".")[0])

    import matplotlib.backends.backend_agg  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import imdbattn.report.comparison_page
    import imdbattn.runs.fit
    import imdbattn.runs.pictures  # noqa: F401

    gc.freeze()  # collections in a fork would copy the memory that it shares


def outcome(job: Job, process: BaseProcess) -> tuple[str, str]:
    """Returns the status of a job whose process has ended, and the reason unless that is `done`:
    the last line in its stderr.log. The file is removed if the process ended without an error.
    """
    code, errors = process.exitcode or 0, job.folder / STDERR_FILE
    if code < 0:
        return "failed", f"killed by {signal.Signals(-code).name}"
    if code:
        lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
        messages = [line for line in lines if line.startswith("error: ")]
        last = (messages or lines or [f"exit status {code}"])[-1].strip().removeprefix("error: ")
        has_saved = code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        return "stopped" if has_saved else "failed", f"{last} (see {errors})"
    errors.unlink(missing_ok=True)
    if job.settings.is_debug or has_results(job.folder, job.settings.test):
        return "done", ""
    return "failed", "it ended without its results"


class RunningJob(NamedTuple):
    """A job that is training. owner: what receives its results, Hydra's JobReturn of a sweep or the
    trial of a search. since: when it started, on the clock of time.monotonic.
    """

    owner: Any
    job: Job
    process: BaseProcess
    gpu: str | None
    since: float


class JobPool:
    """The jobs of a sweep or a search that are training; an exception in its context stops them.

    gpus: the GPUs that the jobs are spread over. limit: how many jobs train at once.
    """

    def __init__(self, gpus: Sequence[str] = (), limit: int = 0):
        self.gpus, self.limit = gpus, limit
        self.running: list[RunningJob] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, reason: BaseException | None, traceback: object) -> None:
        if reason is not None:
            stop([each.process for each in self.running])

    def start(self, owner: object, job: Job) -> None:
        """Starts a job, see `start_job`, on the GPU with the fewest jobs."""
        used = [each.gpu for each in self.running]
        gpu = min(self.gpus, key=used.count, default=None)
        process = start_job(job, threads_each(self.limit), gpu)
        self.running.append(RunningJob(owner, job, process, gpu, time.monotonic()))

    def wait(self) -> list[RunningJob]:
        """Waits a moment, and returns the jobs that have ended."""
        time.sleep(POLL)
        ended = [each for each in self.running if each.process.exitcode is not None]
        self.running = [each for each in self.running if each not in ended]
        return ended
