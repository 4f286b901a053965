"""The source of reviews that the settings name, and the division into splits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from imdbattn.data.sources import (
    SPLITS,
    Source,
    Split,
    Texts,
    check_splits,
    divided,
    fingerprint,
)
from imdbattn.data.sources.imdb import decided, hub_or_packaged, hub_source, packaged_source
from imdbattn.errors import UserError
from imdbattn.io.files import expanded


def find_source(cfg: Any) -> Source:
    """Returns the source that the `data` settings name; `auto` is decided here.

    Only the modules of that source are imported.
    """
    if not isinstance(cfg.source, str):
        from imdbattn.data.sources.own import own_reviews

        return own_reviews(cfg.source, cfg.label_names)
    if cfg.source == "order_probe":
        from imdbattn.data.sources.order_probe import order_probe_source

        return order_probe_source(cfg.probe)
    if cfg.path:
        from imdbattn.data.user_files.review_files import path_source

        return path_source(expanded(cfg.path), cfg)
    if cfg.hub:
        from imdbattn.data.sources.hub import hub_reviews

        return hub_reviews(cfg)
    if cfg.source == "auto":
        return hub_or_packaged(cfg.hub_timeout)
    return hub_source() if cfg.source == "hub" else packaged_source()


def decided_source(data: Any) -> str | None:
    """The source that data.source=auto stands for; None if it is not used.

    Raises an exception for a data.path that does not exist, before the first of many jobs.
    """
    if data.source not in ("auto", "path"):
        return None
    find_source(data)
    return None if data.path or data.hub else decided(data.hub_timeout)


# --- cutting --------------------------------------------------------------------------------------


def cut_reviews(
    reviews: Texts,
    name: str,
    shares: Mapping[str, float] | None,
    fold: tuple[int, int] | None = None,
    limit: int | None = None,
) -> Texts:
    """Train, validation and test by `block_cut`, or by `fold_cut` for a fold, (its number, number
    of folds).

    shares: see `divided`. limit: number of reviews to keep, see `limited`.
    Raises UserError if a split is empty or training has one class, and if the source of a fold has
    splits of its own.
    """

    def places(train: Split, missing: dict[str, float]) -> dict[str, np.ndarray]:
        if not fold:
            return block_cut(train.labels, missing)
        if len(missing) < 2:
            own = "has validation or test splits of its own"
            raise UserError(
                f"{name} {own}: omit data.folds, or give one file, or data.source=packaged"
            )
        return fold_cut(train.labels, shares["validation"], *fold)  # type: ignore[index]

    test_set = (
        f"fold {fold[0]} of {fold[1]}" if fold else f"a cut of {(shares or {}).get('test', 0):.0%}"
    )
    cut = divided(reviews, name, shares, places, f"{test_set} in consecutive blocks per class")
    if fold:
        (whole,) = reviews.splits.values()
        digest = fingerprint([f"{fold[1]} folds\0", *whole.labelled()])  # the same for all folds
        cut = replace(
            cut,
            facts={"cross_validation": {"folds": fold[1], "fold": fold[0], "fingerprint": digest}},
        )
    cut = limited(cut, limit) if limit else cut
    if shares is not None:
        check_splits(cut, name)
    return cut


def limited(reviews: Texts, limit: int) -> Texts:
    """A random subset of `limit` reviews, stratified by split and class.

    Each review stays in its split, and a smaller limit selects a subset of the reviews of a larger
    limit.
    """
    cells = []  # split, label and, in random order, the reviews of each
    for split, part in reviews.splits.items():
        for label in np.unique(part.labels):
            rng = np.random.default_rng((SPLITS.index(split), label))
            cells.append((split, label, rng.permutation(np.flatnonzero(part.labels == label))))
    sizes = [len(order) for *_, order in cells]
    places = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    chosen = np.argsort(places, kind="stable")[:limit]
    counts = np.bincount(np.repeat(np.arange(len(cells)), sizes)[chosen], minlength=len(cells))
    kept: dict[str, list[np.ndarray]] = {}
    for (split, _, order), count in zip(cells, counts, strict=True):
        kept.setdefault(split, []).append(order[:count])
    splits = {
        split: reviews.splits[split].take(np.sort(np.concatenate(parts)))
        for split, parts in kept.items()
    }
    return replace(reviews, splits=splits, test_set=f"{reviews.test_set}, data.limit={limit}")


def block_cut(labels_N: np.ndarray, shares: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Consecutive blocks of every class: indices of train, then of each name in `shares`.

    Consecutive reviews of IMDB are about the same film: with a random split, 97% of held-out
    reviews are about a film that is also in training, with consecutive blocks 37%.
    """
    ends = np.cumsum([1 - sum(shares.values()), *shares.values()])[:-1]
    classes = [np.flatnonzero(labels_N == label) for label in np.unique(labels_N)]
    return joined(
        ("train", *shares),
        [np.split(index, np.round(ends * len(index)).astype(int)) for index in classes],
    )


def fold_cut(
    labels_N: np.ndarray, validation: float, fold: int, folds: int
) -> dict[str, np.ndarray]:
    """Indices of train, validation and test, each in consecutive blocks of every class; test is
    fold `fold`.

    validation: share of the block before the fold. The blocks wrap around, so validation of the
    first fold is the end of each class.
    """
    classes = []
    for label in np.unique(labels_N):
        index = np.flatnonzero(labels_N == label)
        start, stop = (end * len(index) // folds for end in (fold - 1, fold))
        others = len(index) - (stop - start)
        train = max(0, others - round(validation * len(index)))
        classes.append(np.split(np.roll(index, -stop), [train, others]))
    return joined(SPLITS, classes)


def joined(names: Sequence[str], classes: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Indices of each split, ascending, of those of each class."""
    return {
        name: np.sort(np.concatenate(parts))
        for name, parts in zip(names, zip(*classes, strict=True), strict=True)
    }
