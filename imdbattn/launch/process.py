"""Prepares a command's process before torch is loaded, and ends a process with its parent."""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1  # Linux: send this process a signal when its parent ends


def prepare() -> None:
    """Sets how long torch's OpenMP threads spin while they wait (docs/speed.md).

    Has an effect only before torch is loaded. The commands call it; a program of your own may call
    it before `import torch`. Where other programs run, the threads do not spin, because they would
    keep the processor from each other. Does nothing if GOMP_SPINCOUNT or
    OMP_WAIT_POLICY is set, or where there is no /proc/loadavg.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
        return
    if not os.path.exists("/proc/loadavg"):
        return
    running = []
    for _ in range(3):
        with open("/proc/loadavg") as file:
            running.append(int(file.read().split()[3].split("/")[0]))
        time.sleep(0.001)
    os.environ["GOMP_SPINCOUNT"] = "0" if min(running) > 1 else "30000"


def end_with_parent(parent: int) -> None:
    """Ends this process when its parent process ends, on Linux; ends it at once if `parent` is no
    longer its parent.

    The signal is SIGTERM, on which a job saves its state; SIGKILL for a DDP rank other than 0,
    which would wait for other ranks.
    """
    if sys.platform == "linux":
        rank = os.environ.get("LOCAL_RANK", "0")
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM if rank == "0" else signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
