"""Reviews of users: a folder like aclImdb, tables for each split, or one table."""

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.data.labels import comparison_key, label_of, with_class_numbers
from imdbattn.data.sources.hub import is_saved, saved_reviews, state_of
from imdbattn.data.split_names import split_named
from imdbattn.data.splits import SPLITS, Source, Texts
from imdbattn.data.user_files import tables
from imdbattn.errors import UserError
from imdbattn.io.files import sha256_of

if TYPE_CHECKING:
    from imdbattn.settings.schema import ReviewDataSettings


log = logging.getLogger(__name__)

# labels, comparison_key, that programs write for none
MISSING = ("", "nan", "na", "n/a", "#n/a", "<na>", "none", "null")
UNLABELLED = ("unsup", "unsupervised")  # names of reviews without labels


def path_source(path: Path, cfg: "ReviewDataSettings") -> Source:
    """Returns a folder like aclImdb, one with a table for each split, or a table to be split."""
    if path.is_dir() and is_saved(path):
        return saved_reviews(path, cfg)
    columns = (cfg.text_column, cfg.label_column, cfg.encoding_errors)
    label_names = cfg.label_names and [*cfg.label_names]
    files = given_splits(path, *columns[:2]) if path.is_dir() else {"": [path]}
    states = [
        f"{split}={state}" for split, group in files.items() for state in states_of(group, path)
    ]

    def read(file: Path) -> tuple[list[str], list[str]]:
        if tables.suffix_of(file) == ".txt" and file != path:
            return [tables.read_text(file, cfg.encoding_errors)], [file.parent.name]
        return read_reviews(file, *columns, label_names or ())

    def load() -> Texts:
        by_split: dict[str, tuple[list[str], list[str]]] = {}
        places = {}
        for split, group in files.items():
            by_file = [read(file) for file in group]
            texts = [*chain.from_iterable(own for own, _ in by_file)]
            by_split[split] = texts, [*chain.from_iterable(own for _, own in by_file)]
            places[split] = group[0] if len(group) == 1 else path
        return with_class_numbers(by_split, label_names, path, columns[1], places)

    return Source("path", str(path.resolve()), repr((states, columns, label_names)), load)


def states_of(files: Sequence[Path], path: Path) -> list[str]:
    """Returns what changes when the content of files does: the checksum of each table, or one of
    the names, sizes and times of texts, of which there may be many.
    """
    if tables.suffix_of(files[0]) != ".txt":
        return [sha256_of(file) for file in files]
    return [state_of(files, path)]


def given_splits(path: Path, text_column: str, label_column: str) -> dict[str, list[Path]]:
    """Returns the files of each split in a folder: tables, or the texts in <split>/<label>/*.txt;
    `unsup` is skipped.

    Names of splits are compared without case. A split may be in several tables,
    train-00000-of-00002 and so on. The log names the tables and folders that are not used.
    Raises UserError if it is not known which files belong to a split.
    """
    visible = tables.visible_in(path)
    contents = {entry: inside for entry in visible if (inside := files_of(entry))}
    entries: dict[str, list[tuple[tuple[int, int], Path]]] = {}  # of each split, with their numbers
    others = []
    for entry in contents:
        split, number = split_named(tables.stem_of(entry) if entry.is_file() else entry.name)
        if split is None:
            others.append(entry)
        else:
            entries.setdefault(split, []).append((number, entry))
    for entry in visible:
        split, _ = split_named(entry.name.partition(".")[0])
        if split and split not in entries:
            formats = ", ".join(tables.SUFFIXES)
            named = f"a table named {split} ({formats}) nor a folder with <label>/*.txt"
            raise UserError(f"{entry} is neither {named}: rename it, or move it elsewhere")
    files: dict[str, list[Path]] = {}
    for split, numbered in entries.items():
        numbered.sort()
        count = len(numbered)
        if [number for number, _ in numbered] != [(number, count) for number in range(count)]:
            names = ", ".join(entry.name for _, entry in numbered)
            remedy = f"keep one, or all parts from {split}-00000-of-n on"
            raise UserError(f"data.path={path} has {names} for the split {split}: {remedy}")
        files[split] = [file for _, entry in numbered for file in contents[entry]]
    used = {comparison_key(file.parent.name) for group in files.values() for file in group}
    for entry in others:
        if entry.is_dir():
            labelled = not used.isdisjoint(
                comparison_key(file.parent.name) for file in contents[entry]
            )
        else:
            labelled = has_columns(entry, {text_column, label_column})
        if labelled:
            raise UserError(
                f"{entry} has labeled reviews, but is not named {', '.join(SPLITS)}: rename it, or"
                " move it elsewhere"
            )
    if others:
        log.warning("%s: not used: %s", path, ", ".join(entry.name for entry in others))
    return files


def files_of(entry: Path) -> list[Path]:
    """Returns a table, or the texts in <entry>/<label>/*.txt in numeric order, of a folder that is
    not named as a split one for each label; else nothing.
    """
    if entry.is_file():
        return [entry] if tables.suffix_of(entry) in tables.SUFFIXES else []
    folders = [inner for inner in tables.visible_in(entry) if inner.is_dir()]
    labels = [folder for folder in folders if folder.name.casefold() not in UNLABELLED]
    if split_named(entry.name)[0]:
        return [text for label in labels for text in tables.numbered(tables.visible_in(label))]
    return [text for label in labels for text in [*label.glob("*.txt")][:1]]


def has_columns(file: Path, columns: set[str]) -> bool:
    """Returns whether a table that is not named as a split has these columns."""
    if tables.stem_of(file).casefold().partition("-")[0] in UNLABELLED:
        return False
    try:
        return columns <= {*tables.open_table(file)[0]}
    except Exception:  # a file of another program
        return False


def read_reviews(
    file: Path,
    text_column: str,
    label_column: str,
    encoding_errors: str,
    label_names: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Returns texts and labels of a table. Raises UserError for a missing label, see MISSING."""
    columns = {"data.text_column": text_column, "data.label_column": label_column}
    texts, labels = tables.read_columns(file, columns, encoding_errors)
    missing = ("",) if label_names else MISSING
    names = {label: label_of(label) for label in {*labels} if comparison_key(label) not in missing}
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
