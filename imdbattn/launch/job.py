"""One job of a sweep: an ordinary run in a process of its own.

Its folder is <sweep folder>/<model>-s<seed>[-fold<k>]-<digest of its settings>, so that a repeated
sweep finds the results of the same job. metrics.json in it says that the job is finished.
sweep.jsonl in the sweep folder has a line for each job that has ended, with the reason if it has
failed: launchers may run jobs in processes, or on machines, that the sweep does not know.
"""

import copy
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Self

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from imdbattn.errors import in_line
from imdbattn.folders.run_folder import has_results, results_file
from imdbattn.io.files import read_json
from imdbattn.launch.errors import fail
from imdbattn.launch.fork import ERRORS, joined, start, stop
from imdbattn.launch.hydra_config import plain_dict, quote
from imdbattn.launch.machine import least_used, one_process, threads_each
from imdbattn.launch.process import without_gc
from imdbattn.launch.single import import_wandb, run_single
from imdbattn.runs.signals import BEFORE_TRAINING, Signals
from imdbattn.settings.schema import Training
from imdbattn.tasks.task import task_of, validate

log = logging.getLogger(__name__)

LOG = "sweep.jsonl"
POLL = 0.1  # seconds between two looks at the processes


class Job(NamedTuple):
    """A job of a sweep. cfg: its config, with `hydra`. settings: the same, validated."""

    folder: Path
    cfg: DictConfig
    settings: Training


def job_of(cfg: DictConfig, folder: Path) -> Job:
    """Returns the job with this config, which has `hydra`. Raises UserError for wrong settings."""
    cfg = with_values(cfg, {"resume": None})
    return Job(folder, cfg, validate(plain_dict(cfg)))


def run_job(cfg: DictConfig) -> float | None:
    """Runs one job in the process of a launcher that is not ours, such as SLURM's, unless its
    folder already contains its results.

    Returns the best validation accuracy, or None for a failed or stopped job, as Optuna expects.
    """
    hydra: Any = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        config = copy.deepcopy(cfg)
        with open_dict(config):
            config.hydra = hydra
        job = job_of(config, folder)
        if complete(folder, job.settings):
            return ended(folder, "kept", settings=job.settings)
        # a process of Ray has threads, which a fork does not copy
        cpus = OmegaConf.select(hydra, "launcher.ray.remote.num_cpus")
        process = joined(start_run(job.cfg, job.settings, folder, cpus, anew=True))
        return ended(folder, *outcome(job, process), settings=job.settings)
    except Exception as error:  # any exception: the other jobs run nevertheless
        return ended(folder, "failed", in_line(error, None))
    except BaseException:  # Ctrl-C or SIGTERM
        ended(folder, "stopped", "stopped with its sweep")
        raise


def with_values(cfg: DictConfig, values: Mapping[str, object]) -> DictConfig:
    """Returns a copy of a config with these values of dotted keys, also on its command line."""
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg), read_write(cfg.hydra):
        overrides = [
            given for given in cfg.hydra.overrides.task if given.partition("=")[0] not in values
        ]
        for key, value in values.items():
            OmegaConf.update(cfg, key, value)
            if value is not None:
                overrides.append(quote(f"{key}={value}", ["resume"]))
        cfg.hydra.overrides.task = overrides
    return cfg


# --- results that exist ---------------------------------------------------------------------------


def complete(folder: Path, settings: Training) -> bool:
    """Returns whether `folder` contains a finished run with these settings, on the current data."""
    return has_results(folder, settings.test) and on_current_data(folder, settings)


def resumable(folder: Path, settings: Training) -> bool:
    """Returns whether `folder` contains the last checkpoint of a run on the current data that has
    results to add.
    """
    started = (folder / "checkpoints" / "last.ckpt").exists()
    return started and not has_results(folder, settings.test) and on_current_data(folder, settings)


def on_current_data(folder: Path, settings: Training) -> bool:
    """Returns whether the settings select the data of a run; data.extra is not compared."""
    source = task_of(settings).find_source(settings.data)
    recorded = read_json(folder / "environment.json").get("source_key")
    return source is None or source.checksum == str(recorded).split("-")[0]


# --- the process of a run -------------------------------------------------------------------------


def start_run(
    cfg: DictConfig,
    settings: Training,
    folder: Path,
    threads: int | None,
    gpu: str | None = None,
    anew: bool = False,
) -> BaseProcess:
    """Starts a run in a process of its own, which writes into the run folder, and continues from
    the last checkpoint in it.

    A process of its own frees its memory and its GPU at its end, has its own W&B run, and can crash
    without ending the sweep.

    cfg: its config, with `hydra`. settings: the same, validated. threads: their number,
    if the settings have none. gpu: the only one that it sees, by its name in CUDA_VISIBLE_DEVICES.
    anew: the process is `python -m imdbattn.train` and not a fork of this one; so is one that needs
    several processes, and each outside of Linux.
    """
    folder.mkdir(parents=True, exist_ok=True)
    resume = str(folder) if resumable(folder, settings) else None
    cfg = with_values(cfg, {"threads": settings.threads or threads, "resume": resume})
    environment = {"WANDB_RUN_GROUP": group_of(folder.parent), **os.environ}
    forget_wandb_run(environment)
    # in a SLURM task Lightning would wait for the processes of srun
    environment["SLURM_JOB_NAME"] = "interactive"
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    if anew or not one_process(settings.trainer) or sys.platform != "linux":
        overrides = [*cfg.hydra.overrides.task, "hydra.mode=RUN", *search_path()]
        overrides.append(quote(f"hydra.run.dir={folder}", ["hydra.run.dir"]))
        return start(partial(execute, overrides), environment, folder)
    import_for_training(settings)
    return start(partial(train_in_fork, cfg, folder), environment, folder)


def execute(overrides: Sequence[str]) -> None:
    """Replaces this process by `python -m imdbattn.train overrides...`."""
    os.execv(sys.executable, [sys.executable, "-m", "imdbattn.train", *overrides])


def train_in_fork(cfg: DictConfig, folder: Path) -> None:
    """Trains in this process, a fork, as `python -m imdbattn.train` does. cfg: with `hydra`."""
    with read_write(cfg.hydra):
        cfg.hydra.runtime.output_dir, cfg.hydra.job.name = str(folder), "train"
    HydraConfig.instance().set_config(cfg)
    configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)
    os.environ |= {name: str(value) for name, value in cfg.hydra.job.env_set.items()}
    try:
        with Signals(BEFORE_TRAINING) as signals:
            run_single(cfg, signals)
    except Exception as error:
        fail(error, "train", folder)


def import_for_training(settings: Training) -> None:
    """Imports what runs with these settings import, and what a sweep needs at its end: a fork
    imports nothing again.

    Custom classes are left to the runs.
    """
    with without_gc():
        import_wandb(settings)
        task = task_of(settings)
        for name in (task.data, task.module, task.predictor, task.pictures):
            if isinstance(name, str) and name.startswith("imdbattn."):
                importlib.import_module(name.rpartition(".")[0])

        import matplotlib.backends.backend_agg  # noqa: F401
        import pyarrow.parquet  # noqa: F401

        import imdbattn.report.comparison_page
        import imdbattn.runs.fit  # noqa: F401

        if settings.logger:  # tables of W&B
            import pandas  # noqa: F401


def search_path() -> list[str]:
    """Returns the folders of --config-dir and hydra.searchpath, as an override."""
    sources = HydraConfig.get().runtime.config_sources
    folders = [s.path for s in sources if s.provider not in ("hydra", "main", "schema")]
    urls = (json.dumps(path if "://" in path else f"file://{path}") for path in folders)
    return [f"hydra.searchpath=[{','.join(urls)}]"] if folders else []


def outcome(job: Job, process: BaseProcess) -> tuple[str, str]:
    """Returns the status of a job whose process has ended, and the reason unless that is `done`."""
    reason = failure(process, job.folder)
    if process.exitcode in (128 + signal.SIGINT, 128 + signal.SIGTERM):  # it has saved its state
        return "stopped", reason
    if not (reason or job.settings.is_debug or complete(job.folder, job.settings)):
        reason = "it ended without its results"
    return "failed" if reason else "done", reason


def failure(process: BaseProcess, folder: Path) -> str:
    """Returns why a run failed whose process has ended: the last line in its stderr.log. An empty
    string if it did not fail; the file is removed.
    """
    status, errors = process.exitcode or 0, folder / ERRORS
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if not status:
        errors.unlink(missing_ok=True)
        return ""
    lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    lines = (
        [line for line in lines if line.startswith("error: ")] or lines or [f"exit status {status}"]
    )
    return f"{lines[-1].strip().removeprefix('error: ')} (see {errors})"


class Running(NamedTuple):
    """A run that is training. since: when it started, on the clock of time.monotonic."""

    number: int
    folder: Path
    process: BaseProcess
    gpu: str | None
    since: float


class SideBySide:
    """The runs of a sweep or a search that are training; an exception in its context stops them.

    gpus: among which the runs are dealt out. places: how many run at once.
    """

    def __init__(self, gpus: Sequence[str] = (), places: int = 0):
        self.gpus, self.places = gpus, places
        self.running: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, reason: BaseException | None, traceback: object) -> None:
        if reason is not None:
            stop([one.process for one in self.running], reason)

    def start(self, number: int, cfg: DictConfig, settings: Training, folder: Path) -> None:
        """Starts a run: see `start_run`."""
        gpu = least_used(self.gpus, (one.gpu for one in self.running))
        process = start_run(cfg, settings, folder, threads_each(self.places), gpu)
        self.running.append(Running(number, folder, process, gpu, time.monotonic()))

    def wait(self) -> list[Running]:
        """Waits a moment, and returns the runs that have ended."""
        time.sleep(POLL)
        ended = [one for one in self.running if one.process.exitcode is not None]
        self.running = [one for one in self.running if one not in ended]
        return ended


# --- the sweep folder -----------------------------------------------------------------------------


def forget_wandb_run(environment: MutableMapping[str, str]) -> None:
    """Removes the variables that name one W&B run: all jobs and the comparison of a sweep would
    write into it.
    """
    for name in ("WANDB_RUN_ID", "WANDB_RESUME"):
        environment.pop(name, None)


def group_of(sweep: Path) -> str:
    """Returns the name of a sweep in W&B."""
    return "-".join(sweep.resolve().parts[-2:])


def ended(
    folder: Path,
    status: str,
    reason: str = "",
    settings: Training | None = None,
    about: str = "",
) -> float | None:
    """Appends a line about a job that has ended to sweep.jsonl, and logs one. Returns its
    validation accuracy if it is `done` or `kept`.

    Short lines that several processes append do not mix. settings: of the job, if they are right.
    about: more for the log.
    """
    with (folder.parent / LOG).open("a") as file:
        file.write(json.dumps({"job": folder.name, "status": status, "reason": reason}) + "\n")
    if reason or settings is None:
        log.error("%-7s %s: %s", status, folder.name, reason)
        return None
    metrics = read_json(folder / results_file(settings))
    results = [f"validation {100 * metrics['val_accuracy']:.2f} %"]
    if "test_accuracy" in metrics:
        results.append(f"test {100 * metrics['test_accuracy']:.2f} %")
    log.info("%-7s %s: %s", status, folder.name, ", ".join([*results, *[about] * bool(about)]))
    return float(metrics["val_accuracy"])


def jobs_of(sweep: Path) -> dict[str, dict[str, str]]:
    """Returns the last line about each job: name of its folder -> {"job", "status", "reason"}."""
    lines = (sweep / LOG).read_text().splitlines()
    return {entry["job"]: entry for entry in map(json.loads, lines)}
