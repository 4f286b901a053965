"""Finds the split that a name stands for, in files and data sets of other programs."""

import logging
from collections.abc import Mapping
from typing import TypeVar

from imdbattn.errors import UserError

log = logging.getLogger(__name__)
Table = TypeVar("Table")

# eval and evaluation are missing: some programs mean validation, others test.
SPLIT_NAMES = dict.fromkeys(("validation", "valid", "val", "dev"), "validation") | {
    "train": "train",
    "test": "test",
}


def split_named(name: str) -> str | None:
    """Returns the split that a name stands for, in any case."""
    return SPLIT_NAMES.get(name.casefold())


def by_split(tables: Mapping[str, Table], where: object, remedy: str) -> dict[str, Table]:
    """Returns the table of each split; `train` alone is the split "", from which other splits are
    cut. Other tables are named in the log.

    Raises UserError if two tables belong to the same split, or no table belongs to one.
    """
    splits: dict[str, Table] = {}
    others = []
    for name, table in tables.items():
        split = split_named(name)
        if split is None:
            others.append(name)
        elif split in splits:
            raise UserError(f"{where}: two of {', '.join(tables)} are the split {split}: {remedy}")
        else:
            splits[split] = table
    if not splits:
        raise UserError(
            f"{where}: its splits {', '.join(tables)} are none of train, validation, test: {remedy}"
        )
    if others:
        log.warning("%s: not used: %s", where, ", ".join(others))
    return {"": splits["train"]} if list(splits) == ["train"] else splits
