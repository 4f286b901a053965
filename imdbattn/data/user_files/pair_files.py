"""Users' pairs: a file with a pair on each line, or two aligned files, as in Moses and OPUS."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from imdbattn.data.labels import counted
from imdbattn.data.split_names import SPLIT_NAMES, by_split, split_named
from imdbattn.data.user_files.tables import COMPRESSED, read_lines, read_text, visible_in
from imdbattn.errors import UserError

Pair = tuple[str, str]  # source and target, both blank in a blank row
Sides = tuple[Path, Path]  # the files of sources and of targets


def read_pairs(path: Path, swapped: bool) -> Iterator[Pair]:
    """Yields the pairs of a file. swapped: whether the target is the first column.

    Raises UserError with the row if a line is neither a pair nor blank.
    """
    # splitlines also splits within a text
    for row, line in enumerate(read_text(path).split("\n")):
        columns = line.split("\t") if line.strip() else ["", ""]
        if len(columns) not in (2, 3):  # the third is an attribution
            has = f"{counted(row)} has {len(columns)} columns, not 2 or 3"
            raise UserError(f"{path}: {has}: write source TAB target")
        yield columns[swapped], columns[not swapped]


def aligned_files(folder: Path, languages: Sequence[str]) -> dict[str, Sides]:
    """Returns the files of each split in a folder, such as train.en and train.fr or train.en.gz.

    A single pair of files with any name is the split "". Raises UserError unless each file has one
    counterpart, and for a file whose name only begins with a split's name.
    """
    found = defaultdict[str, list[Path]](list)  # keys: names without .gz, .bz2, .xz
    for file in visible_in(folder):
        found[file.stem if file.suffix.lower() in COMPRESSED else file.name].append(file)
    names = [name for name in found if name.rpartition(".")[2] in languages]
    sides = {}
    for stem in dict.fromkeys(name.rpartition(".")[0] for name in names):
        both = [found.get(f"{stem}.{language}", []) for language in languages]
        if [len(files) for files in both] != [1, 1]:
            wanted = " and ".join(f"{stem}.{language}" for language in languages)
            raise UserError(f"{folder} must have both {wanted}, each once")
        sides[stem] = both[0][0], both[1][0]
        if not split_named(stem)[0] and stem.casefold().startswith(tuple(SPLIT_NAMES)):
            raise UserError(
                f"{both[0][0]} is not named as a split: rename it, such as test.{languages[0]}"
            )
    if len(sides) == 1 and not split_named(*sides)[0]:
        return {"": sides.popitem()[1]}
    remedy = "keep one of each, and set data.languages to the ends of their names"
    return by_split(sides, folder, remedy)


def read_aligned(sides: Sides) -> Iterator[Pair]:
    """Yields the pairs of two files, line by line. Raises UserError if one has more lines than the
    other.
    """
    for row, (source, target) in enumerate(zip_longest(*map(read_lines, sides))):
        if source is None or target is None:
            longer, shorter = sides if target is None else reversed(sides)
            raise UserError(f"{longer} has more lines than {shorter}, which has {row}")
        yield source, target
