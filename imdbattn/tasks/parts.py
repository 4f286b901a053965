"""The parts of a network that settings name, whose outputs are checked before training.

Shape suffixes: B items of a batch, T positions, D vector width.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from imdbattn.nn.ladder import Attention


class Part(NamedTuple):
    """A part of a network (docs/own_parts.md).

    setting: that names it. shape: of its output, given its inputs. method: that is called.
    """

    setting: str
    module: nn.Module
    shape: Callable[..., tuple[int, ...]]
    method: str = "forward"


def same_shape(x_BTD: Tensor, *_: Any) -> tuple[int, ...]:
    """Returns the shape of the first input."""
    return x_BTD.shape


def pooled_shape(x_BTD: Tensor, *_: Any) -> tuple[int, ...]:
    """Returns (B, D)."""
    return x_BTD.shape[::2]


def shape_of_scores(query: Tensor, key: Tensor) -> tuple[int, ...]:
    """Returns (..., queries, keys)."""
    return *query.shape[:-1], key.shape[-2]


def scores_in(net: nn.Module) -> Iterator[Part]:
    """Yields the score of each attention layer."""
    for owner in net.modules():
        if isinstance(owner, Attention):
            yield Part("score", owner.score, shape_of_scores)
