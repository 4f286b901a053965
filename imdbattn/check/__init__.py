"""A checker for attention modules that students write: `python -m imdbattn.check`, and in a notebook `score`."""

from typing import Any


def score(*parts: Any, **named: Any) -> "Any":
    """Checks classes and functions of this process: score(SelfAttention, masked_mean=average).

    Returns a report, which a notebook shows as a table; `passed` is whether all checks hold.
    """
    from imdbattn.check.parts import check_parts

    return check_parts({part.__name__: part for part in parts} | named)
