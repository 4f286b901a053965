"""Sweeps: each job in a process of its own, none that stops the others, none that runs twice, one comparison.

A job is an ordinary run into <sweep folder>/<rung>-s<seed>-<digest of its settings>, so that the same job finds its
folder again in whatever sweep it is part of. sweep.jsonl in the sweep folder tells how each job went.
"""

import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError
from imdbattn.settings import SPLIT_FILES, checked, conf_dir, plain, quoted

log = logging.getLogger(__name__)

LOG = "sweep.jsonl"
PR_SET_PDEATHSIG = 1  # Linux: a signal for this process when the one that started it ends


def run_job(cfg: DictConfig) -> float:
    """One job of a multirun: kept if it stands finished in its folder, else run in a process of its own.

    Returns the best validation accuracy; NaN where the job failed, which the sweep's end reports.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    note(folder, "started")
    try:
        settings = checked(plain(cfg))
        status = "kept"
        if lacking := missing(folder, settings):
            why = (
                "" if lacking == "metrics.json" and not (folder / "config.yaml").exists() else f" (it has no {lacking})"
            )
            log.info("run     %s: %s%s", folder.name, " ".join(swept()), why)
            run_apart(folder, settings)
            if lacking := missing(folder, settings):
                raise UserError(f"it ended without {lacking}")
            status = "done"
        note(folder, status)
        metrics = json.loads((folder / "metrics.json").read_text())
    except UserError as error:
        note(folder, "failed", str(error))
        log.error("failed  %s: %s", folder.name, error)
        return float("nan")
    test = f", test {100 * metrics['test_accuracy']:.2f} %" if "test_accuracy" in metrics else ""
    log.info("%s    %s: validation %.2f %%%s", status, folder.name, 100 * metrics["val_accuracy"], test)
    return metrics["val_accuracy"]


def swept() -> list[str]:
    """The overrides in which this job differs from the others."""
    hydra = HydraConfig.get()
    common = {o.lower() for o in OmegaConf.load(Path(hydra.sweep.dir) / "multirun.yaml").hydra.overrides.task}
    return [override for override in hydra.overrides.task if override.lower() not in common]


def missing(folder: Path, settings: Mapping[str, Any]) -> str:
    """What a finished run of these settings would have in `folder` and it has not, in words; "" when nothing is."""
    splits = ("validation", "test") if settings["test"] else ("validation",)
    files = ["config.yaml", "checkpoints/best.ckpt", *(name for split in splits for name in SPLIT_FILES[split])]
    if not (folder / "metrics.json").exists():
        return "metrics.json"
    try:
        json.loads((folder / "metrics.json").read_text())["val_accuracy"]
    except (ValueError, KeyError):
        return "a metrics.json that can be read"
    return next((name for name in files if not (folder / name).exists()), "")


def run_apart(folder: Path, settings: Mapping[str, Any]) -> None:
    """Runs the job as `python -m imdbattn.train ... hydra.mode=RUN`.

    A process of its own gives its memory and its GPU back, has its own W&B run, may start further processes (DDP),
    and can die without harm. Raises UserError with the last words of a job that failed.
    """
    hydra = HydraConfig.get()
    alone = hydra.launcher._target_.endswith("BasicLauncher")
    overrides = [o for o in hydra.overrides.task if not o.startswith(("resume=", "threads="))]
    threads = settings["threads"] or (None if alone else max(1, cores() // slots_of(hydra.launcher)))
    overrides += [f"threads={threads or 'null'}", "hydra.mode=RUN"]
    overrides.append(quoted(f"hydra.run.dir={folder}", ["hydra.run.dir"]))
    sweep = Path(hydra.sweep.dir).resolve()
    errors = folder / "stderr.log"
    with device(settings["trainer"]["devices"]) as chosen, errors.open("w") as stderr:
        env = {**os.environ, "WANDB_RUN_GROUP": f"{sweep.parent.name}-{sweep.name}", **chosen}
        stdout = None if alone else (folder / "console.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "imdbattn.train", *overrides],
            env=env,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        try:
            status = wait(process, worker=hydra.launcher._target_.endswith("JoblibLauncher"))
        except BaseException as stop:
            with suppress(subprocess.TimeoutExpired):  # Ctrl-C has reached the job, too: it may write what it has
                process.wait(20 if isinstance(stop, KeyboardInterrupt) else 0)
            process.terminate()
            process.wait()
            raise
        finally:
            if stdout:
                stdout.close()
    words = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    if status == 0:
        errors.unlink()
        return
    reason = next((line for line in reversed(words) if line.startswith("error: ")), words[-1] if words else "")
    if status < 0:
        reason = f"killed by {signal.Signals(-status).name} {reason}"
    raise UserError(reason.removeprefix("error: ").strip() or f"exit status {status}")


def wait(process: subprocess.Popen, worker: bool) -> int:
    """The exit status of a job. A `worker` of joblib's, which would work on when its sweep is killed, ends with it."""
    sweep = os.getppid()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(1)
        if worker and os.getppid() != sweep:
            process.terminate()
            process.wait()
            os._exit(1)  # SystemExit would end this job only, and the worker would begin the next


def end_with_parent() -> None:
    """In the child: SIGTERM when the process that waits for it is killed, so that no job goes on without its sweep."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; found without loading torch."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number in range(listed.count("GPU "))]


def slots() -> int:
    """How many jobs run well side by side on this machine: one a GPU, or one a core where there is none."""
    return len(gpus()) or cores()


def slots_of(launcher: Mapping[str, Any]) -> int:
    """How many jobs a launcher runs side by side on one machine; joblib's -1 is one a core."""
    jobs = launcher.get("n_jobs") or 1
    return jobs if jobs > 0 else cores()


@contextmanager
def device(devices: Any) -> Iterator[dict[str, str]]:
    """The environment that pins a job on one device to a GPU which no other job of this user holds.

    Where all are taken, as with more jobs than GPUs, GPUs are shared in turn. Jobs that ask for several devices, and
    machines without a GPU, get an empty environment.
    """
    names = gpus() if devices in (1, "1", "auto") else []
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


def note(folder: Path, status: str, reason: str = "") -> None:
    """Adds a line about a job to its sweep's log; short lines added at the end don't mix, from whatever process."""
    with (folder.parent / LOG).open("a") as file:
        file.write(json.dumps({"job": folder.name, "status": status, "reason": reason}) + "\n")


def jobs_of(sweep: Path) -> dict[str, dict[str, str]]:
    """How each job of a sweep went: its folder's name -> {"job", "status", "reason"}."""
    lines = (sweep / LOG).read_text().splitlines()
    found = {entry["job"]: entry for entry in map(json.loads, lines)}
    for entry in found.values():
        if entry["status"] == "started":
            entry |= {"status": "failed", "reason": "the process that ran it died"}
    return found


class SweepReport(Callback):
    """Before a sweep: decides what is decided once for all jobs. After it: names the failed jobs, compares the others.

    Hydra turns an Exception of a callback into a warning, hence sys.exit.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        ended_by(lambda: start(config))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        ended_by(lambda: end(config))


def ended_by(step: Callable[[], None]) -> None:
    try:
        step()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def start(config: DictConfig) -> None:
    sweep = Path(config.hydra.sweep.dir)
    if config.resume and not (sweep / LOG).exists():
        raise UserError(f"resume={config.resume} is no sweep folder: it has no {LOG}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the finally clauses
    sweep.mkdir(parents=True, exist_ok=True)
    (sweep / LOG).write_text("")
    data = config.data
    if data.source == "auto" and not data.path:
        from imdbattn.data.sources import find_source

        find_source(OmegaConf.to_container(data, resolve=False))  # type: ignore[arg-type]


def end(config: DictConfig) -> None:
    """Says how the jobs went, writes the comparison, and exits with status 1 when a job failed."""
    sweep = Path(config.hydra.sweep.dir)
    jobs = jobs_of(sweep)
    failed = [job for job in jobs.values() if job["status"] == "failed"]
    counts = {status: sum(job["status"] == status for job in jobs.values()) for status in ("done", "kept", "failed")}
    log.info("")
    log.info(
        "%d job%s: %s",
        len(jobs),
        "s" * (len(jobs) != 1),
        ", ".join(f"{count} {status}" for status, count in counts.items() if count),
    )
    others = {path.parent.name for path in sweep.glob("*/metrics.json")} - set(jobs)
    if others:
        log.info("of other settings, left as they are: %s", ", ".join(sorted(others)))
    if len(failed) < len(jobs):
        compare_jobs(config, sweep, [sweep / name for name, job in jobs.items() if job["status"] != "failed"])
    for job in failed:
        log.error("failed  %s: %s", job["job"], job["reason"])
    if failed:
        log.error("try them again:  the same command with resume=%s", os.path.relpath(sweep))
        sys.exit(1)


def compare_jobs(config: DictConfig, sweep: Path, folders: list[Path]) -> None:
    """Writes <sweep>/comparison and shows it; a comparison that cannot be made is said, and costs no result."""
    from imdbattn.analysis.comparison import compare
    from imdbattn.analysis.report import print_terminal, write_all
    from imdbattn.training.publish import publish_comparison

    options = OmegaConf.to_container(OmegaConf.load(conf_dir() / "compare.yaml"))
    assert isinstance(options, dict)
    names = ("split", "resamples", "seed", "words", "disagreements", "against")
    try:
        comparison = compare(folders, **{name: options[name] for name in names})
        page = write_all(comparison, sweep / "comparison")
        print_terminal(comparison)
    except Exception as error:  # of whatever kind: the runs are there, and failed jobs are still to be named
        log.warning("no comparison: %s", error, exc_info=not isinstance(error, UserError))
        return
    log.info("comparison           %s", os.path.relpath(page))
    if config.logger.name == "wandb":
        publish_comparison(comparison, sweep / "comparison", config.logger, f"{sweep.parent.name}-{sweep.name}")
