"""The labels of reviews: which spellings are equal, and the names and numbers of classes."""

import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from imdbattn.data.splits import Split, Texts
from imdbattn.errors import UserError, one_line

log = logging.getLogger(__name__)

# Comparison keys of what programs write where there is no label
MISSING = {"", "nan", "na", "n/a", "#n/a", "<na>", "none", "null"}
WHOLE = re.compile(r"[+-]?\d{1,300}")  # a whole number


def counted(row: int) -> str:
    """Returns the name of a row in messages."""
    return f"row {row} (counted from 0)"


def label_of(label: object) -> str:
    """Returns a label as text, without surrounding spaces: true for True, 1 for 1.0 and "1.0"."""
    text = str(label).lower() if isinstance(label, bool) else str(label)
    return re.sub(r"^([+-]?\d+)\.0*$", r"\1", text.strip())


def comparison_key(label: str) -> str:
    """Returns a form of a label that all its spellings share: without case, invisible characters
    and variants of the same letters.
    """
    label = "".join(
        sign for sign in unicodedata.normalize("NFKC", label) if unicodedata.category(sign) != "Cf"
    )
    label = label_of(unicodedata.normalize("NFKC", label.casefold()))
    return str(int(label)) if WHOLE.fullmatch(label) else label


def with_class_numbers(
    rows: Mapping[str, Sequence[tuple[str, object]]],
    label_names: Sequence[str] | None,
    where: object,
) -> Texts:
    """Returns the texts of each split with class numbers instead of labels. The names of the
    classes are `label_names`, or the different labels of training.

    rows: text and label of each row of a split. where: the source, for messages. Raises UserError
    for a missing label or an unknown class.
    """
    names = list(label_names or ())
    if not names:
        trained = [split for split in ("", "train") if split in rows] or [*rows]
        labels = [label_of(label) for split in trained for _, label in rows[split]]
        names = names_of_labels(labels, where)
    splits = {}
    for split, rows_of_split in rows.items():
        place = f"{where}, {split}" if split else where
        numbers = number_labels([label for _, label in rows_of_split], names, place)
        texts = [text for text, _ in rows_of_split]
        splits[split] = Split(texts, numbers, np.arange(len(numbers)))
    return Texts(splits, names)


def names_of_labels(labels: list[str], where: object) -> list[str]:
    """Returns the different labels, sorted: as numbers if all are whole numbers, else as words.

    Raises UserError for a label that may mean a missing one, and for too many different labels.
    """
    names = {*labels}
    for name in sorted(names):
        if comparison_key(name) in MISSING:
            has = f"the label {name}, which may mean none" if name else "no label"
            remedy = "fill it, remove the row, or set data.label_names"
            raise UserError(f"{where}: {counted(labels.index(name))} has {has}: {remedy}")
    if len(names) > max(10, len(labels) / 2):
        raise UserError(
            f"{where} has {len(names)} different labels in {len(labels)} rows: set"
            " data.label_column to the column with the labels"
        )
    whole = all(map(WHOLE.fullmatch, names))
    return sorted(sorted(names), key=int if whole else None)  # the inner sort fixes ties: 01, 1


def number_labels(labels: Sequence[object], names: Sequence[str], where: object) -> np.ndarray:
    """Returns the class number of each label; 1.0 equals 1. If no label is the name of a class, all
    are read as numbers of classes, with a warning.

    Raises UserError for two names that are the same word, and for a label that is no class.
    """
    check_spellings(names, where)
    cleaned = [label_of(label) for label in labels]
    classes = one_line(", ".join(names))
    numbers = {label_of(name): number for number, name in enumerate(names)}
    if numbers.keys().isdisjoint(cleaned):
        numbers = {str(number): number for number in range(len(names))}
        if numbers.keys() >= {*cleaned}:
            log.warning("%s: the labels %s are read as %s", where, ", ".join(numbers), classes)
    for row, label in enumerate(cleaned):
        if label not in numbers:
            has = f"the label {one_line(label)}, which is not" if label else "no label, instead of"
            raise UserError(
                f"{where}: {counted(row)} has {has} one of {classes} (training, or"
                " data.label_names)"
            )
    return np.array([numbers[label] for label in cleaned])


def check_spellings(names: Sequence[str], where: object) -> None:
    """Raises UserError for two names that are the same word, see `comparison_key`."""
    words: dict[str, str] = {}
    for name in names:
        if (other := words.setdefault(comparison_key(name), name)) is not name:
            raise UserError(
                f"{where}: the labels {other!r} and {name!r} differ at most in case, number format,"
                " accents or invisible characters: spell them the same way"
            )


def check_column(where: object, column: str, names: Sequence[str], setting: str) -> None:
    """Raises UserError unless exactly one column has this name.

    where: the table, for the message. names: its columns. setting: the setting that names the
    column, such as data.text_column, or the column's name if there is no setting.
    """
    count = list(names).count(column)
    if count == 1:
        return
    has = f"{count} columns" if count else "no column"
    known = one_line(", ".join(f"'{name}'" for name in names)) or "none"
    # The name of a column without a setting is fixed.
    remedy = f": set {setting}" if setting != column else ""
    if len(names) == 1 and {*";,\t"} & {*names[0]}:
        remedy = ": separate the columns of a .csv file by commas, those of a .tsv file by tabs"
    raise UserError(f"{where}: {has} '{column}'; it has {known}{remedy}")
