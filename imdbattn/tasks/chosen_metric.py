"""The metric that a setting names for a classifier, other than accuracy and loss.

Suffixes of arrays: N items, C classes.
"""

import numpy as np

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.settings.objects import import_object
from imdbattn.tasks.metrics import Metric, confusion, macro_f1, short_name

# In metrics.json, other values of a split have these names, as in test_set.
NAMES_IN_USE = (
    *("accuracy", "loss", "bleu", "macro_f1", "largest_class"),
    *("f1", "recall", "confusion", "count", "set", "fingerprint"),
)


def macro_f1_of(labels_N: np.ndarray, probabilities_NC: np.ndarray) -> float:
    """Returns the macro F1 of the classes with the largest probabilities."""
    classes = probabilities_NC.shape[1]
    return macro_f1(confusion(labels_N, probabilities_NC.argmax(1), classes))


def metric_of(name: str, setting: str) -> Metric:
    """Returns the metric that a setting names: macro_f1, or the dotted path of a function.

    Raises UserError for a function that cannot be imported.
    """
    return macro_f1_of if name == "macro_f1" else import_object(name, setting)


def checked_metric(name: str, setting: str) -> Metric:
    """Returns the metric that a setting names.

    Raises UserError for a function that cannot be imported, whose name another value in
    metrics.json has, or that does not return a number.
    """
    if name != "macro_f1" and short_name(name) in NAMES_IN_USE:
        raise UserError(f"{setting}={name}: choose another name than {', '.join(NAMES_IN_USE)}")
    metric = metric_of(name, setting)
    try:
        value = metric(np.arange(20) % 2, np.full((20, 2), 0.5))
    except Exception:  # it may be meant for other labels
        return metric
    with wrapping_errors(f"{setting}={name} does not return a number"):
        float(value)
    return metric
