"""Changes to a trained classifier and its input: heads, layers, words and positions that are
disabled, and shuffled words.

Shape suffixes: B reviews, H heads, T positions, d width of one head.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from imdbattn.errors import UserError
from imdbattn.nn.ladder import NoPositions, SelfAttention
from imdbattn.nn.rollout import rollout

PartNumber = Annotated[int, Field(ge=1)]  # the number of a layer or a head


class Changes(BaseModel):
    """What is disabled or changed.

    A disabled head outputs zeros, a disabled layer is skipped, and a disabled word is removed; the
    other words keep their positions.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    heads: list[tuple[PartNumber, PartNumber]] = []  # layer and head, both counted from 1
    layers: list[PartNumber] = []  # counted from 1
    words: list[Annotated[int, Field(ge=0)]] = []  # indices among the words that are read
    positions: bool = False  # whether positions and distances are removed
    shuffle: Annotated[int, Field(ge=0, lt=2**32)] | None = None  # seed of an order of the words

    def __bool__(self) -> bool:
        return self != Changes()

    def kept_layers(self, layers: int) -> list[int]:
        """Returns the numbers of the layers that are not disabled, of `layers` in all."""
        return [number for number in range(1, 1 + layers) if number not in self.layers]

    def heads_of(self, layer: int) -> list[int]:
        """Returns the disabled heads of a layer."""
        return sorted({head for number, head in self.heads if number == layer})


def shuffled(size: int, seed: int) -> list[int]:
    """Returns a random permutation of `size` indices, from a Lehmer generator.

    static/model.js computes the same permutation, so that a link has the same effect in a file.
    """
    order = list(range(size))
    state = seed % 2147483646 + 1
    for _ in range(3):
        state = state * 48271 % 2147483647
    for last in range(size - 1, 0, -1):
        state = state * 48271 % 2147483647
        swapped = state % (last + 1)
        order[last], order[swapped] = order[swapped], order[last]
    return order


Replacement = tuple[nn.Module, str, nn.Module | Tensor | None]  # owner, attribute, its value


def positional(net: nn.Module) -> list[Replacement]:
    """Returns the parts that see word order, except convolutions, with values that disable them."""
    replacements: list[Replacement] = []
    for part in net.modules():
        if isinstance(getattr(part, "distances", None), nn.Module):
            replacements.append((part, "distances", None))
        frequency_M = getattr(part, "frequency_M", None)
        if isinstance(frequency_M, Tensor):  # rotary positions
            replacements.append((part, "frequency_M", torch.zeros_like(frequency_M)))
    if not isinstance(getattr(net, "positions", NoPositions()), NoPositions):
        replacements.append((net, "positions", NoPositions()))
    return replacements


def layer_of(net: Any, number: int) -> nn.Module:
    """Returns a layer of a net by its number. Raises UserError if the net does not have it."""
    layers = getattr(net, "layers", ())
    if number > len(layers):
        raise UserError(f"there is no layer {number}; number of layers: {len(layers)}")
    return layers[number - 1]


@contextmanager
def changed(net: Any, changes: Changes) -> Iterator[None]:
    """Applies the changes of heads, layers and positions to a net, and undoes them at the end.

    Raises UserError for a layer or a head that the net does not have.
    """

    def zero_heads(layer: int, module: nn.Module, inputs: object, output_BHTd: Tensor) -> Tensor:
        heads = changes.heads_of(layer)
        if heads[-1] > output_BHTd.shape[1]:
            count = output_BHTd.shape[1]
            raise UserError(f"layer {layer} has no head {heads[-1]}; number of heads: {count}")
        disabled = torch.tensor(heads, device=output_BHTd.device)
        return output_BHTd.index_fill(1, disabled - 1, 0)

    with ExitStack() as stack:
        for number in dict(changes.heads):
            for part in layer_of(net, number).modules():
                if isinstance(part, SelfAttention):
                    hook = partial(zero_heads, number)
                    stack.enter_context(part.attention.register_forward_hook(hook))
        replacements = positional(net) if changes.positions else []
        if changes.layers:
            layer_of(net, max(changes.layers))
            kept = [net.layers[number - 1] for number in changes.kept_layers(len(net.layers))]
            replacements.append((net, "layers", nn.ModuleList(kept)))
        for owner, name, value in replacements:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def enabled_rollout(changes: Changes, weights: Sequence[Tensor], skips: Sequence[bool]) -> Tensor:
    """Returns `rollout` through the enabled heads.

    A layer without enabled heads has only its skip connection.
    """
    *layers, pooling = weights
    numbers = changes.kept_layers(len(layers) + len(set(changes.layers)))
    enabled = []
    for number, weights_BHTT, skip in zip(numbers, layers, skips, strict=True):
        disabled = changes.heads_of(number)
        kept = [head for head in range(weights_BHTT.shape[1]) if head + 1 not in disabled]
        nothing = torch.eye(weights_BHTT.shape[-1])[None, None].to(weights_BHTT) * float(skip)
        enabled.append(weights_BHTT[:, kept] if kept else nothing)
    return rollout([*enabled, pooling], skips)
