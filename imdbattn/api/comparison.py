"""Comparisons of finished runs. Imports no torch."""

import base64
import os
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import pandas as pd

from imdbattn.api.display import StrPath, html
from imdbattn.io.files import with_home
from imdbattn.report.comparison import as_rows, compare_sets
from imdbattn.report.comparison_page import report_of, set_name
from imdbattn.report.comparison_types import ComparedSet
from imdbattn.report.pages import Report, png, print_reports, printed, write_reports
from imdbattn.settings.command_settings import with_defaults


@dataclass(frozen=True, repr=False)
class Comparison:
    """Finished runs, compared on each set of reviews.

    A notebook shows the tables and the figure of accuracies.

    contents: the content of comparison.json for each set.

    >>> comparison = imdbattn.compare(["runs/ladder"])
    >>> comparison.variants[["variant", "test", "low", "high"]].shape
    (2, 4)
    """

    contents: tuple[ComparedSet, ...]

    @property
    def sets(self) -> list["Comparison"]:
        """A comparison for each set; their accuracies cannot be compared."""
        return [Comparison((content,)) for content in self.contents]

    @property
    def variants(self) -> pd.DataFrame:
        """A row for each variant: accuracies as fractions, with deviations and 95 % intervals."""
        return self._table("variants").rename(columns={"label": "variant"})

    @property
    def pairs(self) -> pd.DataFrame:
        """A row for each compared pair: the difference, its 95 % interval, p, and the verdict."""
        return self._table("pairs")

    def _table(self, name: Literal["variants", "pairs"]) -> pd.DataFrame:
        """Returns the rows of all sets, with the name of the set."""
        rows = []
        for comparison in self.contents:
            of_set = set_name(comparison, comparison["items"])
            rows += [{"set": of_set, **row} for row in as_rows(comparison[name])]
        return pd.DataFrame(rows)

    def save(self, out: StrPath) -> Path:
        """Writes page, figures, Markdown and JSON into a folder. Returns the path of the page."""
        return write_reports(self._reports(), with_home(out))

    def _reports(self) -> list[Report]:
        return list(map(report_of, self.contents))

    def __repr__(self) -> str:
        return printed(lambda console: print_reports(self._reports(), console))

    def _repr_html_(self) -> str:
        """Returns the tables of variants and pairs, and the figure of accuracies."""
        parts = []
        for report in self._reports():
            shown = [section for section in report.sections if section.table and not section.folded]
            for text in (report.title, report.about, report.lead):
                parts.append(f"<p>{escape(text)}</p>")
            for section in shown:
                head, *rows = section.table
                parts.append(html(pd.DataFrame(rows, columns=[*head]), index=False))
            image = base64.b64encode(png(shown[0].pictures[0].draw())).decode()
            parts.append(f'<img style="max-width: 40rem" src="data:image/png;base64,{image}">')
        return f'<div class="tex2jax_ignore mathjax_ignore">{"".join(parts)}</div>'


def compare(
    runs: StrPath | Iterable[StrPath],
    against: str | None = None,
    out: StrPath | None = None,
    **settings: object,
) -> Comparison:
    """Compares the finished runs in some folders, as imdbattn.compare does.

    Args:
        runs: one or more folders that contain run folders at any depth.
        against: the variant that others are compared with; None compares each rung with the one
            that it extends.
        out: a folder for page, tables and figures; None writes nothing.
        settings: other settings of conf/compare.yaml: split="validation", disagreements=5.

    Raises UserError when there is nothing to compare.

    >>> imdbattn.compare("runs/ladder", against="mean").pairs[["to", "from"]].values.tolist()
    [['residual_pe', 'mean']]
    """
    paths = [runs] if isinstance(runs, str | os.PathLike) else runs
    folders = list(map(os.fsdecode, paths))
    options = with_defaults("compare", runs=folders, against=against, **settings)
    comparison = Comparison(tuple(compare_sets(options)))
    if out is not None:
        comparison.save(out)
    return comparison
