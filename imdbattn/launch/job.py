"""One job of a sweep: an ordinary run in a child process.

Its folder is <sweep folder>/<model>-s<seed>[-fold<k>]-<digest of its settings>, so that a repeated
sweep finds the results of the same job. sweep.jsonl in the sweep folder records the status of each
job.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError, in_line
from imdbattn.folders.run_folder import finished, results_file
from imdbattn.io.files import acquired, read_json
from imdbattn.launch.hydra_config import plain_dict, quote
from imdbattn.launch.machine import gpus, threads_of
from imdbattn.launch.process import PARENT_PID, SWEEP_PID, end_with
from imdbattn.settings.keys import Plain, overlay
from imdbattn.settings.schema import Training
from imdbattn.settings.trust import read_settings
from imdbattn.tasks.task import task_of, validate
from imdbattn.tracking.settings import wandb_parts

log = logging.getLogger(__name__)

LOG = "sweep.jsonl"
ERRORS = "stderr.log"  # what the job wrote there
PATIENCE = 20  # seconds in which a job must save its state; SLURM kills it after 30


def run_job(cfg: DictConfig) -> float | None:
    """Runs one job of a multirun, unless its folder already contains its results.

    Returns the best validation accuracy, or None for a failed or stopped job, as Optuna expects.
    """
    if os.environ.get(SWEEP_PID) == str(os.getppid()):
        end_with(os.getppid())  # joblib's workers would continue without their sweep
    folder = Path(HydraConfig.get().runtime.output_dir)
    status, reason = "failed", ""
    # Optuna may try the same settings twice: the second job waits
    with acquired(folder / ".job.lock"):
        try:
            values = plain_dict(cfg)
            overrides = decisions(values)
            settings = validate(with_overrides(values, overrides))
            if complete(folder, settings):  # by this sweep, or by an earlier one
                done = jobs_of(sweep_dir()).get(folder.name, {}).get("status") == "done"
                status = "done" if done else "kept"
            else:
                status, reason = run_child(folder, settings, overrides)
            metrics = {} if reason else read_json(folder / results_file(settings))
        except Exception as error:  # any exception: the other jobs have to run
            reason = in_line(error, None)
        except BaseException:  # Ctrl-C or SIGTERM
            status, reason = "stopped", "stopped with its sweep"
            raise
        finally:
            record(folder.name, status, reason)
    if reason:
        log.error("%-7s %s: %s", status, folder.name, reason)
        return None
    test = f", test {100 * metrics['test_accuracy']:.2f} %" if "test_accuracy" in metrics else ""
    log.info(
        "%s    %s: validation %.2f %%%s", status, folder.name, 100 * metrics["val_accuracy"], test
    )
    return metrics["val_accuracy"]


def decisions(settings: Plain) -> list[str]:
    """Returns as overrides what the sweep has decided once for all its jobs: what
    data.source=auto and the mode null of W&B stand for.
    """
    sweep, overrides = OmegaConf.load(sweep_dir() / "multirun.yaml"), []
    data = settings["data"]
    # hub_timeout: `auto` of other data does not choose between the hub and the wheel
    if data["source"] == "auto" and not data.get("path") and "hub_timeout" in data:
        overrides += [f"data.source={sweep.data.source}"] * (
            sweep.data.source in ("hub", "packaged")
        )
    for name, part in wandb_parts(settings["logger"]).items():
        if part["mode"] is None and name in sweep.logger:
            overrides.append(f"logger.{name}.mode={sweep.logger[name].mode}")
    return overrides


def with_overrides(settings: Plain, overrides: Sequence[str]) -> Plain:
    """Returns the settings with these overrides, whose values are plain text."""
    for override in overrides:
        key, _, value = override.partition("=")
        change: Any = value
        for name in reversed(key.split(".")):
            change = {name: change}
        settings = overlay(settings, change)
    return settings


# --- results that exist ---------------------------------------------------------------------------


def complete(folder: Path, settings: Training) -> bool:
    """Returns whether `folder` contains a finished run with these settings, on the current data."""
    return finished(folder, settings.test) and on_current_data(folder, settings)


def resumable(folder: Path, settings: Training) -> bool:
    """Returns whether `folder` contains the last checkpoint of a run on the current data that has
    results to add.
    """
    started = (folder / "checkpoints" / "last.ckpt").exists()
    return started and not finished(folder, settings.test) and on_current_data(folder, settings)


def on_current_data(folder: Path, settings: Training) -> bool:
    source = read_settings(folder / "config.yaml")["data"]["source"]
    return same_data(settings, source, read_json(folder / "environment.json").get("source_key"))


def same_data(settings: Training, source: str, key: str | None) -> bool:
    """Returns whether the settings select the data of a run, given its data.source and
    Corpus.source_key.
    """
    return task_of(settings).same_data(settings.data, source, key)


# --- the child process ----------------------------------------------------------------------------


def run_child(folder: Path, settings: Training, decisions: Sequence[str]) -> tuple[str, str]:
    """Runs the job in a child process, with the overrides `decisions` in addition to its own.
    Returns its status, and the reason unless that is `done`.
    """
    record(folder.name, "started")
    hydra, resume = HydraConfig.get(), resumable(folder, settings)
    state = "resumes from its last checkpoint" if resume else "starts again"
    common = {
        override.lower()
        for override in OmegaConf.load(sweep_dir() / "multirun.yaml").hydra.overrides.task
    }
    varied = [override for override in hydra.overrides.task if override.lower() not in common]
    suffix = [f"({state})"] if (folder / "config.yaml").exists() else []
    log.info("run     %s", " ".join([f"{folder.name}:", *varied, *suffix]).removesuffix(":"))
    one_by_one = hydra.launcher._target_.endswith("BasicLauncher")
    threads = None if one_by_one else threads_of(hydra.launcher)
    overrides = [
        override for override in hydra.overrides.task if not override.startswith("resume=")
    ]
    overrides += decisions
    with started(
        folder, settings, overrides, resume, threads, hydra.job.num, one_by_one
    ) as process:
        process.wait()
    reason = failure(process.returncode, folder)
    if process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM):  # it has saved its state
        return "stopped", reason
    if not (reason or settings.is_debug or complete(folder, settings)):
        reason = "it ended without its results"
    return "failed" if reason else "done", reason


@contextmanager
def started(
    folder: Path,
    settings: Training,
    overrides: Sequence[str],
    resume: bool,
    threads: int | None,
    number: int,
    console: bool = False,
) -> Iterator[subprocess.Popen]:
    """Starts a run as `python -m imdbattn.train overrides... hydra.mode=RUN`, which an exception
    stops.

    A child process frees its memory and its GPU at its end, has its own W&B run, can start further
    processes (DDP), and can crash without ending the sweep. Its output is in console.log unless
    `console`, its errors in stderr.log.

    settings: of these overrides. threads: unless the settings have a number. number: of the job,
    which selects a GPU where there are more jobs than GPUs.
    """
    overrides = [override for override in overrides if not override.startswith("threads=")]
    overrides += [
        f"threads={settings.threads or threads or 'null'}",
        "hydra.mode=RUN",
        *search_path(),
    ]
    overrides += [
        quote(f"{name}={folder}", [name]) for name in ("hydra.run.dir", *["resume"] * resume)
    ]
    pid = str(os.getpid())
    env = {
        SWEEP_PID: pid,
        "WANDB_RUN_GROUP": group_of(folder.parent),
        **os.environ,
        PARENT_PID: pid,
    }
    forget_wandb_run(env)
    # in a SLURM task Lightning would wait for the processes of srun
    env["SLURM_JOB_NAME"] = "interactive"
    output = nullcontext() if console else (folder / "console.log").open("w")
    with (
        reserved_gpu(settings.trainer, number) as gpu,
        (folder / ERRORS).open("w") as errors,
        output as stdout,
    ):
        command = [sys.executable, "-m", "imdbattn.train", *overrides]
        with (
            subprocess.Popen(command, env=env | gpu, stdout=stdout, stderr=errors) as process,
            stopping(process),
        ):
            yield process


@contextmanager
def stopping(process: subprocess.Popen) -> Iterator[None]:
    """Stops the process after an exception; it has PATIENCE seconds to save its state."""
    try:
        yield
    except BaseException as stop:
        if not isinstance(stop, KeyboardInterrupt):  # the process receives Ctrl-C, too
            process.terminate()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(PATIENCE)
        process.kill()
        raise


def search_path() -> list[str]:
    """Returns the folders of --config-dir and hydra.searchpath, as an override."""
    sources = HydraConfig.get().runtime.config_sources
    folders = [s.path for s in sources if s.provider not in ("hydra", "main", "schema")]
    urls = (json.dumps(path if "://" in path else f"file://{path}") for path in folders)
    return [f"hydra.searchpath=[{','.join(urls)}]"] if folders else []


def failure(status: int, folder: Path) -> str:
    """Returns why a job failed: the last line in its stderr.log. An empty string if it did not
    fail; the file is removed.
    """
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    errors = folder / ERRORS
    if not status:
        errors.unlink()
        return ""
    lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    lines = (
        [line for line in lines if line.startswith("error: ")] or lines or [f"exit status {status}"]
    )
    return f"{lines[-1].strip().removeprefix('error: ')} (see {errors})"


@contextmanager
def reserved_gpu(trainer: Any, number: int) -> Iterator[dict[str, str]]:
    """Yields environment variables that give a job on one device a GPU which no other job of this
    user has reserved.

    With more jobs than GPUs, jobs share them. Empty for jobs on several devices or on the CPU, and
    without a GPU.
    """
    single = trainer.devices in (1, "1") or (
        trainer.devices == "auto" and "ddp" not in str(trainer.strategy)
    )
    names = gpus() if single and trainer.accelerator != "cpu" else []
    with ExitStack() as stack:
        for gpu in names:
            with suppress(UserError):
                lock = Path(tempfile.gettempdir()) / f"imdbattn-{os.getuid()}-gpu-{gpu}.lock"
                stack.enter_context(acquired(lock, "reserved"))
                break
        else:  # all are reserved, or there is none
            gpu = names[number % len(names)] if names else ""
        yield {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}


# --- the sweep folder -----------------------------------------------------------------------------


def sweep_dir() -> Path:
    return Path(HydraConfig.get().sweep.dir)


def forget_wandb_run(environment: MutableMapping[str, str]) -> None:
    """Removes the variables that name one W&B run: all jobs and the comparison of a sweep would
    write into it.
    """
    for name in ("WANDB_RUN_ID", "WANDB_RESUME"):
        environment.pop(name, None)


def group_of(sweep: Path) -> str:
    """Returns the name of a sweep in W&B."""
    return "-".join(sweep.resolve().parts[-2:])


def record(job: str, status: str, reason: str = "") -> None:
    """Appends a line about a job to sweep.jsonl; short lines that several processes append do not
    mix.
    """
    with (sweep_dir() / LOG).open("a") as file:
        file.write(json.dumps({"job": job, "status": status, "reason": reason}) + "\n")


def jobs_of(sweep: Path) -> dict[str, dict[str, str]]:
    """Returns the last line about each job: name of its folder -> {"job", "status", "reason"};
    stopped if it did not end.
    """
    jobs = {
        entry["job"]: entry for entry in map(json.loads, (sweep / LOG).read_text().splitlines())
    }
    for entry in jobs.values():
        if entry["status"] == "started":
            entry |= {"status": "stopped", "reason": "its process died"}
    return jobs
