"""The software and hardware of a run."""

import functools
import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

import torch

from imdbattn.runs.trainer import float32_products
from imdbattn.settings.keys import PACKAGE

PACKAGES = (
    *("imdbattn", "torch", "lightning", "torchmetrics", "hydra-core"),
    *("wandb", "datasets", "tokenizers", "sacrebleu", "numpy"),
)


def environment() -> dict[str, Any]:
    """Content of environment.json."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "float32_products": float32_products(),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git_commit": git_commit(),
        "versions": {name: version(name) for name in PACKAGES},
    }


@functools.cache
def git_commit() -> str | None:
    """The commit of this checkout, with + if files were changed; None in an installed package or without git."""
    if not (PACKAGE.parent / ".git").exists() or shutil.which("git") is None:
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(PACKAGE), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "HEAD") + "+" * bool(git("status", "--porcelain")) or None


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
