"""A run, opened from its folder, from an export of its model, or from one of its checkpoints.

Imports nothing slow: torch and pandas are loaded when weights or tables are read.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Literal

from imdbattn.errors import UserError
from imdbattn.folders.run_folder import BEST
from imdbattn.io.files import read_json, with_home
from imdbattn.settings.keys import NestedDict
from imdbattn.settings.trust import read_settings, refuse_interpolations, refuse_untrusted

if TYPE_CHECKING:
    import pandas as pd

Curves = dict[str, dict[int, float]]  # name such as val/loss -> epoch counted from 1 -> value
EXPORTED = "config.json"  # the file with an export's settings


class Run:
    """A run of imdbattn.train. Each file is read when it is first used.

    Args:
        path: a run folder, an exported folder, or a checkpoint in the checkpoints/ of a run.
        trust: packages whose classes its settings may name, see `refuse_untrusted`.
        caller_settings: the settings of this call; their classes are also trusted.

    Each attribute raises UserError if its file is damaged or missing, except `environment` and
    `curves`, which are then empty.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        trust: str | Sequence[str] | None = None,
        caller_settings: Mapping[str, object] | None = None,
    ):
        self.path, self.trust, self.caller_settings = os.fspath(path), trust, caller_settings
        self.folder = with_home(path)
        self.checkpoint_file = self.folder / BEST
        self.kind: Literal["folder", "export", "checkpoint"] = "folder"
        # os.path.isfile is used because Path.is_file raises for names that are too long.
        if self.path.endswith(".ckpt") and os.path.isfile(self.folder):
            self.kind, self.checkpoint_file = "checkpoint", self.folder.absolute()
            self.folder = self.checkpoint_file.parents[1]
        elif os.path.isfile(self.folder / EXPORTED):
            self.kind = "export"

    # --- settings -------------------------------------------------------------------------------

    @cached_property
    def raw_settings(self) -> NestedDict:
        """The settings as plain values, without a check of their types or classes."""
        if self.kind != "export":
            return read_settings(self.settings_file)
        settings: NestedDict = read_json(self.settings_file).get("settings", {})
        refuse_interpolations(settings, self.settings_file)
        return settings

    @cached_property
    def trusted_settings(self) -> NestedDict:
        """The same as `raw_settings`. Raises UserError for a class that is not trusted;
        `tasks.task.settings_of` checks types and values.
        """
        self.require(self.settings_file)
        refuse_untrusted(self.raw_settings, self.settings_file, self.trust, self.caller_settings)
        return self.raw_settings

    @property
    def settings_file(self) -> Path:
        return self.folder / (EXPORTED if self.kind == "export" else "config.yaml")

    # --- weights --------------------------------------------------------------------------------

    @property
    def existing_checkpoint(self) -> Path:
        """The given checkpoint, or the best one. Raises UserError if it is missing."""
        self.require(self.settings_file, self.checkpoint_file)
        return self.checkpoint_file

    # --- results --------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> NestedDict:
        return read_json(self.folder / "metrics.json")

    @cached_property
    def environment(self) -> NestedDict:
        """The versions and hardware; empty where they were not recorded."""
        file = self.folder / "environment.json"
        return read_json(file) if file.exists() else {}

    @property
    def curves(self) -> Curves:
        """The learning curves, even while the run is training; they are read at each call."""
        file = self.folder / "metrics.csv"
        return read_curves(file) if file.exists() else {}

    def table(self, name: str) -> "pd.DataFrame":
        """Returns one of its Parquet files: predictions or texts of a split (SPLIT_FILES)."""
        import pandas as pd

        with (self.folder / name).open("rb") as file:  # pyarrow requires a path to be UTF-8
            return pd.read_parquet(file)

    def require(self, *files: Path) -> None:
        """Raises UserError for the first of these files that is missing."""
        for file in files:
            if not os.path.exists(file):  # Path.exists raises for names that are too long
                if not os.path.exists(self.folder):
                    raise UserError(f"run={self.path}: there is no such file or folder")
                raise UserError(
                    f"run={self.path} is not a finished run: it has no"
                    f" {file.relative_to(self.folder)}. Give the path that training printed, or"
                    " resume it: imdbattn.train resume=..."
                )


def read_curves(metrics_csv: Path) -> Curves:
    """Returns the values in metrics.csv; Lightning leaves most cells of a line empty.

    An incomplete last line, which the run is still writing, is omitted.
    """
    curves: Curves = {}
    complete, newline, _ = metrics_csv.read_text().rpartition("\n")
    for line in csv.DictReader(io.StringIO(complete + newline)):
        for name, value in line.items():
            if value and name not in ("epoch", "step") and line.get("epoch"):
                curves.setdefault(name, {})[int(float(line["epoch"])) + 1] = float(value)
    return curves


def mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Returns the mean of several curves, at the epochs that all of them contain."""
    means = {}
    for epoch in curves[0]:
        values = [curve[epoch] for curve in curves if epoch in curve]
        if len(values) == len(curves):
            means[epoch] = mean(values)
    return means
