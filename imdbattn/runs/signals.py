"""The signals that stop a run or a command, which then ends with one line. Imports nothing slow."""

import logging
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

log = logging.getLogger(__name__)

Handler = Callable[[int, FrameType | None], object] | int | None  # what signal.signal accepts
# sbatch and submitit send the last two.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# Signals within these seconds count as one: timeout, SLURM and Ctrl-C send theirs to a sweep and to
# each of its jobs, and the sweep stops its jobs as well.
SAME_SIGNAL_SECONDS = 1.0
NOTHING_SAVED = "nothing was saved; run the command again"
BEFORE_TRAINING = f"stopped before training; {NOTHING_SAVED}"


class Stopped(SystemExit):
    """Raised after a signal, with exit status 128 + its number.

    number: the signal's number. line: what was stopped, what is saved and how to continue; empty in
    all processes of a run but the first.
    """

    def __init__(self, number: int, line: str):
        super().__init__(128 + number)
        self.number, self.line = number, line


class StopOnSignals:
    """Raises Stopped in its context after one of SIGNALS, and logs its line at the end.

    text: the line without the name of the signal. It does nothing outside of the main thread, which
    alone can handle signals.
    """

    def __init__(self, text: str):
        self.text = text
        self.received = 0  # number of the signal that this process has received
        self.received_at = -math.inf
        self.deferred = False
        self.raised: Stopped | None = None  # what this context has raised

    def describe(self) -> str:
        """Returns the line without the name of the signal."""
        return self.text

    def __enter__(self) -> Self:
        self.previous = {number: signal.getsignal(number) for number in SIGNALS}
        self.stop_at_once()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self.previous.items():
            set_handler(number, handler)
        if self.raised is None:
            return
        if self.raised.line:
            log.warning(self.raised.line)
        if error is not self.raised:  # a library caught it, or raised another exception
            raise self.raised from error

    def stop_at_once(self) -> None:
        """Makes signals raise Stopped at once; raises it now if one has arrived."""
        self.listen(deferred=False)
        if self.received:
            raise self.stop_exception(self.received)

    def defer(self) -> None:
        """Makes a signal only set `received`; further signals raise Stopped at once."""
        self.listen(deferred=True)

    def listen(self, deferred: bool) -> None:
        self.deferred = deferred
        for number in SIGNALS:
            set_handler(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal, unless one arrived less than SAME_SIGNAL_SECONDS seconds ago."""
        now = time.monotonic()
        if now - self.received_at < SAME_SIGNAL_SECONDS:
            return
        self.received, self.received_at = number, now
        if self.deferred:
            self.deferred = False
            return
        raise self.stop_exception(number)

    def stop_exception(self, number: int) -> Stopped:
        """Returns the exception; SIGUSR1 also requeues the SLURM job."""
        name = signal.Signals(number).name
        if name == "SIGUSR1" and os.environ.get("SLURM_PROCID", "0") == "0":
            requeue()
        text = self.describe()
        self.raised = Stopped(number, f"{name}: {text}" if text else "")
        return self.raised


def set_handler(number: int, handler: Handler) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


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
