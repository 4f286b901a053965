"""The settings of imdbattn.compare, conf/compare.yaml; and of any command that reads several
runs.
"""

import os
from glob import glob
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from imdbattn.errors import UserError
from imdbattn.io.files import expanded
from imdbattn.settings.schema import FunctionName, Group, Natural, Positive, Text


def folders_in(runs: Any) -> list[str]:
    """Returns the folders in `runs`: one folder, a list, or text such as "[a,b]"; each may be a
    pattern such as runs/day*. Raises UserError if there is none.
    """
    is_listed = isinstance(runs, str) and runs.startswith("[") and runs.endswith("]")
    if isinstance(runs, str) and is_listed and not expanded(runs).exists():
        runs = [name.strip(" '\"") for name in runs[1:-1].split(",")]
    folders = runs if isinstance(runs, list) else [runs]
    found: list[str] = []
    for folder in folders:
        if folder in (None, ""):
            continue
        matching = [str(folder)]
        if not os.path.exists(expanded(folder)):
            matching = sorted(glob(os.path.expanduser(folder)))
        if not matching:
            raise UserError(f"runs={folder}: there is no such folder")
        found += matching
    return found


Folders = Annotated[list[Text], BeforeValidator(folders_in), Field(min_length=1)]


class OfRuns(Group):
    runs: Folders
    out: Text | None


Column = Literal[
    "seeds",
    "seed_list",
    "validation",
    "test",
    "metric",
    "largest_class",
    "macro_f1",
    "interval",
    "difference",
    "against",
    "p",
    "parameters",
    "minutes",
]


class Paper(Group):
    columns: list[Column]
    width: Annotated[Positive, Field(le=40)] | None
    font: Text | None


class Compare(OfRuns):
    by_folder: bool
    split: Literal["test", "validation"] | None
    against: Text | None
    disagreements: Natural
    metric: Literal["accuracy", "macro_f1"] | FunctionName
    paper: Paper
    words: dict[str, Annotated[list[Text], Field(min_length=1)]]
