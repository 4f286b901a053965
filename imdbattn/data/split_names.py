"""Which split a name stands for, in files and data sets of other programs."""

import re

# Not eval, evaluation: some programs mean validation by it, others test
SPLIT_NAMES = dict.fromkeys(("validation", "valid", "val", "dev"), "validation") | {
    "train": "train",
    "test": "test",
}
PART = re.compile(r"(.+)-(\d+)-of-(\d+)(-[0-9a-f]{16})?")  # of a split, as the hub names its files


def split_named(name: str) -> tuple[str | None, tuple[int, int]]:
    """Returns the split that a name stands for, and which part: (1, 2) for train-00001-of-00002."""
    match = PART.fullmatch(name)
    name, part, parts = match.group(1, 2, 3) if match else (name, 0, 1)
    return SPLIT_NAMES.get(name.casefold()), (int(part), int(parts))
