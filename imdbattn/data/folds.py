"""Cross-validation: a fold of the reviews is the test split, and the block before it validation."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from imdbattn.data.splits import SPLITS, Split, Texts, cut_classes, fingerprint, with_all_splits
from imdbattn.errors import UserError


def cut_fold(
    reviews: Texts, name: str, shares: Mapping[str, float], fold: int, folds: int, limit: int | None
) -> Texts:
    """Returns train, validation and test, which is fold `fold`, counted from 1.

    For the other arguments, see `with_all_splits`; the share of test is not used. Raises UserError
    also if the source has splits of its own.
    """
    if len(reviews.splits) > 1:
        remedy = "omit data.folds, or give one file, or data.source=packaged"
        raise UserError(f"{name} already has a validation or test split: {remedy}")
    (whole,) = reviews.splits.values()
    # All folds have this fingerprint.
    of_whole = fingerprint([f"{folds} folds\0", *whole.fingerprint_lines()])
    facts = {"folds": folds, "fold": fold, "fingerprint": of_whole}
    test_set = f"fold {fold} of {folds} in consecutive blocks per class"
    indices = partial(fold_indices, fold=fold, folds=folds)
    cut = with_all_splits(reviews, name, shares, indices, test_set, limit)
    return replace(cut, facts={"cross_validation": facts})


def fold_indices(
    reviews: Split, shares: Mapping[str, float], fold: int, folds: int
) -> dict[str, np.ndarray]:
    """Returns the indices of train, validation and test, each in consecutive blocks of every class;
    test is fold `fold`.

    The blocks wrap around, so the validation block of the first fold is the end of each class.
    """

    def cut(index: np.ndarray) -> list[np.ndarray]:
        start, stop = (end * len(index) // folds for end in (fold - 1, fold))
        others = len(index) - (stop - start)
        train = max(0, others - round(shares["validation"] * len(index)))
        return np.split(np.roll(index, -stop), [train, others])

    return cut_classes(reviews.labels, SPLITS, cut)
