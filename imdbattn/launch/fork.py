"""Starts, stops and waits for the processes in which the jobs of a sweep or a search train.

They are forks of a process that has imported everything. That process must neither have computed
with torch, because a fork has only the calling thread, nor have used CUDA.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from imdbattn.launch.process import end_with_parent

PATIENCE = 20  # seconds in which a run must save its state; SLURM kills it after 30
CONSOLE_FILE, STDERR_FILE = "console.log", "stderr.log"  # what a run has written there


def start_fork(
    work: Callable[[], object], environment: Mapping[str, str], folder: Path | None = None
) -> BaseProcess:
    """Starts a fork of this process that calls `work`, and ends when this process ends.

    folder: receives its output, in CONSOLE_FILE and STDERR_FILE.
    """
    arguments = (work, dict(environment), folder, os.getpid())
    process = get_context("fork").Process(target=run_in_fork, args=arguments)
    process.start()
    return process


def run_in_fork(
    work: Callable[[], object], environment: Mapping[str, str], folder: Path | None, parent: int
) -> None:
    """Runs `work` in the fork, see `start_fork`. parent: the process that called it."""
    end_with_parent(parent)
    for number in (signal.SIGTERM, signal.SIGINT):  # the run replaces these handlers
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if folder is not None:
        for descriptor, name in ((1, CONSOLE_FILE), (2, STDERR_FILE)):
            with open(folder / name, "w") as file:
                os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    forget_shared_state()
    work()


def forget_shared_state() -> None:
    """Replaces what all forks would share. Python's own random numbers are new in each; torch's
    follow from a run's settings.
    """
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "tqdm" in sys.modules:  # a run that is killed would keep the lock of all
        sys.modules["tqdm"].tqdm.set_lock(threading.RLock())


def stop(processes: Sequence[BaseProcess]) -> None:
    """Stops processes, which have PATIENCE seconds to save their state."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + PATIENCE
    with suppress(KeyboardInterrupt):
        while any(process.exitcode is None for process in processes) and time.monotonic() < end:
            time.sleep(0.05)
    for process in processes:
        process.kill()
        process.join()


def wait_for(process: BaseProcess) -> BaseProcess:
    """Waits until a process has ended, and returns it. An exception here stops it."""
    try:
        process.join()
    except BaseException:
        stop([process])
        raise
    return process
