"""Finds and reads finished run folders, and joins cross-validations.

Suffixes of arrays: N items (reviews, strings or sentences), C classes.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os.path import getmtime
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from imdbattn.errors import UserError, one_line
from imdbattn.folders.run import Curves, Run, mean_curve
from imdbattn.folders.run_folder import SEARCH_FILE, SPLIT_FILES, finished
from imdbattn.io.files import with_home
from imdbattn.report.comparison_types import Skipped
from imdbattn.settings.keys import FINGERPRINT_KEYS, NestedDict, hexdigest, variant_digest

Item = TypeVar("Item")


@dataclass(frozen=True)
class SplitPredictions:
    """A run's predictions for a split."""

    rows_N: np.ndarray  # row numbers in the source
    labels_N: np.ndarray  # true classes, or first references as text
    right_N: np.ndarray  # whether each prediction is correct
    confidence_N: np.ndarray  # probabilities of the model's outputs
    label_probability_N: np.ndarray  # probabilities of the true labels
    lengths_N: np.ndarray  # numbers of source tokens that were read
    # predicted classes and probabilities of the classes; None for an encoder-decoder
    predicted_N: np.ndarray | None = None
    probabilities_NC: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run, or a cross-validation, whose folds are finished runs."""

    opened: Run
    metrics: NestedDict
    curves: Curves
    folds: Sequence["FinishedRun"] = ()  # the folds of a cross-validation
    group_folder: str = ""  # a student's folder, for example, with by_folder (`find_runs`)

    @property
    def folder(self) -> Path:
        return self.opened.folder

    @property
    def settings(self) -> dict[str, Any]:
        return self.opened.raw_settings

    @property
    def model(self) -> str:
        return self.settings["model"]["name"]

    @property
    def overrides(self) -> list[str]:
        """The overrides on its command line, which name its variant."""
        return sorted(self.settings.get("overrides", []))

    @property
    def variant_identity(self) -> dict[str, object]:
        """What the runs of a variant have in common: `origin` and fingerprints of the splits."""
        return self.origin | {split: self.fingerprint(split) for split in FINGERPRINT_KEYS}

    @property
    def origin(self) -> dict[str, object]:
        """What the runs of a variant on different folds have in common."""
        facts = self.metrics
        is_fold = bool(facts.get("cross_validation"))
        return {
            "model": self.model,
            # a run of another program, such as a baseline, has not recorded the digest
            "settings": self.settings.get("variant") or variant_digest(self.settings),
            "epochs": (self.settings.get("trainer") or {}).get("max_epochs"),
            "vectors": facts.get("vectors"),
            "training texts": None if is_fold else facts.get("train_fingerprint"),
            "additional texts": facts.get("extra_fingerprint"),
            "first weights": facts.get("init_digest"),
            "tokenizer": facts.get("tokenizer"),
            "group folder": self.group_folder,
        }

    @property
    def items(self) -> str:
        """What was scored: reviews, or, by an encoder-decoder, strings or sentences."""
        return str(self.metrics["items"])

    @property
    def is_classifier(self) -> bool:
        return "labels" in self.metrics

    @property
    def labels(self) -> list[str]:
        """Names of the classes; [] for an encoder-decoder."""
        return self.metrics["labels"] if self.is_classifier else []

    @property
    def path(self) -> str:
        """The path of its folder, for display."""
        return display(self.folder)

    def fingerprint(self, split: str) -> str | None:
        return self.metrics.get(FINGERPRINT_KEYS[split])

    def is_scored(self, split: str) -> bool:
        """Returns whether the run has predictions, accuracy and fingerprint of a split."""
        if self.folds:
            return split == "test"
        scored = split == "validation" or self.metrics.get("test_accuracy") is not None
        return (
            scored
            and self.fingerprint(split) is not None
            and (self.folder / SPLIT_FILES[split][0]).exists()
        )

    def predictions(self, split: str) -> SplitPredictions:
        """Reads the predictions of a split. Raises UserError for probabilities that are NaN."""
        table = self.read(SPLIT_FILES[split][0])
        labels_N = table["label"].to_numpy()
        predicted_N = probabilities_NC = None
        if self.is_classifier:
            predicted_N = table["predicted"].to_numpy()
            probabilities_NC = np.stack(table["probabilities"].to_numpy()).astype(float)
            right_N = predicted_N == labels_N
            confidence_N = probabilities_NC.max(1)
            label_probability_N = probabilities_NC[np.arange(len(labels_N)), labels_N]
        else:
            right_N = table["right"].to_numpy()
            confidence_N = table["probability"].to_numpy(float)
            label_probability_N = table["label_probability"].to_numpy(float)
        if not np.isfinite([confidence_N, label_probability_N]).all():
            raise UserError("its probabilities are not finite: did training diverge?")
        return SplitPredictions(
            rows_N=table["row"].to_numpy(),
            labels_N=labels_N,
            right_N=right_N,
            confidence_N=confidence_N,
            label_probability_N=label_probability_N,
            lengths_N=table["length"].to_numpy(),
            predicted_N=predicted_N,
            probabilities_NC=probabilities_NC,
        )

    def texts(self, split: str, rows_N: np.ndarray) -> list[str]:
        """Returns the source texts of these rows."""
        return self.read(SPLIT_FILES[split][1]).set_index("row")["text"].loc[rows_N].tolist()

    def read(self, name: str) -> pd.DataFrame:
        """Reads a Parquet file of the run folder, or of all folds."""
        tables = [fold.opened.table(name) for fold in self.folds or [self]]
        return pd.concat(tables).sort_values("row") if self.folds else tables[0]


def find_runs(
    folders: Iterable[str | Path], by_folder: bool = False
) -> tuple[list[FinishedRun], list[Skipped]]:
    """Finds the finished runs in `folders` at any depth, each once, and the folders to skip.

    If runs have the same settings, seed and data, the newest is used. by_folder: compares runs in
    different folders of `folders` separately; a single folder is replaced by its subfolders.

    Raises UserError if a folder is missing, or if there is no finished run.
    """
    roots = list(map(with_home, folders))
    by_identity: dict[str, list[FinishedRun]] = {}  # several for repeated runs
    skipped: list[Skipped] = []
    for folder, group_folder in group_folders(roots, by_folder).items():
        try:
            run = replace(read_run(folder), group_folder=group_folder)
            identity = json.dumps([run.variant_identity, run.metrics["seed"]], sort_keys=True)
        except Exception as error:  # a broken file must not stop the comparison
            skipped.append(as_skipped(folder, error))
        else:
            by_identity.setdefault(identity, []).append(run)
    if not by_identity:
        searched = ", ".join(map(str, roots)) or "runs="
        first = f"; skipped: {skipped[0]['folder']} ({skipped[0]['reason']})" if skipped else ""
        raise UserError(f"no finished run in {searched}{first}: choose another folder")
    runs = []
    for equal in by_identity.values():
        *older, newest = sorted(equal, key=lambda run: getmtime(run.folder / "metrics.json"))
        runs.append(newest)
        reason = f"it was run again in {newest.path}"
        if not by_folder:
            reason += "; by_folder=true shows runs of different folders"
        skipped += [as_skipped(run.folder, reason) for run in older]
    return runs, skipped


def group_folders(roots: Sequence[Path], by_folder: bool) -> dict[Path, str]:
    """Returns the run folders in `roots`, each with the name of its root, or of the subfolder of a
    single root, or with the path of a root whose name another root has; without by_folder, with "".
    Raises UserError for a missing root.
    """
    for root in roots:
        if not root.is_dir():
            raise UserError(f"runs={root}: there is no such folder")
    if by_folder and len(roots) == 1:
        roots = sorted(path for path in roots[0].iterdir() if path.is_dir())
    names = [root.name for root in roots]
    groups: dict[Path, str] = {}
    for root in roots:
        name = root.name if names.count(root.name) == 1 else str(root)
        for folder in run_folders(root):
            groups.setdefault(folder, name if by_folder else "")
    return groups


def run_folders(root: Path) -> Iterator[Path]:
    """Yields the folders with a config.yaml, sorted by path, without the trials of searches.

    A link is followed only to a run folder, which prevents cycles.
    """
    for path, inside, files in os.walk(root):
        if "config.yaml" in files:
            yield Path(path).resolve()
            inside.clear()
        # Trials have no test predictions; with them, everything would be compared on validation.
        if SEARCH_FILE in files:
            inside[:] = [name for name in inside if not name.startswith("trial-")]
        inside[:] = sorted(name for name in inside if not name.startswith(".") and name != "wandb")
        for name in inside:
            folder = Path(path, name)
            if folder.is_symlink() and (folder / "config.yaml").exists():
                yield folder.resolve()


def read_run(folder: Path) -> FinishedRun:
    """Opens a run folder. Raises UserError for a run that cannot be compared."""
    run = Run(folder)
    if not finished(folder) or run.metrics.get("next_model"):
        raise UserError(
            "not a result: an unfinished run, a debug run, or a pretraining, which predicts words"
        )
    return FinishedRun(run, run.metrics, run.curves)


def as_skipped(folder: Path, reason: str | Exception) -> Skipped:
    """Returns the folder for display, and why it is skipped."""
    if isinstance(reason, Exception) and not isinstance(reason, UserError):
        reason = f"unreadable: {type(reason).__name__}: {reason}"
    return {"folder": display(folder), "reason": one_line(reason, 300)}


def display(folder: Path) -> str:
    """Returns the path, relative to the current folder if it is below it."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


# --- cross-validation -----------------------------------------------------------------------------


def grouped(items: Iterable[Item], key: Callable[[Item], object]) -> list[list[Item]]:
    """Groups the items with equal keys, which JSON can hold; groups and items keep their order."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(json.dumps(key(item), sort_keys=True), []).append(item)
    return list(groups.values())


def join_folds(
    runs: Sequence[FinishedRun], skipped: Sequence[Skipped]
) -> tuple[list[FinishedRun], list[Skipped]]:
    """Merges the runs of the folds of each cross-validation into one run.

    Returns the runs and the skipped folders. If a fold has no test predictions, the
    cross-validation is skipped.
    """
    skipped = list(skipped)
    joined = [run for run in runs if not run.metrics.get("cross_validation")]
    folds = [run for run in runs if run.metrics.get("cross_validation")]

    def all_but_fold(run: FinishedRun) -> list[object]:
        facts = run.metrics
        return [run.origin, facts["seed"], facts["cross_validation"]["fingerprint"]]

    for group in grouped(folds, all_but_fold):
        try:
            joined.append(one_run_of_folds(group))
        except Exception as error:  # a broken file may raise anything
            skipped.append(as_skipped(group[0].folder, error))
    return joined, skipped


def one_run_of_folds(runs: Sequence[FinishedRun]) -> FinishedRun:
    """Returns the folds of a cross-validation as one run, with their `fold_accuracies` as a metric.

    Its other numbers are means over the folds. Raises UserError if a fold is missing.
    """
    about = runs[0].metrics["cross_validation"]
    folds = about["folds"]
    name = f"cross-validation of {runs[0].model}, seed {runs[0].metrics['seed']}"
    by_fold = {
        run.metrics["cross_validation"]["fold"]: run for run in runs if run.is_scored("test")
    }
    if missing := [str(fold) for fold in range(1, folds + 1) if fold not in by_fold]:
        raise UserError(
            f"{name}: no test predictions of fold {', '.join(missing)} of {folds}, so its other"
            " folds are omitted too"
        )
    runs = [by_fold[fold] for fold in range(1, folds + 1)]
    first = runs[0]
    rights = [run.predictions("test").right_N for run in runs]
    numbers = [name for name, value in first.metrics.items() if isinstance(value, int | float)]
    fingerprints = [run.fingerprint("validation") for run in runs]
    metrics = first.metrics | {
        **{name: mean_over_runs(runs, name) for name in numbers},
        "test_accuracy": float(np.concatenate(rights).mean()),
        "fold_accuracies": [float(right_N.mean()) for right_N in rights],
        "test_set": first.metrics["test_set"].replace(f": fold 1 of {folds} ", f": {folds} folds "),
        FINGERPRINT_KEYS["test"]: about["fingerprint"],
        FINGERPRINT_KEYS["validation"]: hexdigest({"folds": fingerprints}),
    }
    curves: Curves = {}
    for name in first.curves:
        if means := mean_curve([run.curves.get(name, {}) for run in runs]):
            curves[name] = means  # they have the epochs that all folds have
    return replace(first, metrics=metrics, curves=curves, folds=runs)


def values_of(runs: Sequence[FinishedRun], name: str) -> list[float]:
    """Returns a value of metrics.json for each run; [] if a run does not have it."""
    values = [run.metrics[name] for run in runs if run.metrics.get(name) is not None]
    return values if len(values) == len(runs) else []


def mean_over_runs(runs: Sequence[FinishedRun], name: str) -> float | None:
    values = values_of(runs, name)
    return mean(values) if values else None
