"""What every source of pairs gives: a name for what will be read, and splits as text.

Shape suffix: N items of a split.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from imdbattn.errors import UserError

SPLITS = ("train", "validation", "test")


class TextPairs(NamedTuple):
    """One split as text. A text is symbols joined by single spaces, at least one; no symbol holds white space."""

    sources: list[str]  # N
    targets: list[list[str]]  # N times all right targets of that source, at least one
    rows: np.ndarray  # (N,) int64, where the (first) pair stood in the file, or which generated one it is


class Texts(NamedTuple):
    """All splits of a source."""

    splits: dict[str, TextPairs]
    test_set: str  # a name for a person
    dropped: int  # pairs that were read and left out


@dataclass(frozen=True)
class PairSource:
    """What will be read: `key` changes when the content does; `load(uncut)` reads it."""

    kind: str  # reverse, path, hub or packaged
    name: str  # for a person
    key: str
    load: Callable[[bool], Texts] = field(compare=False)

    @property
    def checksum(self) -> str:
        """16 hex digits that change when `key` does."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


def whole(cfg: Mapping[str, Any], key: str, least: int, most: int = sys.maxsize) -> int:
    """The whole number data.`key`; UserError where it is none, or out of range."""
    if type(value := cfg.get(key)) is not int or not least <= value <= most:
        words = f"at least {least}" + (f" and at most {most:,}" if most < sys.maxsize else "")
        raise UserError(f"data.{key}={'null' if value is None else value} must be a whole number, {words}")
    return value


def choice(cfg: Mapping[str, Any], key: str, *choices: object) -> Any:
    """The value of data.`key`; UserError where it is none of `choices`."""
    value = cfg.get(key)
    if not any(value is one or (isinstance(value, str) and value == one) for one in choices):
        words = ", ".join("null" if one is None else str(one).lower() for one in choices)
        raise UserError(f"data.{key}={'null' if value is None else value} must be one of {words}")
    return value
