"""The types of comparison.json. Accuracies, shares and differences are fractions."""

from collections.abc import Sequence
from typing import Any, TypedDict

Interval = tuple[float, float] | None  # None where nothing is known about the spread


class Skipped(TypedDict):
    folder: str
    reason: str


class Spread(TypedDict):
    """Values over seeds. sd: their standard deviation, None for a single one."""

    mean: float
    sd: float | None
    values: Sequence[float]


class Curve(TypedDict, total=False):
    """A curve over epochs or lengths; empty without values.

    values: for each seed a list with a value, or None, for each x.
    """

    x: list[int]
    values: list[list[float | None]]


class LargestClass(TypedDict):
    """The largest class. share: the accuracy of a model that always predicts it."""

    label: str
    share: float
    uneven: bool


class VariantResults(TypedDict):
    """The results of a variant: runs that differ in their seed only.

    trained_on: the lengths of the shortest and the longest training string. lengths: the accuracy
    of an encoder-decoder by length.
    """

    label: str
    model: str
    extends: str | None
    seeds: list[int]
    folders: list[str]
    validation: Spread | None
    test: Spread | None
    folds: Spread | None
    bleu: dict[str, Spread | None]  # keys: splits
    parameters: float | None
    tokens_per_s: float | None
    train_seconds: float | None
    epochs: float | None
    ece: float
    confusion: list[list[float]]
    macro_f1: Spread | None
    slices: dict[str, float]
    trained_on: list[int]
    lengths: Curve
    curves: dict[str, Curve]
    metric: Spread
    metric_validation: Spread | None
    interval: Interval


# "from" is a keyword of Python
VariantPair = TypedDict(
    "VariantPair",
    {
        "from": str,
        "to": str,
        "metric": str,
        "difference": float,
        "interval": Interval,
        "only_to_right": float,
        "only_from_right": float,
        "p": float,
        "holm_p": float,
        "verdict": str,
        "mcnemar_p": float,
    },
)


class Disagreement(TypedDict):
    """An item on which variants differ. probability: the probability of the label by variant."""

    row: int
    label: str
    text: str
    probability: dict[str, float]
    spread: float


class ScoredItems(TypedDict):
    """The items that runs were scored on. count: their number."""

    split: str
    test_set: str
    fingerprint: str
    count: int


class ComparedSet(ScoredItems):
    """A comparison of runs that were scored on the same items.

    slices: the number of items in each. chosen_by: the validation metrics that chose the epochs.
    remarks: sentences on what else pairs differ in, and why a variant has no pair.
    """

    metric: str
    items: str
    unit: str
    labels: list[str]
    largest_class: LargestClass | None
    overrides: list[str]
    shared_settings: dict[str, object]
    chosen_by: list[str]
    one_validation: bool
    environments: list[dict[str, object]]
    folders: list[str]
    method: dict[str, Any]  # level of the intervals, words of the slices
    slices: dict[str, int]
    variants: list[VariantResults]
    pairs: list[VariantPair]
    remarks: list[str]
    disagreements: list[Disagreement]
    untested: list[str]
    skipped: list[Skipped]
