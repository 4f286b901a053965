"""Scores of each class of a classifier, and metrics by name.

Suffixes of arrays: N items, C classes.
"""

from collections.abc import Callable

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]  # (labels_N, probabilities_NC) -> a number
UNEVEN_SHARE = 0.6  # a larger share of the largest class makes accuracy hard to read


def confusion(labels_N: np.ndarray, predicted_N: np.ndarray, classes: int) -> np.ndarray:
    """Returns (C, C): number of items by label (row) and prediction (column)."""
    return np.bincount(labels_N * classes + predicted_N, minlength=classes**2).reshape(
        classes, classes
    )


def f1(confusion_CC: np.ndarray) -> np.ndarray:
    """Returns the F1 of each class, (C,); nan for a class that is neither a label nor predicted."""
    with np.errstate(invalid="ignore"):
        return 2 * confusion_CC.diagonal() / (confusion_CC.sum(0) + confusion_CC.sum(1))


def macro_f1(confusion_CC: np.ndarray) -> float:
    """Returns the mean of the classes' F1, without nan values."""
    return float(np.nanmean(f1(confusion_CC)))


def is_uneven(largest_share: float, classes: int) -> bool:
    """Returns whether accuracy may hide a class, so that macro F1 is reported with it.

    largest_share: the share of the largest class.
    """
    return classes > 2 or largest_share > UNEVEN_SHARE


def details(confusion_CC: np.ndarray) -> dict[str, object]:
    """Returns the part of metrics.json with macro F1, the share of the largest class, and for each
    class F1, recall and its row of the matrix; None instead of nan.
    """
    with np.errstate(invalid="ignore"):
        recall_C = confusion_CC.diagonal() / confusion_CC.sum(1)  # nan for a class without items
    return {
        "macro_f1": macro_f1(confusion_CC),
        "largest_class": float(confusion_CC.sum(1).max() / confusion_CC.sum()),
        "f1": without_nan(f1(confusion_CC)),
        "recall": without_nan(recall_C),
        "confusion": confusion_CC.tolist(),
    }


def without_nan(scores_C: np.ndarray) -> list[float | None]:
    """Returns the scores of the classes with None instead of nan."""
    return [None if np.isnan(score) else score for score in scores_C.tolist()]


def short_name(name: str) -> str:
    """Returns the name of a metric in metrics.json, such as `saving` for `mypkg.metrics.saving`."""
    return name.rpartition(".")[2]
