"""Starts a run in its folder: locks it, removes old results, writes the settings and environment.json."""

import functools
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import OmegaConf

from imdbattn.files import acquired, write_atomically
from imdbattn.run_folder import CONTINUED, RESULTS, SPLIT_FILES, is_debug, run_of, temporary_files, write_json
from imdbattn.runs.cpu import float32_products
from imdbattn.settings.keys import PACKAGE

LOCK_SECONDS = 20.0  # how long a run waits for another one that uses its folder, which may be stopping
REMEDY = "choose another hydra.run.dir"
PACKAGES = (
    *("imdbattn", "torch", "lightning", "torchmetrics", "hydra-core"),
    *("wandb", "datasets", "tokenizers", "sacrebleu", "numpy"),
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises UserError if another run uses the folder and does not end within LOCK_SECONDS."""
    if rank_zero_only.rank:  # type: ignore[attr-defined] # the first process locks it for all
        yield
        return
    busy = f"another run is active in {folder}: wait for it, or {REMEDY}"
    with acquired(folder / ".lock", busy, LOCK_SECONDS):
        try:
            yield
        finally:
            (folder / ".lock").unlink(missing_ok=True)


def begin_folder(folder: Path, cfg: Mapping[str, Any], source_key: Any, keep_training: bool) -> None:
    """Removes the files of an earlier run, except those of the training that is resumed, and writes the settings."""
    old = ["metrics.json", "debug.json", *(name for names in SPLIT_FILES.values() for name in names)]
    if not keep_training:
        old += ["metrics.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt"]
    for file in (*(folder / name for name in old), *temporary_files(folder)):
        file.unlink(missing_ok=True)
    for name in () if keep_training else (*RESULTS, CONTINUED):
        shutil.rmtree(folder / name, ignore_errors=True)
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(cfg))))
    write_json(folder / "environment.json", environment() | {"source_key": source_key})
    runs = Path("runs").resolve()
    if folder == run_of(folder) and not is_debug(cfg) and runs in folder.resolve().parents:
        with suppress(OSError):  # a file system without links
            link = runs / f".latest-{os.getpid()}"
            link.symlink_to(os.path.relpath(folder.resolve(), runs))
            link.replace(runs / "latest")


def end_continuation(folder: Path, cfg: Mapping[str, Any], source_key: Any) -> None:
    """Moves its files into the folder of the finished run, in an order in which `resume=` works after each."""
    begin_folder(run := run_of(folder), cfg, source_key, keep_training=True)
    for name in RESULTS:
        shutil.rmtree(run / name, ignore_errors=True)
    for file in sorted(folder.rglob("*.*"), key=lambda file: (file.name == "metrics.json", file.name == "last.ckpt")):
        (target := run / file.relative_to(folder)).parent.mkdir(exist_ok=True)
        file.replace(target)
    shutil.rmtree(folder)


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
