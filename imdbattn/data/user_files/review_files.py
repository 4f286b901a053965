"""Users' reviews: a folder like aclImdb, tables for each split, or one table."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from imdbattn.data.labels import with_class_numbers
from imdbattn.data.sources.hub import is_saved, saved_reviews
from imdbattn.data.split_names import split_named
from imdbattn.data.splits import Source, Texts
from imdbattn.data.user_files import tables
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.files import sha256_of
from imdbattn.settings.schema import ReviewDataSettings

UNLABELED = ("unsup", "unsupervised")  # names of reviews without labels
PART = re.compile(r"(.+)-(\d+)-of-(\d+)(-[0-9a-f]{16})?")  # a part of a split on the hub
REMEDY = "rename it, or move it elsewhere"


def path_source(path: Path, settings: ReviewDataSettings) -> Source:
    """Returns the source of a folder like aclImdb, a folder of tables for splits, or one table."""
    with wrapping_errors(f"data.path={settings.path}"):
        name = str(path.resolve(strict=True))
    if is_saved(path):
        return saved_reviews(path, settings)
    columns = (settings.text_column, settings.label_column)
    files = files_of_splits(path) if path.is_dir() else {"": [path]}
    sums = []
    for split, group in files.items():
        if is_text(group[0]):
            sums.append(f"{split}={sha256_of_texts(group, path)}")
        else:
            sums += [f"{split}={sha256_of(file)}" for file in group]

    def load() -> Texts:
        rows: dict[str, list[tuple[str, str]]] = {}
        for split, group in files.items():
            rows[split] = []
            for file in group:
                if is_text(file) and file != path:
                    rows[split].append((tables.read_text(file), file.parent.name))
                else:
                    rows[split] += read_reviews(file, settings)
        return with_class_numbers(rows, settings.label_names, path)

    return Source("path", name, repr((sums, columns, settings.label_names)), load)


def is_text(file: Path) -> bool:
    """Returns whether a file is one review, not a table."""
    return tables.suffix_of(file) == ".txt"


def sha256_of_texts(files: Iterable[Path], folder: Path) -> str:
    """Returns the hex digest of files' names in a folder, which include their labels, and of their
    contents.
    """
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(os.fsencode(file.relative_to(folder)) + f"\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def read_reviews(file: Path, settings: ReviewDataSettings) -> list[tuple[str, str]]:
    """Returns text and label of each row of a table."""
    columns = {"data.text_column": settings.text_column, "data.label_column": settings.label_column}
    return [(text, label) for text, label in tables.read_rows(file, columns)]


def files_of_splits(path: Path) -> dict[str, list[Path]]:
    """Returns the files of each split in a folder: tables, or the texts in <split>/<label>/*.txt;
    `unsup` is skipped.

    Names of splits are compared without case. A split may be in several tables,
    train-00000-of-00002 and so on. Raises UserError for a table, or a folder with labeled texts,
    that is not named as a split, and if the files of a split are ambiguous.
    """
    contents = {}  # the files of each table and folder of a split
    parts: dict[str, list[tuple[int, int, Path]]] = {}  # splits -> (part, number of parts, entry)
    for entry in tables.visible_in(path):
        name, part, count = entry.name.partition(".")[0], 0, 1
        if match := PART.fullmatch(name):
            name, part, count = match[1], int(match[2]), int(match[3])
        if split := split_named(name):
            contents[entry] = files_of(entry)
            parts.setdefault(split, []).append((part, count, entry))
            if not contents[entry]:
                wanted = f"a table ({', '.join(tables.SUFFIXES)}) nor a folder with <label>/*.txt"
                raise UserError(f"{entry} is neither {wanted}: {REMEDY}")
        elif name.casefold().partition("-")[0] not in UNLABELED and has_reviews(entry):
            named = "contains reviews, but is not named train, validation, test"
            raise UserError(f"{entry} {named}: {REMEDY}")
    files: dict[str, list[Path]] = {}
    for split, numbered in parts.items():
        numbered.sort()
        entries = [entry for _, _, entry in numbered]
        if numbered != [(part, len(entries), entry) for part, entry in enumerate(entries)]:
            names = ", ".join(entry.name for entry in entries)
            remedy = f"keep one, or all parts from {split}-00000-of-n on"
            raise UserError(f"data.path={path} has {names} for the split {split}: {remedy}")
        files[split] = [file for entry in entries for file in contents[entry]]
    return files


def files_of(entry: Path) -> list[Path]:
    """Returns a table, or the texts <entry>/<label>/*.txt in numeric order; else nothing."""
    if entry.is_file():
        return [entry] if tables.is_table(entry) else []
    labels = [
        inner
        for inner in tables.visible_in(entry)
        if inner.is_dir() and inner.name.casefold() not in UNLABELED
    ]
    return [text for label in labels for text in tables.numbered(tables.visible_in(label))]


def has_reviews(entry: Path) -> bool:
    """Returns whether a table or folder that is not named as a split may contain reviews."""
    return tables.is_table(entry) if entry.is_file() else any(entry.glob("*/*.txt"))
