"""Finds the CPU cores, GPUs and launchers of this machine without importing torch."""

import importlib.util
import os
import shutil
import subprocess
from contextlib import suppress

from imdbattn.settings.keys import Plain


def cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """Returns the GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    ).stdout
    return [str(number) for number in range(listed.count("GPU "))]


def slots() -> int:
    """Returns how many jobs to run in parallel: one per GPU, or one per core without a GPU."""
    return len(gpus()) or cores()


def threads_of(launcher: Plain) -> int:
    """Returns the CPU threads per job: its CPUs in Ray, else its share of the cores; n_jobs=-1 is
    one job per core.
    """
    if "ray" in launcher:
        return max(1, int(launcher["ray"]["remote"].get("num_cpus") or 1))
    jobs = launcher.get("n_jobs") or 1
    return max(1, cores() // jobs) if jobs > 0 else 1


def has_plugin(name: str) -> bool:
    """Returns whether a package of Hydra's plugins is installed."""
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    return False
