"""Reports as HTML, Markdown and terminal text; figures as PNG; pages from Jinja templates.

Figures are made without pyplot. A table is a list of rows of cells; the first row is the head.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.errors import UserError, one_line, visible
from imdbattn.io.files import write_atomically
from imdbattn.report.comparison_types import Skipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console


Table = Sequence[Sequence[str]]
# Content-Security-Policy of the pages, which quote reviews: a tag that was not escaped could load
# and run nothing.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action"
    " 'none'"
)
GENERATOR_TAG = b'<meta name="generator" content="imdbattn.report">'  # in report.html.jinja
SIGNS_IN_LATEX = str.maketrans({"±": r"$\pm$", "−": "$-$", "–": "--", "<": "$<$"})


@dataclass(frozen=True)
class Picture:
    """A figure of a report."""

    name: str
    draw: Callable[[], Figure]  # called when the report is written
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a report."""

    title: str
    text: str = ""
    table: Table = ()
    pictures: Sequence[Picture] = ()
    names: int = 1  # columns of the table that hold names
    in_terminal: bool = False  # whether the table is also printed
    too_wide: Sequence[str] = ()  # columns that are not printed
    folded: bool = False  # whether the page shows only the title until a reader opens it
    link: str = ""  # the address of another page


@dataclass(frozen=True)
class Report:
    """The content of a page, and of the files beside it."""

    name: str  # name of its files
    title: str
    sections: Sequence[Section]
    about: str = ""  # the data, in one line
    lead: str = ""
    points: Sequence[str] = ()  # the results in sentences
    notes: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    content: Mapping[str, object] | None = None  # content of the JSON file
    latex: str | None = None  # content of the LaTeX file
    folder: str = ""  # folder of this report if several are written at once


def report_folders(reports: Sequence[Report], out: Path) -> list[Path]:
    """Returns `out` itself for one report; for several, folders in it."""
    return [out / report.folder for report in reports] if len(reports) > 1 else [out]


def write_reports(reports: Sequence[Report], out: Path) -> Path:
    """Writes each report, and an index if there are several; returns the HTML page to open.

    Everything is rendered before anything is written, and every file is atomic. An earlier report
    is replaced. Raises UserError if any other file would be, and where `out` cannot be written.
    """
    by_folder = dict(zip(report_folders(reports, out), reports, strict=True))
    if len(reports) > 1:
        by_folder[out] = index_of(reports)
    files: dict[Path, bytes | str | None] = {}
    for folder, report in by_folder.items():
        page_file = folder / f"{report.name}.html"
        is_replaced = page_file.is_file() and GENERATOR_TAG in page_file.read_bytes()[:1000]
        for name, content in files_of(report).items():
            file = folder / name
            if file.exists() and not is_replaced:
                raise UserError(
                    f"{file} is not a file of an earlier report: move it, or choose another folder"
                )
            files[file] = content
    for file, content in files.items():
        if content is None:
            file.unlink(missing_ok=True)
        else:
            write_atomically(file, content)
    return out / f"{reports[0].name}.html"


def index_of(reports: Sequence[Report]) -> Report:
    """Returns a report that links to several."""
    sections = []
    for report in reports:
        link = f"{report.folder}/{report.name}.html"
        sections.append(Section(report.about, f"{report.title}. {report.lead}", link=link))
    title = f"{len(reports):,} separate sets"
    note = "Results on different sets cannot be compared."
    return Report(reports[0].name, title, sections, lead=note)


def files_of(report: Report) -> dict[str, bytes | str | None]:
    """Returns the content of each file of a report: HTML, Markdown, figures, and its numbers as
    JSON and LaTeX; None for numbers that only an earlier report has, because an index has none.

    The page is first, because it marks the others as files of a report.
    """
    drawn = {}
    figures = {}
    for picture in (picture for section in report.sections for picture in section.pictures):
        figure = picture.draw()
        drawn[picture.name] = figures[f"figures/{picture.name}.png"] = png(figure)
        figures[f"figures/{picture.name}.pdf"] = pdf(figure)
    numbers = None if report.content is None else json.dumps(report.content, indent=1) + "\n"
    template = Path(__file__).with_name("report.md.jinja")
    return {
        f"{report.name}.html": page(report, drawn),
        f"{report.name}.md": render(template, report=report),
        f"{report.name}.json": numbers,
        f"{report.name}.tex": report.latex,
        **figures,
    }


def page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Returns one HTML page with the pictures (name -> PNG) inside."""
    return render(Path(__file__).with_name("report.html.jinja"), report=report, figures=pictures)


def print_reports(reports: Sequence[Report], console: Console | None = None) -> None:
    """Prints the reports, each note once, and the skipped runs."""
    console = console or terminal()

    def show(*lines: str, style: str = "") -> None:
        for line in filter(None, lines):
            console.print(visible(line), style=style)

    printed_notes: set[str] = set()
    for report in reports:
        if len(reports) > 1:
            console.rule(visible(report.about))
        show(report.title, style="bold")
        show(report.about, report.lead)
        for section in report.sections:
            if section.in_terminal:
                print_table(section, console)
        notes = [note for note in report.notes if note not in printed_notes]
        for lines, style in ((report.points, ""), (notes, "dim")):
            if any(lines):
                console.print()
                show(*lines, style=style)
        printed_notes |= set(report.notes)
    for skipped in reports[0].skipped:  # all reports have the same
        show(f"skipped: {skipped['folder']}: {skipped['reason']}", style="yellow")


def print_table(section: Section, console: Console) -> None:
    """Prints the table of a section, which may be wider than the console."""
    from rich.cells import cell_len

    columns = []
    for number, column in enumerate(zip(*section.table, strict=True)):
        if column[0] not in section.too_wide:
            cells = list(map(visible, column))
            width = max(map(cell_len, cells))
            pads = [" " * (width - cell_len(cell)) for cell in cells]
            left_and_right = (cells, pads) if number < section.names else (pads, cells)
            columns.append(map("".join, zip(*left_and_right, strict=True)))
    console.print()
    for number, row in enumerate(zip(*columns, strict=True)):
        console.print("  ".join(row), style="" if number else "bold", soft_wrap=True)


def as_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Returns rows (column -> cell) as a table without the columns that are empty."""
    if not rows:
        return []
    columns = []
    for name in rows[0]:
        if any(row[name] for row in rows):
            columns.append(name)
    table = [columns]
    for row in rows:
        table.append([row[name] for name in columns])
    return table


def latex(title: str, tables: Sequence[Table]) -> str:
    """Returns tables for LaTeX with the package booktabs, under a comment with the title."""
    import pandas as pd

    texts = [f"% {one_line(title, None)}"]
    for head, *rows in filter(None, tables):
        text = pd.DataFrame(rows, columns=list(head)).to_latex(
            index=False, escape=True, column_format="l" + "r" * (len(head) - 1)
        )
        texts.append(text.translate(SIGNS_IN_LATEX))
    return "\n".join(texts)


# --- figures and text -----------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Figure:
    """Returns a figure of this size in inches, whose layout fits its content."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes: Axes) -> None:
    """Draws a faint grid behind the data and hides the top and right spines."""
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def integer_ticks(axes: Axes, most: int = 9) -> None:
    """Sets up to `most` ticks of x, at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def png(figure: Figure, bbox_inches: str | None = None) -> bytes:
    """Returns a figure as PNG. bbox_inches: "tight" fits the size of the image to its content."""
    return figure_bytes(figure, format="png", dpi=150, bbox_inches=bbox_inches)


def pdf(figure: Figure) -> bytes:
    """Returns a figure as PDF for a document, without its title, which is removed from `figure`."""
    import matplotlib

    # matplotlib logs each table of a font that it writes into a PDF.
    logging.getLogger("fontTools.subset").setLevel(logging.WARNING)
    figure.suptitle("")
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        return figure_bytes(figure, format="pdf", metadata={"CreationDate": None})


def figure_bytes(figure: Figure, **options: Any) -> bytes:
    """Returns the content of a figure's file. options: arguments of Figure.savefig."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # The font may lack characters of reviews.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(buffer, **options)
    return buffer.getvalue()


def terminal(**options: Any) -> Console:
    """Returns a rich console that prints text literally, because reports quote run folders and
    reviews. options: arguments of rich's Console.
    """
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


def printed(show: Callable[[Console], None]) -> str:
    """Returns what `show` prints, with terminal colors if standard output is a terminal."""
    colored = sys.stdout.isatty()
    width = None if colored else 100
    text = io.StringIO()
    # Without force_jupyter=False, rich would display the text itself in a notebook.
    show(terminal(file=text, force_jupyter=False, force_terminal=colored, width=width))
    return text.getvalue().rstrip("\n")


def render(template: Path, **values: object) -> str:
    """Fills a template, which may import others of its folder. In HTML, every value is escaped;
    lone surrogates become question marks.

    Filters: `base64` of bytes, `escaped` and `code` of text in Markdown.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=template.name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "escaped": escaped,
        "code": code,
        "base64": lambda data: base64.b64encode(data).decode(),
    }
    text = environment.get_template(template.name).render(
        values, policy=PAGE_POLICY, log=math.log, exp=math.exp
    )
    return text.encode("utf-8", "replace").decode()


def escaped(text: str) -> str:
    """Returns text on one line, with HTML, emphasis, links and columns of Markdown escaped."""
    return re.sub(r"[\\`*_\[\]<>|&#~]", r"\\\g<0>", " ".join(text.split()))


def code(text: str) -> str:
    """Returns text as Markdown's code, on one line, also inside a table."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"
