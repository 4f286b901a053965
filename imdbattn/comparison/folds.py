"""Cross-validation: the runs of all folds of a model count as one run, which has scored every review once.

Shape suffix: N reviews.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from statistics import mean
from typing import Any

import numpy as np

from imdbattn.comparison.runs import Predictions, Run, Skipped, grouped, skip
from imdbattn.errors import UserError
from imdbattn.run_folder import FINGERPRINT, Curves

NUMBERS = ("val_accuracy", "parameters", "tokens_per_s", "train_seconds", "epochs")  # means over folds


@dataclass(frozen=True, eq=False, kw_only=True)
class CrossValidation(Run):
    """The runs of all folds as one run. parts: the runs, by fold. joined: their test predictions, by row."""

    joined: Predictions
    order_N: np.ndarray  # places of the rows among the predictions of one fold after another

    def has(self, split: str) -> bool:
        return split == "test"

    def predictions(self, split: str) -> Predictions:
        return self.joined

    def texts(self, split: str) -> list[str] | None:
        texts = [text for run in self.parts for text in run.texts(split) or ()]
        return [texts[n] for n in self.order_N] if len(texts) == len(self.order_N) else None


def join_folds(runs: Iterable[Run], skipped: Iterable[Skipped]) -> tuple[list[Run], list[Skipped]]:
    """The runs, with one in place of those of all folds of a cross-validation, and the skipped folders.

    A cross-validation without the test predictions of all folds is skipped. Raises UserError if no run remains.
    """
    runs, skipped = list(runs), list(skipped)
    joined = [run for run in runs if not run.metrics.get("cross_validation")]
    for group in grouped((run for run in runs if run.metrics.get("cross_validation")), all_but_fold):
        try:
            joined.append(join(group))
        except Exception as error:  # any exception of a broken file
            skipped.append(skip(group[0].folder, error))
    if not joined:
        raise UserError(f"no run can be compared: {skipped[-1]['folder']} ({skipped[-1]['reason']})")
    return joined, skipped


def all_but_fold(run: Run) -> list[Any]:
    fingerprint = run.metrics["cross_validation"]["fingerprint"]
    return [run.model, run.digest, run.metrics["seed"], fingerprint, run.metrics.get("start")]


def join(runs: Sequence[Run]) -> CrossValidation:
    """The runs of one cross-validation as one run.

    Raises UserError if a fold is missing or folds share reviews; any exception of a broken file.
    """
    folds, fingerprint = (runs[0].metrics["cross_validation"][key] for key in ("folds", "fingerprint"))
    name = f"cross-validation of {runs[0].model}, seed {runs[0].metrics['seed']}"
    by_fold = {run.metrics["cross_validation"]["fold"]: run for run in runs if run.has("test")}
    if missing := [str(fold) for fold in range(1, folds + 1) if fold not in by_fold]:
        raise UserError(
            f"{name}: no test predictions of fold {', '.join(missing)} of {folds}, so its other folds are omitted too"
        )
    runs = [by_fold[fold] for fold in range(1, folds + 1)]
    first, parts = runs[0], [run.predictions("test") for run in runs]
    rows_N = np.concatenate([part.rows_N for part in parts])
    order_N = np.argsort(rows_N)
    if len(np.unique(rows_N)) < len(rows_N):
        raise UserError(f"{name}: its folds share reviews")
    columns = ([getattr(part, field.name) for part in parts] for field in fields(Predictions))
    joined = Predictions(*(np.concatenate(column)[order_N] for column in columns))
    values: dict[str, list[Any]] = {key: [run.metrics.get(key) for run in runs] for key in NUMBERS}
    fingerprints = "".join(str(run.fingerprint("validation")) for run in runs)
    metrics = first.metrics | {
        **{key: None if None in numbers else mean(numbers) for key, numbers in values.items()},
        "test_accuracy": float(joined.right_N.mean()),
        "test_set": first.metrics["test_set"].replace(f": fold 1 of {folds} ", f": {folds} folds "),
        FINGERPRINT["test"]: fingerprint,
        FINGERPRINT["validation"]: sha256(fingerprints.encode()).hexdigest()[:16],
    }
    return CrossValidation(
        first.folder,
        first.settings,
        metrics,
        first.environment,
        mean_curves(runs),
        parts=runs,
        fold_accuracies=[float(part.right_N.mean()) for part in parts],
        joined=joined,
        order_N=order_N,
    )


def mean_curves(runs: Sequence[Run]) -> Curves:
    """The learning curves that all runs have, as means over runs, up to the last epoch of the shortest."""
    curves = {}
    for name in set.intersection(*(set(run.curves) for run in runs)):
        epochs = sorted(set.intersection(*(set(run.curves[name]) for run in runs)))
        curves[name] = {epoch: mean(run.curves[name][epoch] for run in runs) for epoch in epochs}
    return curves
