"""How results are displayed in notebooks and terminals, and the numbers of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imdbattn.pages import render
from imdbattn.settings.safety import visible

SCORES = ("accuracy", "loss", "bleu", "f1")  # ends of the names that are shown first
Table = Sequence[Sequence[str]]  # rows of cells; the first row is the head


def fragment(heading: str, tables: Sequence[Table], images: Sequence[bytes] = (), notes: Sequence[str] = ()) -> str:
    """HTML for a notebook, in which every text is escaped. images: SVG."""
    template = Path(__file__).with_name("fragment.html.jinja")
    return render(template, heading=heading, tables=tables, images=images, notes=notes)


class Metrics(dict[str, Any]):
    """The numbers of a run or of an evaluation, by their names in metrics.json; they are attributes, too.

    >>> metrics = Metrics({"reviews": 5000, "accuracy": 0.8568})
    >>> metrics.accuracy == metrics["accuracy"]
    True
    >>> metrics
    accuracy  0.8568
    reviews   5000
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self:
            raise AttributeError(f"there is no {name}; there are {', '.join(self)}" if name[:1] != "_" else name)
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def rows(self) -> list[list[str]]:
        """Name and value of each number and text, scores first."""
        simple = [name for name, value in self.items() if isinstance(value, str | int | float)]
        ordered = sorted(simple, key=lambda name: not name.endswith(SCORES))
        return [[name, f"{self[name]:.4f}" if isinstance(self[name], float) else str(self[name])] for name in ordered]

    def __repr__(self) -> str:
        width = max((len(name) for name, _ in self.rows()), default=0)
        return "\n".join(visible(f"{name:{width}}  {value}") for name, value in self.rows())

    def _repr_html_(self) -> str:
        return fragment("", [[["", "value"], *self.rows()]])
