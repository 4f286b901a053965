"""Reviews of users: a folder like aclImdb, tables for each split, or one table."""

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imdbattn.data.labels import folded, label_of, names_of_labels, number_labels
from imdbattn.data.sources.hub import is_saved, saved_reviews
from imdbattn.data.split_names import split_named
from imdbattn.data.splits import SPLITS, Source, Split, Texts, fingerprint
from imdbattn.data.user_files import tables
from imdbattn.errors import UserError
from imdbattn.io.files import sha256_of

if TYPE_CHECKING:
    from imdbattn.settings.schema import ReviewDataSettings


log = logging.getLogger(__name__)

# labels, folded, that programs write for none
MISSING = ("", "nan", "na", "n/a", "#n/a", "<na>", "none", "null")
UNLABELLED = ("unsup", "unsupervised")  # names of reviews without labels


def path_source(path: Path, cfg: "ReviewDataSettings") -> Source:
    """Returns a folder like aclImdb, a folder with tables for each split, or one table that will be
    split.
    """
    if path.is_dir() and is_saved(path):
        return saved_reviews(path, cfg)
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
        states += [f"{split}={checksum}" for checksum in sums]

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
    """Returns the files of each split in a folder: tables, or the texts in <split>/<label>/*.txt;
    `unsup` is skipped.

    Names of splits are compared without case. A split may be in several tables,
    train-00000-of-00002 and so on. The log names the tables and folders that are not used.
    Raises UserError if there is no split, or if it is not known which files belong to one.
    """
    contents: dict[Path, list[Path]] = {}  # tables, and folders of labels with their texts
    visible = tables.visible_in(path)
    for entry in visible:
        if entry.is_file() and tables.suffix_of(entry) in tables.SUFFIXES:
            contents[entry] = [entry]
        elif entry.is_dir() and split_named(entry.name)[0]:
            below = (file for file in tables.files_below(entry, UNLABELLED) if file.parent != entry)
            if texts := tables.numbered(below):
                contents[entry] = texts
        elif entry.is_dir():
            labels = [
                label for label in entry.glob("*/") if label.name.casefold() not in UNLABELLED
            ]
            if one_of_each := [text for label in labels for text in [*label.glob("*.txt")][:1]]:
                contents[entry] = one_of_each
    # their numbers and places
    parts: dict[str | None, list[tuple[tuple[int, int], Path]]] = {None: []}
    for entry in contents:
        split, part = split_named(
            tables.stem_of(entry) if contents[entry] == [entry] else entry.name
        )
        parts.setdefault(split, []).append((part, entry))
    others = [entry for _, entry in parts.pop(None)]
    for entry in visible:
        if (split := split_named(entry.name.partition(".")[0])[0]) and split not in parts:
            formats = ", ".join(tables.SUFFIXES)
            named = f"a table named {split} ({formats}) nor a folder with <label>/*.txt"
            raise UserError(f"{entry} is neither {named}: rename it, or move it elsewhere")
    files: dict[str, list[Path]] = {}
    for split, numbered_entries in parts.items():
        names = ", ".join(entry.name for _, entry in sorted(numbered_entries))
        if sorted(part for part, _ in numbered_entries) != [
            (number, len(numbered_entries)) for number in range(len(numbered_entries))
        ]:
            remedy = f"keep one, or all parts from {split}-00000-of-n on"
            raise UserError(f"data.path={path} has {names} for the split {split}: {remedy}")
        files[str(split)] = [
            file for _, entry in sorted(numbered_entries) for file in contents[entry]
        ]
    for entry in () if files else visible:
        if any(split_named(tables.stem_of(inner))[0] for inner in entry.glob("*")):
            raise UserError(f"{path} has no splits, but {entry} has: set data.path to that folder")
    known = {
        folded(label_folder(path, file))
        for group in files.values()
        for file in group
        if file not in contents
    }
    for entry in others:
        if contents[entry] != [entry]:
            labeled = not known.isdisjoint(
                folded(label_folder(path, file)) for file in contents[entry]
            )
        elif labeled := tables.stem_of(entry).casefold().partition("-")[0] not in UNLABELLED:
            try:
                labeled = {text_column, label_column} <= {*tables.open_table(entry)[0]}
            except Exception:  # a file of another program
                labeled = False
        if labeled:
            names = ", ".join(SPLITS)
            raise UserError(
                f"{entry} has labeled reviews, but is not named {names}: rename it, or move it"
                " elsewhere"
            )
    if others:
        log.warning("%s: not used: %s", path, ", ".join(entry.name for entry in others))
    return files


def label_folder(path: Path, file: Path) -> str:
    """Returns the label of a text, in <split>/<label>/ or in a folder below it."""
    return file.relative_to(path).parts[1]


def read_reviews(
    file: Path,
    text_column: str,
    label_column: str,
    encoding_errors: str,
    label_names: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Returns texts and labels of a table. Raises UserError for a missing label: without
    label_names one of MISSING.
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
