"""Figures as PNG and SVG, pages from Jinja templates, and text in Markdown. Figures are made without pyplot."""

from __future__ import annotations

import base64
import io
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.settings.safety import PAGE_POLICY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console


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


def png(figure: Figure, bbox_inches: str | None = None) -> bytes:
    """bbox_inches: "tight" fits the size of the image to its content."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # characters of reviews that the font lacks
        figure.savefig(buffer, format="png", dpi=150, bbox_inches=bbox_inches)
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, with text as paths; equal figures give equal bytes."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "imdbattn", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def terminal(**options: Any) -> Console:
    """A rich console that prints text literally, because reports quote run folders and reviews. options: of Console."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


def printed(show: Callable[[Console], None]) -> str:
    """Returns what `show` prints, with terminal colors if standard output is a terminal."""
    colored = sys.stdout.isatty()
    # In a notebook, rich would display the text itself.
    console = terminal(file=io.StringIO(), force_jupyter=False, force_terminal=colored, width=None if colored else 100)
    show(console)
    return console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]


def render(template: Path, **values: Any) -> str:
    """The template filled with values; in HTML every value is escaped. Lone surrogates become question marks.

    The filter `base64` encodes bytes, such as those of a figure.
    It can include templates from its own folder, the folder of this module, and imdbattn/explain.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent, Path(__file__).parent / "explain"]),
        autoescape=template.name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    text = environment.get_template(template.name).render(values, policy=PAGE_POLICY, log=math.log, exp=math.exp)
    return text.encode("utf-8", "replace").decode()


def plain(text: str) -> str:
    """Text on one line, with HTML, emphasis, links and columns of Markdown escaped."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|&#~" else letter for letter in " ".join(text.split()))


def code(text: str) -> str:
    """Text as Markdown's code, on one line, also inside a table."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"
