"""How results are displayed in notebooks, and the numbers of a run."""

import os
from typing import TYPE_CHECKING, Any

from imdbattn.errors import visible

if TYPE_CHECKING:
    import pandas as pd

StrPath = str | os.PathLike[str]
FIRST_SHOWN = ("accuracy", "loss", "bleu", "f1")  # names with these endings are shown first


def html(table: "pd.DataFrame", **options: int | bool) -> str:
    """Returns a table for a notebook, with every text escaped. options: those of DataFrame.to_html.

    The classes prevent $ in a text from beginning a formula.
    """
    return table.to_html(border=0, classes="tex2jax_ignore mathjax_ignore", **options)


class Metrics(dict[str, Any]):
    """The numbers of a run or of an evaluation, as keys and as attributes (`items` only as a key).

    >>> metrics = Metrics({"count": 5000, "accuracy": 0.8568})
    >>> metrics.accuracy == metrics["accuracy"]
    True
    >>> metrics
    accuracy  0.8568
    count     5000
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"there is no {name}; there are {', '.join(self)}")
        return self[name]

    def shown(self) -> dict[str, str]:
        """Returns each number and text, scores first."""
        simple = [name for name, value in self.items() if isinstance(value, str | int | float)]
        texts = {}
        for name in sorted(simple, key=lambda name: not name.endswith(FIRST_SHOWN)):
            value = self[name]
            texts[name] = f"{value:.4f}" if isinstance(value, float) else str(value)
        return texts

    def __repr__(self) -> str:
        shown = self.shown()
        width = max(map(len, shown), default=0)
        return "\n".join(visible(f"{name:{width}}  {value}") for name, value in shown.items())

    def _repr_html_(self) -> str:
        import pandas as pd

        return html(pd.DataFrame({"value": self.shown()}))
