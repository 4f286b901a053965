"""Checks the classes and functions of a notebook."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imdbattn.tools.check.report import Outcome


def grade(*parts: Any, sheet: str | None = None, **named: Any) -> "Outcome":
    """Checks classes and functions of this process: grade(SelfAttention, masked_mean=average).

    sheet: the name of a sheet, or a YAML file; by default the one that the names belong to.
    Returns a report, which a notebook shows as text. Its `passed` is True if all checks hold.
    Raises TypeError for an object instead of its class.
    """
    import torch

    from imdbattn.tools.check.checking import check_objects

    for part in parts:
        if not hasattr(part, "__name__"):
            name = type(part).__name__
            raise TypeError(f"grade checks classes and functions: give {name}, not an object of it")
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    try:
        objects = {part.__name__: part for part in parts} | named
        *_, outcome = check_objects(objects, sheet)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_rng_state(state)
    return outcome
