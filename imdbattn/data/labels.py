"""The labels of reviews: which of them are the same, and the names and numbers of classes."""

import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from imdbattn.data.splits import Split, Texts
from imdbattn.errors import UserError, in_line

log = logging.getLogger(__name__)


def label_of(label: str) -> str:
    """Returns a label for comparisons: without surrounding spaces, 1.0 as 1."""
    return re.sub(r"^([+-]?\d+)\.0*$", r"\1", label.strip())


def as_label(value: object) -> str:
    """Returns a label as in a table: True as true, 1.0 as 1."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def comparison_key(label: str) -> str:
    """Returns a label without case, invisible characters and forms of the same letters."""
    label = "".join(
        sign for sign in unicodedata.normalize("NFKC", label) if unicodedata.category(sign) != "Cf"
    )
    label = label_of(unicodedata.normalize("NFKC", label.casefold()))
    return str(int(label)) if re.fullmatch(r"[+-]?\d{1,300}", label) else label


def names_of_labels(labels: list[str], where: object, label_column: str | None) -> list[str]:
    """Returns the different labels, sorted: as numbers if all are whole numbers, else as words.

    label_column: its name; None where there are no columns. Raises UserError if there are too many
    of them to be labels.
    """
    names = {*labels}
    if len(names) > max(10, len(labels) / 2):
        many = f"{len(names)} different labels in {len(labels)} rows"
        if label_column is None:
            raise UserError(f"{where} has {many}: they must be classes")
        raise UserError(
            f"{where}: column '{label_column}' has {many}: set data.label_column to the column with"
            " the labels"
        )
    whole = all(re.fullmatch(r"[+-]?\d{1,300}", name) for name in names)
    return sorted(sorted(names), key=int if whole else None)  # first as words: 01 equals 1


def with_class_numbers(
    read: Mapping[str, tuple[list[str], list[str]]],
    label_names: Sequence[str] | None,
    where: object,
    label_column: str | None,
    places: Mapping[str, object],
) -> Texts:
    """Returns texts and labels of each split with class numbers instead of labels. The names of the
    classes are `label_names`, or the different labels of training: one that only another split
    has is an error.

    where, label_column: see `names_of_labels`. places: of each split, for messages.
    """
    trained = [split for split in ("", "train") if split in read] or [*read]
    names = [*label_names] if label_names else []
    if not names:
        labels = [label for split in trained for label in read[split][1]]
        names = names_of_labels(labels, where, label_column)
    splits = {}
    for split, (texts, labels) in read.items():
        numbers = number_labels(labels, names, places[split])
        splits[split] = Split(texts, numbers, np.arange(len(numbers)))
    return Texts(splits, names)


def number_labels(labels: list[str], names: list[str], file: object) -> np.ndarray:
    """Returns the class numbers: the index in `names` of each label, or the labels if all of them
    are indices. 1.0 equals 1.

    Raises UserError for two names that are the same word, see `comparison_key`, and for a label
    that is none of them.
    """
    words: dict[str, str] = {}
    for name in names:
        if (other := words.setdefault(comparison_key(name), name)) is not name:
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
                f"{file}: row {row} (counted from 0) has the label {in_line(label)}, {known}"
            )
    return np.array([numbers[label] for label in labels])


USUAL_COLUMNS = {  # usual names of the column with texts, and of that with labels
    "text": ("text", "review", "content", "sentence", "comment", "body"),
    "label": ("label", "sentiment", "target", "polarity", "stars", "rating", "class", "category"),
}


def check_column(where: object, column: str, names: Sequence[str], setting: str) -> None:
    """Raises UserError unless exactly one column has this name; the message proposes a usual name.

    where: the table, for the message. names: of its columns. setting: that names the column, such
    as data.text_column.
    """
    count = list(names).count(column)
    if count == 1:
        return
    has = f"{count} columns" if count else "no column"
    known = in_line(", ".join(f"'{name}'" for name in names))
    usual = {name.casefold(): name for name in reversed(names)}
    kind = setting.removesuffix("_column").rpartition(".")[2]
    proposed = [usual[name] for name in USUAL_COLUMNS.get(kind, ()) if name in usual]
    perhaps = f", perhaps to {proposed[0]}" if proposed else ""
    raise UserError(f"{where}: {has} '{column}'; it has {known}: set {setting}{perhaps}")
