"""Rules that sheets add: lengths of each query, no lengths, and bilinear scores."""

import torch

from imdbattn.tools.check.context import bilinear
from imdbattn.tools.check.numbers import NotChecked, StudentError, mistake, same
from imdbattn.tools.check.part import Part, Rule, call, inputs, net_of


def given_lengths(part: Part, *values: list[int] | int) -> list[torch.Tensor]:
    """The arguments for two reviews of three words, with these lengths, (B,) or (B, Q)."""
    *given, _ = inputs(part, 3, 3)
    lengths = torch.tensor(values)
    if part.arguments[-2][0] == "mask":
        words = torch.arange(3) < lengths[..., None]
        return [*given, words if lengths.ndim == 2 else words[:, None]]
    return [*given, lengths]


def require_lengths(part: Part) -> None:
    if not part.is_masked:
        raise NotChecked(f"{part.name} is given no lengths.")


def of_queries(part: Part) -> None:
    """Lengths of two dimensions are those of each query."""
    require_lengths(part)
    net, lengths = net_of(part), [[1, 2, 3], [3, 1, 2]]
    right = call(part, net, *given_lengths(part, 3, 3))
    try:
        found = call(part, net, *given_lengths(part, *lengths))
        if found.shape != right.shape:
            raise StudentError(ValueError(f"the result has the shape {tuple(found.shape)}"))
    except StudentError as error:
        if any(other.kind.name == "Decoder" for other in part.others):
            reason = "Lengths of two dimensions raise an exception; the decoder does not use them."
            raise NotChecked(reason) from error
        raise
    for query in range(3):
        one = [row[query] for row in lengths]
        right = call(part, net, *given_lengths(part, *one))
        if not same(found[:, query], right[:, query]):
            raise mistake("lengths-of-queries-ignored", found[:, query], right[:, query])


def none(part: Part) -> None:
    """Without lengths, all words count."""
    require_lengths(part)
    net = net_of(part)
    *given, _ = inputs(part, 3, 3)
    found, right = call(part, net, *given, None), call(part, net, *given_lengths(part, 3, 3))
    if not isinstance(found, torch.Tensor):
        values = {"text": "Without lengths, the result", "signature": part.shown}
        raise mistake("not-a-tensor", type=type(found).__name__, **values)
    if not same(found, right):
        raise mistake("none-hides-words", found, right)


NEEDED = ("repeatable", "reference")
EXTRA = {  # by the name in a sheet
    "lengths-of-queries": Rule("lengths-of-queries", of_queries, NEEDED),
    "no-lengths": Rule("no-lengths", none, NEEDED),
    "bilinear": Rule("bilinear", bilinear, NEEDED),
}
