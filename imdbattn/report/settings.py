"""Settings of imdbattn.compare, conf/compare.yaml, and of other commands that read several runs."""

import os
from collections.abc import Iterable
from glob import glob
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from imdbattn.io.files import expanded
from imdbattn.settings.keys import defaults, overlay
from imdbattn.settings.schema import FunctionName, Group, Natural, Text, validate_as


def folders_in(runs: Any) -> list[str]:
    """Returns the folders in `runs`: one folder, or a list; instead of a pattern such as runs/day*
    those that it matches.
    """
    found: list[str] = []
    for folder in runs if isinstance(runs, list) else [runs]:
        if folder not in (None, ""):
            matching = [] if os.path.exists(expanded(folder)) else glob(os.path.expanduser(folder))
            found += sorted(matching) or [str(folder)]
    return found


Folders = Annotated[list[Text], BeforeValidator(folders_in), Field(min_length=1)]


class RunsSettings(Group):
    runs: Folders
    out: Text | None


class CompareSettings(RunsSettings):
    by_folder: bool
    split: Literal["test", "validation"] | None
    against: Text | None
    disagreements: Natural
    metric: Literal["accuracy", "macro_f1"] | FunctionName
    words: dict[str, Annotated[list[Text], Field(min_length=1)]]


def compare_settings(
    runs: Iterable[str | Path], words: object = None, **changes: object
) -> CompareSettings:
    """Returns the settings of conf/compare.yaml for these folders, with changes that are not None.

    words: replaces the default words.
    """
    values = overlay(defaults("compare"), {"runs": list(map(str, runs)), **changes})
    if words is not None:
        values["words"] = words
    return validate_as(CompareSettings, values)
