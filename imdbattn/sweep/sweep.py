"""Sweeps: each job in a process of its own, none that stops the others, none that runs twice, one comparison.

A job is an ordinary run into <sweep folder>/<rung>-s<seed>-<digest of its settings>, so that the same job finds its
folder again in whatever sweep it is part of. sweep.jsonl in the sweep folder tells how each job went.
"""

import atexit
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError
from imdbattn.files import make_folder, write_atomically, writing_into
from imdbattn.settings.cli import SWEEP_PID, conf_dir, plain_dict, print_error, quote, remove_empty
from imdbattn.settings.keys import SPLIT_FILES, is_debug, results_file
from imdbattn.settings.machine import gpus, threads_of
from imdbattn.settings.safety import check_archive, read_json, read_settings, refuse_credentials
from imdbattn.settings.schema import validate

log = logging.getLogger(__name__)

LOG = "sweep.jsonl"
FILES = (LOG, "multirun.yaml")  # that a sweep writes into its own folder
PR_SET_PDEATHSIG = 1  # Linux: a signal for this process when the one that started it ends
PATIENCE = 20  # seconds for a job that is asked to stop; SLURM kills after 30


def run_job(cfg: DictConfig) -> float | None:
    """One job of a multirun: kept if it stands finished in its folder, else run in a process of its own.

    Returns the best validation accuracy; None where the job failed, which the sweep's end reports. Optuna takes None,
    not NaN, for a failed trial, and may try the same settings twice.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    name = folder.name
    try:
        first = claim(folder)
        settings = validate(plain_dict(cfg)).model_dump()
        status = "kept"
        lacking = missing(folder, settings)
        if not first:
            name += " again"
            if lacking:
                raise UserError("another job of this sweep is the same: they differ in nothing that results depend on")
        elif lacking:
            goes_on = resumable(folder, settings)
            why = "" if not (folder / "config.yaml").exists() else f" (it has no {lacking})"
            why = " (goes on from its last checkpoint)" if goes_on else why
            log.info("run     %s: %s%s", name, " ".join(swept()), why)
            run_apart(folder, settings, goes_on)
            if not is_debug(settings) and (lacking := missing(folder, settings)):
                raise UserError(f"it ended without {lacking}")
            status = "done"
        metrics = read_json(folder / results_file(settings))
    except Exception as error:  # of whatever kind: the other jobs are to run
        reason = " ".join(str(error).split()) or type(error).__name__
        note(name, "failed", reason)
        log.error("failed  %s: %s", name, reason)
        return None
    except BaseException:  # Ctrl-C, or SIGTERM
        note(name, "failed", "stopped with its sweep")
        raise
    if first:
        note(name, status)
    test = f", test {100 * metrics['test_accuracy']:.2f} %" if "test_accuracy" in metrics else ""
    log.info("%s    %s: validation %.2f %%%s", status, name, 100 * metrics["val_accuracy"], test)
    return metrics["val_accuracy"]


def swept() -> list[str]:
    """The overrides in which this job differs from the others."""
    hydra = HydraConfig.get()
    common = {o.lower() for o in OmegaConf.load(Path(hydra.sweep.dir) / "multirun.yaml").hydra.overrides.task}
    return [override for override in hydra.overrides.task if override.lower() not in common]


def missing(folder: Path, settings: Mapping[str, Any]) -> str:
    """What a finished run of these settings would have in `folder` and it has not, in words; "" when nothing is."""
    if not (folder / "metrics.json").exists():
        return "metrics.json"
    try:
        metrics = read_json(folder / "metrics.json")
        source = read_settings(folder / "config.yaml")["data"]["source"]
        metrics["val_accuracy"]
    except Exception:
        return "metrics.json and config.yaml that can be read"
    if not same_data(settings, source, metrics.get("source_key")):
        return "results on today's data"
    try:
        check_archive(folder / "checkpoints" / "best.ckpt")
    except Exception:  # of whatever kind
        return "checkpoint that can be read"
    import pyarrow.parquet as pq

    for split in ("validation", "test") if settings["test"] else ("validation",):
        for name in SPLIT_FILES[split]:
            if not (folder / name).is_file():
                return name
            try:
                pq.ParquetFile(folder / name)
            except (OSError, ValueError):
                return f"{name} that can be read"
    return ""


def resumable(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether `folder` holds a run on today's data that was stopped and can go on from its last checkpoint."""
    try:
        source = read_settings(folder / "config.yaml")["data"]["source"]
        key = read_json(folder / "environment.json").get("source_key")
        check_archive(folder / "checkpoints" / "last.ckpt")
        return same_data(settings, source, key) and not (folder / "metrics.json").exists()
    except Exception:  # of whatever kind: then it starts again
        return False


def same_data(settings: Mapping[str, Any], source: str, key: str | None) -> bool:
    """Whether the settings lead to the data that a run was trained on, by its source and their checksum."""
    from imdbattn.data.reviews import DECIDED, find_source

    data = settings["data"]
    if settings.get("task") == "seq2seq":
        from imdbattn.data import pairs

        return pairs.find_source(data).checksum == key
    if data["path"]:
        return find_source(dict(data)).checksum == key
    return data["source"] != "auto" or os.environ.get(DECIDED) in (None, source)


def run_apart(folder: Path, settings: Mapping[str, Any], goes_on: bool = False) -> None:
    """Runs the job as `python -m imdbattn.train ... hydra.mode=RUN`; it `goes_on` from its last checkpoint, or begins.

    A process of its own gives its memory and its GPU back, has its own W&B run, may start further processes (DDP),
    and can die without harm. Raises UserError with the last words of a job that failed.
    """
    hydra = HydraConfig.get()
    alone = hydra.launcher._target_.endswith("BasicLauncher")
    overrides = [o for o in hydra.overrides.task if not o.startswith(("resume=", "threads="))]
    threads = settings["threads"] or (None if alone else threads_of(hydra.launcher))
    overrides += [f"threads={threads or 'null'}", "hydra.mode=RUN"]
    overrides += [quote(f"{name}={folder}", [name]) for name in ("hydra.run.dir", *["resume"] * goes_on)]
    places = [s.path for s in hydra.runtime.config_sources if s.provider not in ("hydra", "main", "schema")]
    if places:  # of --config-dir and hydra.searchpath
        named = (json.dumps(place if "://" in place else f"file://{place}") for place in places)
        overrides.append(f"hydra.searchpath=[{','.join(named)}]")
    errors = folder / "stderr.log"
    # A worker of joblib's would work on when its sweep is killed; elsewhere a parent may end before its child.
    worker = hydra.launcher._target_.endswith("JoblibLauncher") and os.environ.get(SWEEP_PID) != str(os.getpid())
    with device(settings["trainer"]) as chosen, errors.open("w") as stderr:
        # Inside a SLURM task a job starts its own processes; by this name Lightning does not wait for those of srun.
        env = {SWEEP_PID: str(os.getpid()), **os.environ, **chosen, "SLURM_JOB_NAME": "interactive"}
        env["WANDB_RUN_GROUP"] = group_of(Path(hydra.sweep.dir))
        stdout = None if alone else (folder / "console.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "imdbattn.train", *overrides],
            env=env,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        try:
            status = wait(process, worker)
        except BaseException as stop:
            if not isinstance(stop, KeyboardInterrupt):  # Ctrl-C has reached the job, too
                process.terminate()
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # it saves what it has
                process.wait(PATIENCE)
            process.kill()
            process.wait()
            raise
        finally:
            if stdout:
                stdout.close()
    if status == 0:
        errors.unlink()
        return
    lines = errors.read_text(errors="replace").splitlines()
    words = [line.strip() for line in lines if line.strip() and "HYDRA_FULL_ERROR" not in line]
    reason = next((line for line in reversed(words) if line.startswith("error: ")), words[-1] if words else "")
    reason = reason.removeprefix("error: ") or f"exit status {status}"
    raise UserError(f"killed by {signal.Signals(-status).name}" if status < 0 else f"{reason} (see {errors})")


def group_of(sweep: Path) -> str:
    """The name of a sweep in W&B."""
    sweep = sweep.resolve()
    return f"{sweep.parent.name}-{sweep.name}"


def wait(process: subprocess.Popen, worker: bool) -> int:
    """The exit status of a job. A `worker` ends the job, and itself, when the process that started it has ended."""
    sweep = os.getppid()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(1)
        if worker and os.getppid() != sweep:
            process.terminate()
            process.wait()
            os._exit(1)  # SystemExit would end this job only, and the worker would begin the next


def end_with_parent(parent: int | None = None) -> None:
    """On Linux: a signal for this process when the one that started it ends, so that no job outlives its sweep.

    SIGTERM, by which a job saves what it has; SIGKILL for a rank of DDP, which without the first can do nothing. Ends
    this process at once where the one that started it was `parent`, and has ended already.
    """
    if sys.platform == "linux":
        rank = os.environ.get("LOCAL_RANK", "0")
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM if rank == "0" else signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


@contextmanager
def device(trainer: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The environment that pins a job on one device to a GPU which no other job of this user holds.

    Where all are taken, as with more jobs than GPUs, GPUs are shared in turn. Jobs that ask for several devices or for
    the CPU, and machines without a GPU, get an empty environment.
    """
    single = trainer["devices"] in (1, "1") or (trainer["devices"] == "auto" and "ddp" not in str(trainer["strategy"]))
    names = gpus() if single and trainer["accelerator"] != "cpu" else []
    for name in names:
        lock = FileLock(Path(tempfile.gettempdir()) / f"imdbattn-{os.getuid()}-gpu-{name.strip()}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        try:
            yield {"CUDA_VISIBLE_DEVICES": name}
        finally:
            lock.release()
        return
    yield {"CUDA_VISIBLE_DEVICES": names[HydraConfig.get().job.num % len(names)]} if names else {}


def claim(folder: Path) -> bool:
    """Notes that a job has started, or started again after a cluster stopped it.

    False where another of this sweep has the same folder.
    """
    hydra = HydraConfig.get()
    sweep = Path(hydra.sweep.dir)
    with FileLock(sweep / ".claim.lock"):
        holder = jobs_of(sweep).get(folder.name)
        if holder and holder["number"] != hydra.job.num:
            return False
        note(folder.name, "started")
        return True


def note(name: str, status: str, reason: str = "") -> None:
    """Adds a line about a job to its sweep's log; short lines added at the end don't mix, from whatever process."""
    hydra = HydraConfig.get()
    with (Path(hydra.sweep.dir) / LOG).open("a") as file:
        file.write(json.dumps({"job": name, "number": hydra.job.num, "status": status, "reason": reason}) + "\n")


def jobs_of(sweep: Path) -> dict[str, dict[str, Any]]:
    """How each job of a sweep went: its folder's name -> {"job", "number", "status", "reason"}."""
    lines = (sweep / LOG).read_text().splitlines()
    found = {entry["job"]: entry for entry in map(json.loads, lines)}
    for entry in found.values():
        if entry["status"] == "started":
            entry |= {"status": "failed", "reason": "the process that ran it died"}
    return found


def is_sweep(folder: Path) -> bool:
    """Whether a folder has the log of a sweep."""
    try:
        jobs_of(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


class SweepReport(Callback):
    """Before a sweep: decides what is decided once for all jobs. After it: names the failed jobs, compares the others.

    Hydra turns an Exception of a callback into a warning, hence sys.exit.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global _lock
        try:
            _lock = start(config)
        except UserError as error:
            print_error(error)
            sys.exit(2)
        atexit.register(end, config, False)  # where the launcher fails or Ctrl-C is pressed, Hydra calls no callback

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        atexit.unregister(end)
        try:
            failed = end(config, True)
        except UserError as error:
            print_error(error)
            sys.exit(2)
        if failed:
            sys.exit(1)


_before: dict[str, bytes] = {}  # what an earlier sweep into the same folder has left in FILES
_lock: FileLock | None = None  # of the sweep folder; held until this process ends


def start(config: DictConfig) -> FileLock:
    """Readies the sweep folder. Raises UserError when it is none to resume, or another sweep works in it."""
    sweep = Path(config.hydra.sweep.dir)
    refuse_credentials(OmegaConf.to_container(config, resolve=False))  # Hydra writes them into multirun.yaml
    if config.resume is not None and not str(config.resume).strip():
        raise UserError("resume= must be text of at least one character, or null")
    if config.resume and not (sweep / LOG).exists():
        raise UserError(f"resume={config.resume}: {sweep} is no sweep folder, it has no {LOG}")
    way_out = "choose another hydra.sweep.dir"
    _before.clear()
    _before.update({name: (sweep / name).read_bytes() for name in FILES if (sweep / name).is_file()})
    if _before and not is_sweep(sweep):
        raise UserError(f"{sweep} holds {', '.join(_before)}, which are not a sweep's: {way_out}")
    make_folder(sweep, way_out)
    lock = FileLock(sweep / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{sweep} belongs to a sweep that still runs: wait for it, or choose another folder") from None
    os.environ[SWEEP_PID] = str(os.getpid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the finally clauses
    with writing_into(sweep, way_out):
        (sweep / LOG).write_text("")
        OmegaConf.save(config, sweep / "multirun.yaml")  # for `swept`; of Hydra's sweepers only the basic one writes it
    data = config.data
    if config.task != "seq2seq" and data.source == "auto" and not data.path:
        from imdbattn.data.reviews import find_source

        find_source(OmegaConf.to_container(data, resolve=False))  # type: ignore[arg-type]
    return lock


def end(config: DictConfig, whole: bool) -> int:
    """Says how the jobs went and returns how many failed; where the sweep came to its `whole` end, compares them.

    Raises UserError for a sweep that has ended without any job.
    """
    sweep = Path(config.hydra.sweep.dir)
    jobs = jobs_of(sweep)
    if not jobs:
        (sweep / ".lock").unlink(missing_ok=True)
        for name in FILES:
            if name in _before:
                write_atomically(sweep / name, _before[name])
            else:
                (sweep / name).unlink(missing_ok=True)
        if not _before:
            remove_empty(sweep.resolve(), LOG)
        if whole:
            words = " ".join(config.hydra.overrides.task)
            raise UserError(f"the sweep has no jobs: one of its settings has no value to choose from ({words})")
        return 0  # Hydra could not compose them, and has said so
    failed = [job for job in jobs.values() if job["status"] == "failed"]
    counts = {status: sum(job["status"] == status for job in jobs.values()) for status in ("done", "kept", "failed")}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    log.info("")
    log.info("%d job%s%s: %s", len(jobs), "s" * (len(jobs) != 1), "" if whole else " until the sweep was stopped", told)
    others = {path.parent.name for path in sweep.glob("*/metrics.json")} - set(jobs)
    if others and whole:
        log.info("of other settings, left as they are: %s", ", ".join(sorted(others)))
    if whole and len(failed) < len(jobs):
        compare_jobs(config, sweep, [sweep / name for name, job in jobs.items() if job["status"] != "failed"])
    for job in failed:
        log.error("failed  %s: %s", job["job"], job["reason"])
    if failed or not whole:
        log.error("resume it with:  the same command with resume=%s", os.path.relpath(sweep))
    return len(failed)


def compare_jobs(config: DictConfig, sweep: Path, folders: list[Path]) -> None:
    """Writes <sweep>/comparison and shows it; a comparison that cannot be made is said, and costs no result."""
    from imdbattn.comparison.compare import compare_sets
    from imdbattn.comparison.report import folders_of, print_terminal, write_sets
    from imdbattn.tracking.publish import publish_comparison

    options = OmegaConf.to_container(OmegaConf.load(conf_dir() / "compare.yaml"))
    assert isinstance(options, dict)
    names = ("split", "resamples", "seed", "words", "disagreements", "against")
    try:
        comparisons = compare_sets(folders, **{name: options[name] for name in names})
        page = write_sets(comparisons, sweep / "comparison")
        print_terminal(*comparisons)
    except Exception as error:  # of whatever kind: the runs are there, and failed jobs are still to be named
        log.warning("no comparison: %s", error, exc_info=not isinstance(error, UserError))
        return
    log.info("comparison           %s", os.path.relpath(page))
    if config.logger.name == "wandb":
        for comparison, out in zip(comparisons, folders_of(comparisons, sweep / "comparison"), strict=True):
            publish_comparison(comparison, out, config.logger, config.logger.group or group_of(sweep))
