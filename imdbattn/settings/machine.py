"""CPU cores and GPUs of this machine, found without loading torch."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number in range(listed.count("GPU "))]


def slots() -> int:
    """Number of jobs to run in parallel on this machine: one per GPU, or one per core without GPUs."""
    return len(gpus()) or cores()


def threads_of(launcher: Mapping[str, Any]) -> int:
    """CPU threads of each job: the cores that Ray gives it, or its share of this machine's; joblib's -1 is one."""
    if "ray" in launcher:
        return max(1, int(launcher["ray"]["remote"].get("num_cpus") or 1))
    jobs = launcher.get("n_jobs") or 1
    return max(1, cores() // jobs) if jobs > 0 else 1
