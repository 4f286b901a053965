"""Reviews of users: a folder like aclImdb, tables for each split, or one table."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from imdbattn.data.labels import comparison_key, with_class_numbers
from imdbattn.data.sources.hub import is_saved, saved_reviews, state_of
from imdbattn.data.split_names import split_named
from imdbattn.data.splits import Source, Texts
from imdbattn.data.user_files import tables
from imdbattn.errors import UserError
from imdbattn.io.files import sha256_of
from imdbattn.settings.schema import ReviewDataSettings

log = logging.getLogger(__name__)

UNLABELED = ("unsup", "unsupervised")  # names of reviews without labels
REMEDY = "rename it, or move it elsewhere"


def path_source(path: Path, settings: ReviewDataSettings) -> Source:
    """Returns a folder like aclImdb, one with a table for each split, or a table to be split."""
    if path.is_dir() and is_saved(path):
        return saved_reviews(path, settings)
    columns = (settings.text_column, settings.label_column, settings.encoding_errors)
    label_names = settings.label_names and [*settings.label_names]
    files = given_splits(path, {*columns[:2]}) if path.is_dir() else {"": [path]}
    states = []  # what changes when the content of the files does
    for split, group in files.items():
        if is_text(group[0]):  # there may be many of these
            states.append(f"{split}={state_of(group, path)}")
        else:
            states += [f"{split}={sha256_of(file)}" for file in group]

    def load() -> Texts:
        read: dict[str, tuple[list[str], list[str]]] = {}
        for split, group in files.items():
            texts, labels = read[split] = [], []
            for file in group:
                if is_text(file) and file != path:
                    texts.append(tables.read_text(file, settings.encoding_errors))
                    labels.append(file.parent.name)
                else:
                    more_texts, more_labels = read_reviews(file, settings)
                    texts += more_texts
                    labels += more_labels
        return with_class_numbers(read, label_names, path)

    return Source("path", str(path.resolve()), repr((states, columns, label_names)), load)


def is_text(file: Path) -> bool:
    """Returns whether a file is one review, not a table."""
    return tables.suffix_of(file) == ".txt"


def read_reviews(file: Path, settings: ReviewDataSettings) -> tuple[list[str], list[str]]:
    """Returns the texts and labels of a table."""
    columns = {"data.text_column": settings.text_column, "data.label_column": settings.label_column}
    texts, labels = tables.read_columns(file, columns, settings.encoding_errors)
    return texts, labels


def given_splits(path: Path, columns: set[str]) -> dict[str, list[Path]]:
    """Returns the files of each split in a folder: tables, or the texts in <split>/<label>/*.txt;
    `unsup` is skipped.

    Names of splits are compared without case. A split may be in several tables,
    train-00000-of-00002 and so on. The log names the tables and folders that are not used.

    columns: of texts and labels. Raises UserError if the files of a split are ambiguous.
    """
    contents = {}  # the files of each table and folder
    parts: dict[str, list[tuple[tuple[int, int], Path]]] = {}  # splits -> (number, entry)
    others, unreadable = [], {}
    for entry in tables.visible_in(path):
        contents[entry] = files_of(entry)
        split, number = split_named(tables.stem_of(entry) if entry.is_file() else entry.name)
        if not contents[entry]:
            unreadable[split_named(entry.name.partition(".")[0])[0]] = entry
        elif split:
            parts.setdefault(split, []).append((number, entry))
        else:
            others.append(entry)
    for split, entry in unreadable.items():
        if split and split not in parts:
            wanted = f"a table ({', '.join(tables.SUFFIXES)}) nor a folder with <label>/*.txt"
            raise UserError(f"{entry} is neither {wanted}: {REMEDY}")
    files: dict[str, list[Path]] = {}
    for split, numbered in parts.items():
        numbered.sort()
        count = len(numbered)
        if [number for number, _ in numbered] != [(number, count) for number in range(count)]:
            names = ", ".join(entry.name for _, entry in numbered)
            remedy = f"keep one, or all parts from {split}-00000-of-n on"
            raise UserError(f"data.path={path} has {names} for the split {split}: {remedy}")
        files[split] = [file for _, entry in numbered for file in contents[entry]]
    labels = labels_of(file for group in files.values() for file in group)
    for entry in others:
        has_labels = not labels.isdisjoint(labels_of(contents[entry]))
        if has_labels if entry.is_dir() else has_columns(entry, columns):
            named = "has labeled reviews, but is not named train, validation, test"
            raise UserError(f"{entry} {named}: {REMEDY}")
    if others:
        log.warning("%s: not used: %s", path, ", ".join(entry.name for entry in others))
    return files


def labels_of(files: Iterable[Path]) -> set[str]:
    """Returns the comparison keys of the names of the files' folders."""
    return {comparison_key(file.parent.name) for file in files}


def files_of(entry: Path) -> list[Path]:
    """Returns a table, or the texts <entry>/<label>/*.txt in numeric order, but only one per label
    if the folder is not named as a split; else nothing.
    """
    if entry.is_file():
        return [entry] if tables.suffix_of(entry) in tables.SUFFIXES else []
    folders = [inner for inner in tables.visible_in(entry) if inner.is_dir()]
    labels = [folder for folder in folders if folder.name.casefold() not in UNLABELED]
    if split_named(entry.name)[0]:
        return [text for label in labels for text in tables.numbered(tables.visible_in(label))]
    return [text for label in labels for text in [*label.glob("*.txt")][:1]]


def has_columns(file: Path, columns: set[str]) -> bool:
    """Returns whether a table that is not named as a split has these columns."""
    if tables.stem_of(file).casefold().partition("-")[0] in UNLABELED:
        return False
    with suppress(Exception):  # another program may have written it
        return columns <= {*tables.open_table(file)[0]}
    return False
