"""A run folder: the names of its files, and what a new run does with it.

Imports nothing slow.

config.yaml, environment.json, metrics.csv and checkpoints/{best,last}.ckpt are written in training;
predictions.parquet and reviews.parquet (of test), validation_predictions.parquet,
validation_reviews.parquet, pictures/ and metrics.json, or debug.json, at its end; evaluations/ and
explanations/ by commands that use the run.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.io.files import acquire_lock, read_json, write_atomically
from imdbattn.settings.trust import read_settings

if TYPE_CHECKING:
    from imdbattn.settings.schema import TrainingSettings

SPLIT_FILES = {  # split -> the files of its predictions and of their texts
    "test": ("predictions.parquet", "reviews.parquet"),
    "validation": ("validation_predictions.parquet", "validation_reviews.parquet"),
}
SPLIT_TABLES = tuple(name for names in SPLIT_FILES.values() for name in names)
# The complete state of a run, and the weights of its best epoch
LAST, BEST = "checkpoints/last.ckpt", "checkpoints/best.ckpt"
TRAINING_FILES = ("metrics.csv", LAST, BEST)
HEX = "[0-9a-f]" * 12
DERIVED_FILES = (  # patterns of the results that are computed with the best checkpoint
    *("pictures/learning_curves.png", "pictures/positions.png", "pictures/distances.png"),
    *("pictures/attention.html", "pictures/attention.png", "pictures/attention_entropy.png"),
    *(f"evaluations/*-{HEX}*.json", f"evaluations/*-{HEX}*.parquet", f"explanations/{HEX}.html"),
)
# In a sweep's folder, a line for each job that has ended; in a search's folder, its settings
SWEEP_LOG, SEARCH_FILE = "sweep.jsonl", "search.yaml"
RUN_KEYS = {"task", "data", "model", "optim", "trainer", "seed"}  # keys of every config.yaml
# A run waits this long for another run in its folder, which may be stopping.
LOCK_SECONDS = 20.0
OTHER_RUN_DIR = "choose another hydra.run.dir"

# Columns of metrics.csv with the share of an attention's head: attention_share/layer1_head2
ATTENTION_SHARE = "attention_share/"


def head_name(attention: str, head: int) -> str:
    """Returns the name of a head, such as layer1_head2; heads are counted from 1."""
    return f"{attention}_head{head}"


def attention_of(head: str) -> str:
    """Returns the attention that a name from `head_name` belongs to, such as layer1."""
    return head.rpartition("_head")[0]


def results_file(settings: "TrainingSettings") -> str:
    """Returns the name of the file with a run's numbers, which is written last."""
    return "debug.json" if settings.is_debug else "metrics.json"


def finished(folder: Path) -> bool:
    """Returns whether a run folder has its results. Debug runs are never finished."""
    return os.path.exists(folder / "metrics.json")  # Path.exists raises for names that are too long


def has_results(folder: Path, test: bool) -> bool:
    """Returns whether a run is finished and, if `test`, scored on the test split."""
    return finished(folder) and (not test or "test_accuracy" in read_json(folder / "metrics.json"))


def group_of(folder: Path) -> str | None:
    """Returns the name of the sweep or search that a run belongs to, if it belongs to one."""
    parent = folder.resolve().parent
    is_group = (parent / SWEEP_LOG).exists() or (parent / SEARCH_FILE).exists()
    return "-".join(parent.parts[-2:]) if is_group else None


def temporary_files(folder: Path) -> Iterator[Path]:
    """Yields the files that a killed process has left in a run folder and in its subfolders."""
    for file in (*folder.glob("*.tmp"), *folder.glob("[cp]*/*.tmp")):
        if re.fullmatch(r"\.?[\w-]+\.(yaml|json|csv|parquet|ckpt|png|html)\.\w+\.tmp", file.name):
            yield file


def check_folder(folder: Path) -> None:
    """Raises UserError unless `folder` is absent, empty or a run folder."""
    if not folder.is_dir():
        return
    names = {
        file.name
        for file in {*folder.iterdir()} - {*temporary_files(folder)}
        if not (file.suffix == ".log" or ".lock" in file.name or file.name == ".hydra")
    }
    is_run = names <= {"environment.json"}  # it is all that a run has that was killed at its start
    if {"environment.json", "config.yaml"} <= names:
        is_run = read_settings(folder / "config.yaml").keys() >= RUN_KEYS
    if not is_run:
        raise UserError(
            f"{os.path.relpath(folder)} contains files other than a run's: {OTHER_RUN_DIR}"
        )


def write_json(path: Path, values: Mapping[str, object]) -> None:
    write_atomically(path, json.dumps(values, indent=2) + "\n")


# --- beginning a folder ---------------------------------------------------------------------------


def is_first_process() -> bool:
    """Returns whether this is the first process of a run, which writes its files."""
    from lightning.pytorch.utilities import rank_zero_only

    return rank_zero_only.rank == 0  # type: ignore[attr-defined]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises UserError if another run uses the folder and does not end within LOCK_SECONDS."""
    if not is_first_process():  # the first process locks it for all
        yield
        return
    busy = f"another run is active in {folder}: wait for it, or {OTHER_RUN_DIR}"
    with acquire_lock(folder / ".lock", busy, LOCK_SECONDS):
        try:
            yield
        finally:
            (folder / ".lock").unlink(missing_ok=True)


def refuse_finished(folder: Path) -> None:
    """Raises UserError for the folder of a finished run, which a new run never replaces."""
    if finished(folder):
        raise UserError(
            f"{os.path.relpath(folder)} contains a finished run, which is not replaced:"
            f" {OTHER_RUN_DIR}, or hydra.sweep.dir for a job on other data, or remove that folder"
        )


def begin_folder(
    folder: Path,
    settings: "TrainingSettings",
    environment: Mapping[str, object],
    keep_training: bool,
) -> None:
    """Removes the files of an unfinished run, except the files of training that is resumed, and
    writes the settings and the environment.

    A finished run, which is only scored on test, keeps its files until they are written again.
    """
    old = [*temporary_files(folder)]
    if not finished(folder):
        old += [folder / name for name in ("debug.json", *SPLIT_TABLES)]
    if not keep_training:
        old += [folder / name for name in TRAINING_FILES]
        old += [file for pattern in DERIVED_FILES for file in folder.glob(pattern)]
    for file in old:
        file.unlink(missing_ok=True)
    # In this order, because a folder with only a config.yaml contains a copy of the user's.
    write_json(folder / "environment.json", environment)
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(settings.dump())))
    runs = Path("runs").resolve()
    if not settings.is_debug and runs in folder.resolve().parents:
        link = runs / f".latest-{os.getpid()}"
        try:
            link.symlink_to(os.path.relpath(folder.resolve(), runs))
            link.replace(runs / "latest")
        except OSError as error:  # no links here, or an archive has made a folder of latest
            link.unlink(missing_ok=True)
            logging.getLogger(__name__).warning("runs/latest does not name this run: %s", error)
