"""Pairs of users: a file with a pair on each line, or two aligned files, as of Moses and OPUS."""

import logging
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from imdbattn.data.split_names import SPLIT_NAMES, split_named
from imdbattn.data.user_files.tables import COMPRESSED, counted, read_lines, read_text, visible_in
from imdbattn.errors import UserError, in_line

log = logging.getLogger(__name__)

Pair = tuple[int, str, str]  # number of its row, counted from 0; source; target
Sides = tuple[Path, Path]  # the files of sources and of targets


def read_pairs(path: Path, encoding_errors: str, swapped: bool) -> Iterator[Pair]:
    """Yields the pairs of a file; blank lines count as rows and are skipped. swapped: the target is
    the first column.

    Raises UserError with the row if a line is not a pair.
    """
    # splitlines also splits within a text
    for row, line in enumerate(read_text(path, encoding_errors).split("\n")):
        if line.strip():
            columns = line.split("\t")
            if len(columns) not in (2, 3):  # the third is an attribution
                start = f"'{in_line(line)[:60]}': write source TAB target"
                raise UserError(
                    f"{path}: {counted(row)} has {len(columns)} columns, not 2 or 3: {start}"
                )
            yield row, columns[swapped], columns[not swapped]


def aligned_files(folder: Path, languages: Sequence[str]) -> dict[str, Sides]:
    """Returns the files of each split in a folder, such as train.en and train.fr or train.en.gz.

    A single pair of files with any name is the split "". Raises UserError unless each file has its
    counterpart, and for files whose name begins with that of a split.
    """
    by_stem: dict[str, dict[str, Path]] = {}  # by name without the language
    for file in visible_in(folder):
        name = file.stem if file.suffix.lower() in COMPRESSED else file.name
        stem, _, language = name.rpartition(".")
        if language in languages and file.is_file():
            if language in by_stem.setdefault(stem, {}):
                raise UserError(f"{folder} has {stem}.{language} twice: keep one")
            by_stem[stem][language] = file
    for stem, sides in by_stem.items():
        for language in languages:
            if language not in sides:
                have = next(iter(sides.values())).name
                raise UserError(f"{folder} has {have}, but not {stem}.{language}: both are needed")
    source, target = languages
    files = {stem: (sides[source], sides[target]) for stem, sides in by_stem.items()}
    if len(files) == 1 and split_named(next(iter(files)))[0] is None:
        return {"": next(iter(files.values()))}
    splits: dict[str, Sides] = {}
    for stem, both in files.items():
        split, _ = split_named(stem)
        if split is None and stem.casefold().startswith(tuple(SPLIT_NAMES)):
            raise UserError(f"{both[0]} is not named as a split: rename it, such as test.{source}")
        if split in splits:
            raise UserError(f"{folder} has several files for the split {split}: keep one")
        if split is None:
            log.warning("%s: not used: %s.%s and .%s", folder, stem, source, target)
        else:
            splits[split] = both
    if not splits:
        raise UserError(
            f"{folder} has no files train.{source} and train.{target}: set data.languages to the"
            " ends of their names"
        )
    return {"": splits["train"]} if list(splits) == ["train"] else splits


def read_aligned(sides: Sides, encoding_errors: str) -> Iterator[Pair]:
    """Yields the pairs of two files, line by line; rows in which both are blank are skipped.

    Raises UserError if one has more lines than the other.
    """
    readers = (read_lines(file, encoding_errors) for file in sides)
    for row, (source, target) in enumerate(zip_longest(*readers)):
        if source is None or target is None:
            longer, shorter = sides if target is None else reversed(sides)
            raise UserError(
                f"{longer} has more lines than {shorter}, which has {row}: they are not aligned"
            )
        if source.strip() or target.strip():
            yield row, source, target
