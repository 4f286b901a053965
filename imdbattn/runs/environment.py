"""The software and hardware that a result belongs to."""

import functools
import os
import platform
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
    """The commit, with + if files were changed; None where there is no git or the package is not in a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if git("rev-parse", "--show-toplevel") != str(PACKAGE.parent):  # such as a wheel inside another project
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "") or None
    except OSError:
        return None


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
