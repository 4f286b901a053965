"""Cross-validation: folds of a source without given splits, each of which is the test split of one run.

Shape suffix: N reviews.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from imdbattn.data.sources import Rule, Split, Texts, fingerprint, labelled_texts
from imdbattn.errors import UserError, in_line


def fold_rule(reviews: Texts, name: str, fold: int, folds: int) -> tuple[Texts, Rule]:
    """The reviews with the facts of the cross-validation, and the rule that takes fold `fold` of `folds` as test.

    Raises UserError if the source has given splits other than training, or a class has fewer reviews than folds.
    """
    if given := [split for split in reviews.splits if split not in ("", "train")]:
        raise UserError(
            f"{name} has its own {' and '.join(given)} split, so data.folds={folds} cannot cut it: omit data.folds, or "
            "give reviews without splits, such as data.source=packaged or data.path=<one file>"
        )
    (whole,) = reviews.splits.values()
    for label, count in zip(*np.unique(whole.labels, return_counts=True), strict=True):
        if count < folds:
            label_name = in_line(reviews.label_names[label])
            raise UserError(f"data.folds={folds}, but {name} has {count} reviews of {label_name}: use fewer folds")
    digest = fingerprint([f"{folds} folds\0", *labelled_texts(whole)])  # equal folds have equal fingerprints
    facts = {"cross_validation": {"folds": folds, "fold": fold, "fingerprint": digest}}
    rule = Rule(
        "reviews",
        f"fold {fold} of {folds} in consecutive blocks per class",
        "data.folds and data.validation_share",
        partial(fold_cut, fold=fold, folds=folds),
    )
    return replace(reviews, facts=facts), rule


def fold_cut(
    rest: Split, shares: Mapping[str, float], given: object = None, *, fold: int, folds: int
) -> dict[str, np.ndarray]:
    """Indices of train, validation and test, each in consecutive blocks of every class; test is fold `fold`.

    Validation is the block before the fold. The first review of a class follows its last one, so validation of the
    first fold is the end of the class. Few films are then in two splits; see `block_cut`.
    """
    parts: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": []}
    for label in np.unique(rest.labels):
        index = np.flatnonzero(rest.labels == label)
        start, stop = (end * len(index) // folds for end in (fold - 1, fold))
        others = np.concatenate([index[stop:], index[:start]])
        train = max(0, len(others) - round(shares["validation"] * len(index)))
        for name, part in zip(parts, (others[:train], others[train:], index[start:stop]), strict=True):
            parts[name].append(part)
    return {name: np.sort(np.concatenate(part)) for name, part in parts.items()}
