"""Finds CPU cores, GPUs, and how many jobs they can run. Does not import torch."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from imdbattn.settings.schema import TrainerSettings, TrainingSettings

JOBS_PER_GPU = 12  # rungs of the ladder, measured with eager steps on an H200 with 16 cores
GPU_MB = 1200  # memory of such a job on its GPU, about half of it CUDA's own
LARGE_WIDTH = 512  # layers of this width keep a GPU busy


def cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_memories(names: Sequence[str] = ()) -> list[int]:
    """Returns the memory of these GPUs, or of all, in MB; an empty list without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    if names:
        command.append(f"--id={','.join(names)}")
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [int(line) for line in lines if line.strip().isdigit()]


def gpus_for(settings: TrainingSettings) -> list[str]:
    """Returns the GPUs that jobs with these settings are spread over, by their names in
    CUDA_VISIBLE_DEVICES: none if they train on the CPU, on several devices, or on a certain one.
    """
    if settings.trainer.accelerator == "cpu" or not any_device(settings.trainer):
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        # -1 hides all GPUs
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number in range(len(gpu_memories()))]


def jobs_side_by_side(settings: TrainingSettings, names: Sequence[str]) -> int:
    """Returns how many jobs with these settings to run at once: on the CPU one per core; on GPUs
    JOBS_PER_GPU on each, as far as cores and memory suffice, or one on each if the layers are wide;
    one if a job uses several devices, or a certain one.

    names: the names of their GPUs.
    """
    if not any_device(settings.trainer):
        return 1
    if not names:
        return cores()
    if (getattr(settings.model.net, "width", None) or 0) >= LARGE_WIDTH:
        return len(names)
    room = min(gpu_memories(names), default=GPU_MB * JOBS_PER_GPU) // GPU_MB
    return max(len(names), min(len(names) * min(JOBS_PER_GPU, room), cores() * 3 // 4))


def threads_each(jobs: int) -> int | None:
    """Returns the CPU threads of each job; None, which is torch's default, for a single job."""
    return max(1, cores() // jobs) if jobs > 1 else None


def any_device(trainer: TrainerSettings) -> bool:
    """Returns whether a Trainer uses one device, whichever that is."""
    return trainer.devices in (1, "1") and trainer.num_nodes == 1


def one_process(trainer: TrainerSettings) -> bool:
    """Returns whether a Trainer with these settings needs one process. With other settings,
    Lightning starts the command again for each device.
    """
    is_certain_one = isinstance(trainer.devices, list) and len(trainer.devices) == 1
    return any_device(trainer) or (is_certain_one and trainer.num_nodes == 1)
