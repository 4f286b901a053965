"""Signals that stop a run, and requeue its SLURM job."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

Handler = Callable[[int, FrameType | None], object] | int | None  # what signal.signal accepts
# the last two: sbatch's and submitit's
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def set_handlers(handlers: Handler | Mapping[signal.Signals, Handler]) -> None:
    """Sets one handler for all SIGNALS, or a dict of them. Only the main thread may; elsewhere
    nothing is done.
    """
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, handlers[number] if isinstance(handlers, Mapping) else handlers)


def exit_now(number: int, frame: FrameType | None) -> None:
    """Exits with status 128 + number; a second signal kills the process."""
    signal.signal(number, signal.SIG_DFL)
    if number == signal.SIGUSR1 and os.environ.get("SLURM_PROCID", "0") == "0":
        requeue()
    sys.exit(128 + number)


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Lets signals exit the process, except during training, which handles them itself."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    set_handlers(exit_now)
    try:
        yield
    finally:
        set_handlers(previous)


def requeue() -> None:
    """Requeues the SLURM job of this process, if there is one, and logs the outcome."""
    job = os.environ.get("SLURM_JOB_ID")
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    if job is None or shutil.which("scontrol") is None:
        return
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
    outcome = "is requeued"
    if done.returncode != 0:
        outcome = f"is not requeued: {' '.join(done.stderr.split())}"
    log.warning("SLURM job %s %s", job, outcome)
