"""A checker for attention modules that students write: `python -m imdbattn.check`, and in a
notebook `score`.
"""

from typing import Any


def score(*parts: Any, **named: Any) -> "Any":
    """Checks classes and functions of this process: score(SelfAttention, masked_mean=average).

    Returns a report, which a notebook shows as a table; `passed` is whether all checks hold.
    """
    import torch

    from imdbattn.errors import UserError
    from imdbattn.tools.check.part import Part
    from imdbattn.tools.check.parts import RULES
    from imdbattn.tools.check.report import Outcome
    from imdbattn.tools.check.running import run
    from imdbattn.tools.check.tables import PARTS

    outcome, dtype, state = Outcome(), torch.get_default_dtype(), torch.get_rng_state()
    try:
        for name, make in ({part.__name__: part for part in parts} | named).items():
            if name not in PARTS:
                raise UserError(
                    f"{name} is none of {', '.join(PARTS)}: write score(SelfAttention={name})"
                )
            outcome.parts[name] = [rule.name for rule in RULES[name]]
            for message in run(RULES[name], Part(name, make)):
                outcome.take(message)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_rng_state(state)
    return outcome
