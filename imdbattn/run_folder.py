"""What a run leaves behind, and how it is found again.

config.yaml  environment.json  metrics.json  metrics.csv  checkpoints/best.ckpt  checkpoints/last.ckpt  *.png
predictions.parquet  reviews.parquet (of test)  validation_predictions.parquet  validation_reviews.parquet
"""

import contextlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from imdbattn.errors import UserError
from imdbattn.files import write_atomically, writing_into
from imdbattn.runs.cpu import products
from imdbattn.settings.keys import PACKAGE, flat
from imdbattn.settings.safety import read_settings
from imdbattn.settings.schema import read_run

PACKAGES = (
    "imdbattn",
    "torch",
    "lightning",
    "torchmetrics",
    "hydra-core",
    "wandb",
    "datasets",
    "tokenizers",
    "sacrebleu",
    "numpy",
)


def environment() -> dict[str, Any]:
    """Versions, hardware and the git commit (with + when files were changed) that a result belongs to."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    commit = ""
    with contextlib.suppress(OSError):  # no git on this machine
        if git("rev-parse", "--show-toplevel") == str(PACKAGE.parent):  # a checkout, not a wheel inside another project
            commit = git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "float32_products": products(),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git_commit": commit or None,
        "versions": {name: version(name) for name in PACKAGES},
    }


def temporary_files(folder: Path) -> Iterator[Path]:
    """What a writer that was killed has left in a run folder, in checkpoints/ and in pictures/."""
    for file in (*folder.glob("*.tmp"), *folder.glob("[cp]*/*.tmp")):
        if re.fullmatch(r"\.?[\w-]+\.(yaml|json|csv|parquet|ckpt|png|html)\.\w+\.tmp", file.name):
            yield file


def check_folder(folder: Path) -> None:
    """Raises UserError unless a run may be written into `folder`: it is absent, empty, or holds a run."""
    if not folder.is_dir():
        return
    inside = set(folder.iterdir())
    if folder / "config.yaml" in inside:
        keys = flat(read_settings(folder / "config.yaml")).keys()
        if {"model.name", "data.source", "optim._target_", "trainer._target_", "warmup", "decay", "seed"} <= keys:
            return
    elif not {file for file in inside if file.suffix not in (".log", ".lock") and file.name != ".lock"} - {
        *temporary_files(folder)
    }:
        return
    raise UserError(f"{os.path.relpath(folder)} holds files that are not a run's: choose another hydra.run.dir")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(values, indent=2) + "\n")


def write_predictions(path: Path, scores: Any, rows: Any) -> None:
    """predictions.parquet: row in the source, and what `scores.columns()` says of each item of the split."""
    write_table(path, {"row": rows[scores.rows_N.numpy()], **scores.columns()})


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """A Parquet file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), buffer)
    write_atomically(path, buffer.getvalue())


def link_texts(texts: Path, path: Path) -> None:
    """Puts the reviews' texts into the run folder: as a hard link into the cache, which takes no room, or as a copy."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing_into(path.parent, "choose another folder"):
        try:
            try:
                os.link(texts, temporary)
            except OSError:  # another disk, or a file system without links
                shutil.copyfile(texts, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def open_run(run: str | None, trust: Any = None, own: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Path]:
    """Settings and best checkpoint of a run folder. Raises UserError naming what is missing, or not trusted.

    trust, own: see `refuse_untrusted`.
    """
    if not run:
        raise UserError("run=<run folder> is needed: the path that training printed at its end")
    folder = Path(run).expanduser()
    if not os.path.isdir(folder):  # False for a name that is too long, where Path.is_dir raises
        raise UserError(f"run={run} is not a folder: give the path that training printed")
    config, checkpoint = folder / "config.yaml", folder / "checkpoints" / "best.ckpt"
    for file in (config, checkpoint):
        if not file.exists():
            raise UserError(
                f"run={run} is no finished run: it has no {file.relative_to(folder)}. Give the path that training "
                "printed, or resume it: imdbattn.train resume=..."
            )
    return read_run(config, trust, own), checkpoint
