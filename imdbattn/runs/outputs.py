"""Writes a run folder: its settings when it starts, and its results when it ends."""

import functools
import importlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import OmegaConf

from imdbattn.data.corpus import Corpus
from imdbattn.errors import UserError, only_warning
from imdbattn.io.files import acquired, atomically, write_atomically
from imdbattn.runs.cpu import float32_products
from imdbattn.runs.run_folder import (
    RESULTS,
    SPLIT_FILES,
    finished,
    is_debug,
    results_file,
    temporary_files,
    write_json,
    write_predictions,
)
from imdbattn.settings.keys import FINGERPRINT, PACKAGE
from imdbattn.settings.schema import Training
from imdbattn.tasks.learner import Learner, SplitScores
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.per_class import is_uneven
from imdbattn.tasks.task import task_of

log = logging.getLogger(__name__)

# how long a run waits for another one that uses its folder, which may be stopping
LOCK_SECONDS = 20.0
OTHER_RUN_DIR = "choose another hydra.run.dir"
SPLIT_TABLES = tuple(name for names in SPLIT_FILES.values() for name in names)
TRAINING = ("metrics.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt")
PACKAGES = (
    *("imdbattn", "torch", "lightning", "hydra-core"),
    *("wandb", "datasets", "tokenizers", "sacrebleu", "numpy"),
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises UserError if another run uses the folder and does not end within LOCK_SECONDS."""
    if rank_zero_only.rank:  # type: ignore[attr-defined] # the first process locks it for all
        yield
        return
    busy = f"another run is active in {folder}: wait for it, or {OTHER_RUN_DIR}"
    with acquired(folder / ".lock", busy, LOCK_SECONDS):
        try:
            yield
        finally:
            (folder / ".lock").unlink(missing_ok=True)


def refuse_finished(folder: Path) -> None:
    """Raises UserError for the folder of a finished run, which is never written again."""
    if finished(folder):
        raise UserError(
            f"{os.path.relpath(folder)} contains a finished run, which is not replaced:"
            f" {OTHER_RUN_DIR}, or remove that folder"
        )


def begin_folder(
    folder: Path, cfg: Mapping[str, object], source_key: str, keep_training: bool
) -> None:
    """Removes the files of an unfinished run, except those of the training that is resumed, and
    writes the settings.

    A finished run, which is only scored on test, keeps its files until they are replaced by equal
    ones.
    """
    remove(folder, *(file.relative_to(folder) for file in temporary_files(folder)))
    if not finished(folder):
        remove(folder, "debug.json", *SPLIT_TABLES)
    if not keep_training:
        remove(folder, *TRAINING, *RESULTS)
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(cfg))))
    write_json(folder / "environment.json", environment() | {"source_key": source_key})
    runs = Path("runs").resolve()
    if not is_debug(cfg) and runs in folder.resolve().parents:
        with suppress(OSError):  # a file system without links
            link = runs / f".latest-{os.getpid()}"
            link.symlink_to(os.path.relpath(folder.resolve(), runs))
            link.replace(runs / "latest")


def remove(folder: Path, *names: str | Path) -> None:
    """Removes these files, and folders with all that they contain."""
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def copy_training(source: Path, folder: Path) -> None:
    """Copies the checkpoints of a run, from which the run in `folder` resumes."""
    for name in ("best.ckpt", "last.ckpt"):  # last.ckpt at the end: it refers to best.ckpt
        file = source / "checkpoints" / name
        if file.exists():
            with atomically(folder / "checkpoints" / name) as temporary:
                shutil.copyfile(file, temporary)


def environment() -> dict[str, object]:
    """Returns the content of environment.json."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "memory_gb": memory_gb(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "float32_products": float32_products(),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git_commit": git_commit(),
        "uncommitted": uncommitted(),
        "versions": {name: version(name) for name in PACKAGES},
    }


@functools.cache
def git_commit() -> str | None:
    """Returns the commit of this checkout, with + if files were changed; None in an installed
    package or without git.
    """
    if not (PACKAGE.parent / ".git").exists() or shutil.which("git") is None:
        return None
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    command = ["git", "-C", str(PACKAGE), *describe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


@functools.cache
def uncommitted() -> bool | None:
    """Returns whether conf/ or imdbattn/ of this checkout has changed or untracked files, so that
    `git_commit` does not describe the code; None as in `git_commit`.
    """
    if git_commit() is None:
        return None
    command = ["git", "-C", str(PACKAGE.parent), "status", "--porcelain", "--", "conf", "imdbattn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return bool(done.stdout.strip()) if done.returncode == 0 else None


def processor() -> str | None:
    """Returns the model of the processor, such as `AMD EPYC 7B13`; None where it is unknown."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or None


def memory_gb() -> float | None:
    """Returns the memory of this machine in gigabytes (10^9 bytes); None where it is unknown."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, OSError, ValueError):  # such as on Windows
        return None


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# --- results --------------------------------------------------------------------------------------


def run_facts(cfg: Training, corpus: Corpus) -> dict[str, object]:
    """Returns the part of metrics.json that identifies model and data."""
    return {
        "model": cfg.model.name,
        "seed": cfg.seed,
        "test_set": corpus.test_set,
        **{key: corpus.fingerprints.get(split) for split, key in FINGERPRINT.items()},
        "source_key": corpus.source_key,
        **corpus.facts,
    }


def score_facts(name: str, scores: SplitScores) -> dict[str, object]:
    """Returns the scores of a split by their names in metrics.json; of a classifier with those of
    each class.
    """
    prefix = f"{name}_" if name else ""
    count = getattr(scores, "answers", len(scores.rows_N))
    details = scores.details() if hasattr(scores, "details") else {}
    return {
        prefix + key: value
        for key, value in {**scores.values(), "reviews": count, **details}.items()
    }


def write_results(
    folder: Path, trainer: L.Trainer, module: Learner, data: BatchData, facts: dict[str, object]
) -> dict[str, Any]:
    """Scores the splits with the module's weights, and writes the results. Returns the content of
    metrics.json.

    facts: of training, for metrics.json.
    """
    cfg, corpus = module.cfg, data.corpus
    # these scores are not part of the learning curve
    loggers, trainer.loggers = trainer.loggers, []
    trainer.validate(module, data, verbose=False)
    trainer.loggers = loggers
    scores = {"validation": module.scores}
    if cfg.test:
        trainer.test(module, data, verbose=False)
        scores["test"] = module.scores
    if not is_debug(cfg):
        check_complete(scores, corpus.splits)
    starts = task_of(cfg).starts_model
    metrics = run_facts(cfg, corpus) | ({"starts_model": starts} if starts else {}) | facts
    for split, split_scores in scores.items():
        metrics |= score_facts("val" if split == "validation" else split, split_scores)
    if trainer.is_global_zero:
        for split, split_scores in scores.items():
            predictions, texts = SPLIT_FILES[split]
            write_predictions(folder / predictions, split_scores, corpus.splits[split].rows)
            data.save_texts(split, folder / texts)
        if cfg.pictures:
            with only_warning(log, "Some pictures could not be drawn"):
                draw_pictures(module, data, folder)
        # written last: it marks the run as finished
        write_json(folder / results_file(cfg), metrics)
    return metrics


def check_complete(scores: Mapping[str, SplitScores], splits: Mapping[str, Sized]) -> None:
    """Raises RuntimeError unless every item of the scored splits has a score."""
    for split, split_scores in scores.items():
        scored, all_items = len(split_scores.rows_N), len(splits[split])
        if scored < all_items:
            raise RuntimeError(f"{scored} of {all_items} items of the {split} split were scored")


def draw_pictures(module: Learner, data: BatchData, folder: Path) -> None:
    """Draws the pictures of the task into pictures/ of a run folder."""
    module_name, _, name = task_of(module.cfg).pictures.rpartition(".")
    getattr(importlib.import_module(module_name), name)(module, data, folder)


def summary(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """Returns the results as lines of text."""
    training = (
        "{model}, seed {seed}: {epochs:d} epoch{s} in {train_seconds:.0f} s, {tokens_per_s:.0f}"
        " tokens/s"
    )
    lines = ["", training.format(s="s" * (metrics["epochs"] != 1), **metrics)]
    items = metrics.get("items", "reviews")
    for split, name in (("val", "validation accuracy"), ("test", "test accuracy")):
        if f"{split}_accuracy" in metrics:
            accuracy, count = 100 * metrics[f"{split}_accuracy"], metrics[f"{split}_reviews"]
            bleu = f", BLEU {metrics[f'{split}_bleu']:.1f}" if f"{split}_bleu" in metrics else ""
            largest = largest_class(metrics, split)
            lines.append(f"{name:20} {accuracy:6.2f} %  of {count:d} {items}{bleu}{largest}")
    if "test_accuracy" in metrics:
        lines.append(f"test set             {metrics['test_set']} [{metrics['test_fingerprint']}]")
    lines.append(f"run folder           {os.path.relpath(folder)}")
    return lines


def largest_class(metrics: Mapping[str, Any], split: str) -> str:
    """Returns the share of the largest class, which is the accuracy of a model that always answers
    it, and macro F1 where classes are uneven; nothing without classes.
    """
    share = metrics.get(f"{split}_largest_class")
    if share is None:
        return ""
    text = f", largest class {100 * share:.2f} %"
    if is_uneven(share, len(metrics["labels"])):
        text += f", macro F1 {100 * metrics[f'{split}_macro_f1']:.2f} %"
    return text
