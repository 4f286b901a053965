"""Comparisons of finished runs. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.api.display import fragment
from imdbattn.comparison.compare import compare_sets
from imdbattn.comparison.report import report_of, set_name
from imdbattn.errors import UserError
from imdbattn.files import expanded
from imdbattn.pages import Report, print_reports, printed, svg, write_reports
from imdbattn.settings.cli import composed, plain_dict
from imdbattn.settings.keys import overlay
from imdbattn.settings.schema import Compare, validate_as

if TYPE_CHECKING:
    import pandas as pd

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Finished runs, compared on each set of reviews. A notebook shows the tables and the figure of accuracies.

    contents: of comparison.json, one for each set.

    >>> comparison = imdbattn.compare(["runs/ladder"])
    >>> comparison.rungs[["rung", "test", "low", "high"]].shape
    (2, 4)
    """

    contents: tuple[dict[str, Any], ...]

    @property
    def sets(self) -> list[Comparison]:
        """A comparison for each set; their accuracies cannot be compared."""
        return [Comparison((content,)) for content in self.contents]

    @property
    def rungs(self) -> pd.DataFrame:
        """A row for each rung: accuracies as fractions, with standard deviations over seeds, and the 95 % interval."""
        return self._frame("rungs", {"label": "rung"})

    @property
    def pairs(self) -> pd.DataFrame:
        """A row for each compared pair: difference as a fraction with its 95 % interval, p values, verdict."""
        return self._frame("pairs", {})

    def _frame(self, part: str, renamed: Mapping[str, str]) -> pd.DataFrame:
        import pandas as pd

        several = len(self.contents) > 1
        rows = [
            ({"set": set_name(content)} if several else {}) | numbers(row)
            for content in self.contents
            for row in content[part]
        ]
        return pd.DataFrame(rows).rename(columns=dict(renamed))

    def save(self, out: StrPath) -> Path:
        """Writes page, figures, Markdown and JSON into a folder as imdbattn.compare does; returns the HTML page."""
        return write_reports(self._reports(), expanded(out))

    def _reports(self) -> list[Report]:
        return list(map(report_of, self.contents))

    def __repr__(self) -> str:
        return printed(lambda console: print_reports(self._reports(), console))

    def _repr_html_(self) -> str:
        return "\n".join(map(html, self._reports()))


def numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of a rung or pair, with mean and standard deviation of those that seeds have."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name == "interval":
            values |= {"low": value[0], "high": value[1]}
        elif name == "seeds":
            values[name] = len(value)
        elif name in ("validation", "test"):
            values |= {name: (value or {}).get("mean"), f"{name}_sd": (value or {}).get("sd")}
        elif name != "trained_on" and not isinstance(value, dict | list):
            values[name] = value
    return values


def html(report: Report) -> str:
    """One set as a part of a notebook: the tables of rungs and pairs, and the figure of accuracies."""
    shown = [section for section in report.sections if section.table and not section.folded]
    skipped = [f"skipped: {one['folder']}: {one['reason']}" for one in report.skipped]
    notes = [report.about, report.lead, *report.notes, *skipped]
    images = [svg(picture.draw()) for picture in shown[0].pictures]
    return fragment(report.title, [section.table for section in shown], images, notes)


def compare(
    runs: StrPath | Iterable[StrPath], against: str | None = None, out: StrPath | None = None, **settings: Any
) -> Comparison:
    """Compares the finished runs in some folders, as imdbattn.compare does.

    Args:
        runs: one or more folders that contain run folders at any depth.
        against: the rung that others are compared with; None compares each rung with the one that it extends.
        out: a folder for page, tables and figures; None writes nothing.
        settings: other settings of conf/compare.yaml: split="validation", resamples=1000.

    Raises UserError when there is nothing to compare.

    >>> imdbattn.compare("runs/ladder", against="mean").pairs[["to", "from"]].values.tolist()
    [['residual_pe', 'mean']]
    """
    try:
        folders = [os.fsdecode(run) for run in ([runs] if isinstance(runs, str | os.PathLike) else runs)]
    except TypeError:
        raise UserError(f"compare takes a folder or a list of folders, not {runs!r:.100}") from None
    if not all(folders) or not folders:
        raise UserError("compare takes at least one folder that contains run folders")
    changes = {**settings, "runs": folders, "against": against}
    values = overlay(plain_dict(composed("compare")), changes)
    if settings.get("words") is not None:  # instead of the default words, not in addition
        values["words"] = settings["words"]
    options = validate_as(Compare, values).model_dump()
    del options["out"]  # null in conf/compare.yaml
    comparison = Comparison(tuple(compare_sets(options.pop("runs"), **options)))
    if out is not None:
        comparison.save(out)
    return comparison
