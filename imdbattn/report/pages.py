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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.io.files import write_atomically, writing_into
from imdbattn.settings.safety import PAGE_POLICY, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console


Table = Sequence[Sequence[str]]


# --- reports --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """A figure of a report. draw: makes it when the report is written."""

    name: str
    draw: Callable[[], Figure]
    caption: str = ""


@dataclass(frozen=True)
class Printed:
    """How figures look in a printed document. width: of a column, in inches. font: a family that is
    installed, such as serif or "Times New Roman"; None is that of the page.
    """

    width: float
    font: str | None = None


@dataclass(frozen=True)
class Section:
    """names: number of columns of the table that hold names. short: the table for a terminal, which
    omits sections without one. folded: the page shows only the title until a reader opens it. link:
    to another page.
    """

    title: str
    text: str = ""
    table: Table = ()
    pictures: Sequence[Picture] = ()
    names: int = 1
    short: Table = ()
    folded: bool = False
    link: str = ""


@dataclass(frozen=True)
class Report:
    """texts: further files by name. printed: how figures are written as PDF and SVG; None omits it.

    name: of its files. about: the data, in one line. content: of the JSON file. points: the
    results in sentences.

    folder: for this report, if several are written at once.
    """

    name: str
    title: str
    sections: Sequence[Section]
    about: str = ""
    lead: str = ""
    points: Sequence[str] = ()
    notes: Sequence[str] = ()
    skipped: Sequence[Mapping[str, str]] = ()
    content: Mapping[str, Any] | None = None
    folder: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    printed: Printed | None = None


def folders_of(reports: Sequence[Report], out: Path) -> list[Path]:
    """`out` itself for one report; for several, folders in it."""
    return [out / one.folder for one in reports] if len(reports) > 1 else [out]


def write_reports(reports: Sequence[Report], out: Path) -> Path:
    """Writes each report, and an index if there are several; returns the HTML page to open.

    Raises UserError where `out` cannot be written.
    """
    pages = [
        write_report(one, folder)
        for one, folder in zip(reports, folders_of(reports, out), strict=True)
    ]
    if len(pages) == 1:
        return pages[0]
    places = [str(page.relative_to(out)) for page in pages]
    parts = [
        Section(r.about, f"{r.title}. {r.lead}", link=place)
        for r, place in zip(reports, places, strict=True)
    ]
    note = "Results on different sets cannot be compared."
    return write_report(
        Report(reports[0].name, f"{len(pages):,} separate sets", parts, lead=note), out
    )


def write_report(report: Report, out: Path) -> Path:
    """Writes <name>.json, .md and .html and figures/*.png into `out`; returns the HTML page.

    For a printed document, figures/*.pdf and *.svg are written too.

    Everything is rendered before anything is written, and every file is atomic. Figures of an
    earlier report in `out` that this one does not have are removed.
    """
    drawn = {
        picture.name: png(picture.draw())
        for section in report.sections
        for picture in section.pictures
    }
    files: dict[str, bytes | str] = {f"figures/{name}.png": image for name, image in drawn.items()}
    files |= report.texts
    if report.printed is not None:
        for section in report.sections:
            for picture in section.pictures:
                files |= print_files(picture, report.printed)
    if report.content is not None:
        # null instead of NaN
        content = json.loads(json.dumps(report.content), parse_constant=lambda _: None)
        files[f"{report.name}.json"] = json.dumps(content, indent=1) + "\n"
    files[f"{report.name}.md"] = markdown(report)
    files[f"{report.name}.html"] = page(report, drawn)
    old = out / f"{report.name}.md"
    with writing_into(out, "choose another folder"):
        drawn_before = (
            re.findall(r"\]\((figures/\w+)\.png\)", old.read_text()) if old.exists() else []
        )
        written = [f"{name}.{kind}" for name in drawn_before for kind in ("png", "pdf", "svg")]
        for name in {*written, f"{report.name}.json", f"{report.name}.tex"} - files.keys():
            (out / name).unlink(missing_ok=True)
    for name, data in files.items():
        write_atomically(out / name, data)
    return out / f"{report.name}.html"


def page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """One HTML page with the pictures (name -> PNG) inside."""
    return render(Path(__file__).with_name("report.html.jinja"), report=report, figures=pictures)


def markdown(report: Report) -> str:
    """The report as Markdown with links to the figures."""
    return render(Path(__file__).with_name("report.md.jinja"), report=report)


def print_reports(reports: Sequence[Report], console: Console | None = None) -> None:
    """Prints the results of each report with the notes that no earlier one has, and the skipped
    runs.
    """
    console = console or terminal()

    def show(*lines: str, style: str = "") -> None:
        console.print(*map(visible, filter(None, lines)), sep="\n", style=style)

    told: set[str] = set()
    for report in reports:
        if len(reports) > 1:
            console.rule(visible(report.about))
        show(report.title, style="bold")
        show(report.about, report.lead)
        for section in filter(lambda one: one.short, report.sections):
            print_table(section.short, console, section.names)
        console.print()
        show(*report.points)
        if notes := [note for note in report.notes if note not in told]:
            console.print()
            show(*notes, style="dim")
        told |= set(report.notes)
    for one in reports[0].skipped:  # the same for all
        show(f"skipped: {one['folder']}: {one['reason']}", style="yellow")


def print_table(rows: Table, console: Console, names: int = 1) -> None:
    """Prints a table, which may be wider than the console. names: number of columns that hold
    names.
    """
    from rich.table import Table as RichTable

    table = RichTable(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for place, name in enumerate(rows[0]):
        table.add_column(visible(name), justify="left" if place < names else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(visible, row))
    width = console.width
    console.width = max(
        width, console.measure(table, options=console.options.update(width=1000)).maximum
    )
    console.print("", table, sep="\n")
    console.width = width


def as_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Rows (column -> cell) as a table without the columns that are empty."""
    used = {name for row in rows for name in row if row[name]}
    columns = [name for name in rows[0] if name in used] if rows else []
    if not columns:
        return []
    table = [columns]
    for row in rows:
        table.append([row[name] for name in columns])
    return table


# --- figures and text -----------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Figure:
    """A figure whose layout fits its content. width, height: in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style(axes: Axes) -> None:
    """Draws a faint grid behind the data and hides the top and right spines."""
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def integer_ticks(axes: Axes, most: int = 9) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def print_files(picture: Picture, printed: Printed) -> dict[str, bytes]:
    """Returns a figure as PDF and SVG, as wide as a column and without its title."""
    import matplotlib

    # which logs each table of a font that it writes into a PDF
    logging.getLogger("fontTools.subset").setLevel(logging.WARNING)
    family: Any = {} if printed.font is None else {"font.family": printed.font}
    files = {}
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": picture.name, **family}):
        figure = picture.draw()
        figure.suptitle("")
        width, height = figure.get_size_inches()
        figure.set_size_inches(printed.width, max(height * printed.width / width, 2.0))
        for kind, dates in (("pdf", {"CreationDate": None}), ("svg", {"Date": None})):
            buffer = io.BytesIO()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Glyph .* missing from")
                figure.savefig(buffer, format=kind, metadata=dates)
            files[f"figures/{picture.name}.{kind}"] = buffer.getvalue()
    return files


def png(figure: Figure, bbox_inches: str | None = None) -> bytes:
    """bbox_inches: "tight" fits the size of the image to its content."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # characters of reviews that the font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(buffer, format="png", dpi=150, bbox_inches=bbox_inches)
    return buffer.getvalue()


def terminal(**options: Any) -> Console:
    """A rich console that prints text literally, because reports quote run folders and reviews.
    options: of Console.
    """
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


def printed(show: Callable[[Console], None]) -> str:
    """Returns what `show` prints, with terminal colors if standard output is a terminal."""
    colored = sys.stdout.isatty()
    # In a notebook, rich would display the text itself.
    console = terminal(
        file=io.StringIO(),
        force_jupyter=False,
        force_terminal=colored,
        width=None if colored else 100,
    )
    show(console)
    return console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]


def render(template: Path, **values: Any) -> str:
    """The template filled with values; in HTML every value is escaped. Lone surrogates become
    question marks.

    Filters: `base64` of bytes, `plain` and `code` of text in Markdown. It can include templates
    from its own folder, the folder of this module, and imdbattn/explain.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(
            [
                template.parent,
                Path(__file__).parent,
                Path(__file__).parents[1] / "tools" / "explain",
            ]
        ),
        autoescape=template.name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "plain": plain,
        "code": code,
        "base64": lambda data: base64.b64encode(data).decode(),
    }
    text = environment.get_template(template.name).render(
        values, policy=PAGE_POLICY, log=math.log, exp=math.exp
    )
    return text.encode("utf-8", "replace").decode()


def plain(text: str) -> str:
    """Text on one line, with HTML, emphasis, links and columns of Markdown escaped."""
    return "".join(
        f"\\{letter}" if letter in "\\`*_[]<>|&#~" else letter for letter in " ".join(text.split())
    )


def code(text: str) -> str:
    """Text as Markdown's code, on one line, also inside a table."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"
