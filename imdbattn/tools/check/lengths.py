"""Rules that sheets add: lengths of each query, no lengths, and positions that are not trained."""

import torch
from torch import nn

from imdbattn.tools.check.numbers import NotChecked, mistake, same
from imdbattn.tools.check.part import Part, call, inputs, net_of


def given_lengths(part: Part, *values: list[int] | int) -> list[torch.Tensor]:
    """The arguments for two reviews of three words, with these lengths, (B,) or (B, Q)."""
    *given, _ = inputs(part, 3, 3)
    lengths = torch.tensor(values)
    if part.arguments[-2][0] == "mask":
        words = torch.arange(3) < lengths[..., None]
        return [*given, words if lengths.ndim == 2 else words[:, None]]
    return [*given, lengths]


def require_lengths(part: Part) -> None:
    if part.adapter and not part.adapter.masked:
        raise NotChecked(f"{part.name} is given no lengths.")


def of_queries(part: Part) -> None:
    """Lengths of two dimensions are those of each query."""
    require_lengths(part)
    net, lengths = net_of(part), [[1, 2, 3], [3, 1, 2]]
    found = call(part, net, *given_lengths(part, *lengths))
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
    if not same(found, right):
        raise mistake("none-hides-words", found, right)


def positions_trained(part: Part) -> None:
    """The positions are not trained."""
    net = net_of(part)
    if isinstance(net, nn.Module):
        for name, parameter in net.named_parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                raise mistake("positions-trained", name=name, shape=tuple(parameter.shape))
