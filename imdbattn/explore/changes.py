"""Changes to a trained classifier and its input: disabled heads, layers, words and positions, and shuffled words.

Shape suffixes: B reviews, H heads, T positions, d width of one head.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from imdbattn.errors import UserError
from imdbattn.explain.watch import rollout
from imdbattn.faithfulness.ablation import hooked, self_attentions
from imdbattn.nn.ladder import NoPositions, SelfAttention

Number = Annotated[int, Field(ge=1)]


class Changes(BaseModel):
    """heads: pairs of layer and head; layers and heads count from 1. words: places among the words that are read.

    A disabled head outputs zeros, a disabled layer is skipped, and a disabled word is removed; the others keep their
    positions. positions: true removes positions and distances. shuffle: seed of a random order of the words.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    heads: list[tuple[Number, Number]] = []
    layers: list[Number] = []
    words: list[Annotated[int, Field(ge=0)]] = []
    positions: bool = False
    shuffle: Annotated[int, Field(ge=0, lt=2**32)] | None = None

    def __bool__(self) -> bool:
        return self != Changes()

    def kept_layers(self, layers: int) -> list[int]:
        """The numbers of the layers, out of so many, that are not disabled."""
        return [number for number in range(1, 1 + layers) if number not in self.layers]

    def heads_of(self, layer: int) -> list[int]:
        return sorted({head for number, head in self.heads if number == layer})

    def facts(self, words: Sequence[str]) -> list[str]:
        """Descriptions of the changes. words: those that are read, in their order."""
        lines = [f"without layer {number}" for number in sorted(set(self.layers))]
        lines += [f"without head {head} of layer {layer}" for layer, head in sorted(set(self.heads))]
        lines += ["without positions"] if self.positions else []
        lines += [f"words shuffled (seed {self.shuffle})"] if self.shuffle is not None else []
        removed = [words[place] for place in sorted(set(self.words)) if place < len(words)]
        return lines + ([f"without the words {', '.join(removed)}"] if removed else [])


def layers_of(net: nn.Module) -> list[Any]:
    return list(getattr(net, "layers", ()))


def has_positions(net: nn.Module) -> bool:
    """Whether the order of the words matters to positions or distances; a convolution is neither."""
    return not isinstance(getattr(net, "positions", NoPositions()), NoPositions) or bool(with_distances(net))


def with_distances(net: nn.Module) -> list[SelfAttention]:
    parts = [part for part in net.modules() if isinstance(part, SelfAttention)]
    return [part for part in parts if part.distances is not None]


def check(net: nn.Module, changes: Changes) -> None:
    """Raises UserError for a layer or head that does not exist."""
    layers, attentions = len(layers_of(net)), self_attentions(net)
    for layer in changes.layers:
        if layer > layers:
            raise UserError(f"there is no layer {layer}: the model has {layers}")
    for layer, head in changes.heads:
        if layer not in attentions or head > attentions[layer].heads:
            raise UserError(f"there is no head {head} in layer {layer}: reset the changes")


@contextmanager
def changed(net: Any, changes: Changes) -> Iterator[None]:
    """Applies the changes of heads, layers and positions to a net, and undoes them at the end."""
    numbers = list(self_attentions(net))

    def zero_heads(row: int, module: nn.Module, inputs: Any, output_BHTd: Tensor) -> Tensor:
        output_BHTd = output_BHTd.clone()
        output_BHTd[:, [head - 1 for head in changes.heads_of(numbers[row])]] = 0
        return output_BHTd

    with ExitStack() as stack:
        if changes.heads:
            stack.enter_context(hooked(net, zero_heads))
        if changes.positions:
            for part in with_distances(net):
                stack.enter_context(replaced(part, "distances", None))
            if hasattr(net, "positions"):
                stack.enter_context(replaced(net, "positions", NoPositions()))
        if changes.layers:
            kept = [net.layers[number - 1] for number in changes.kept_layers(len(net.layers))]
            stack.enter_context(replaced(net, "layers", nn.ModuleList(kept)))
        yield


@contextmanager
def replaced(owner: nn.Module, name: str, value: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


def shares(changes: Changes, weights: Sequence[Tensor], skips: Sequence[bool]) -> Tensor:
    """`rollout` through the enabled heads. A layer without any has only its skip connection."""
    *layers, pooling = weights
    numbers = changes.kept_layers(len(layers) + len(set(changes.layers)))
    enabled = []
    for number, weights_BHTT, skip in zip(numbers, layers, skips, strict=True):
        off = changes.heads_of(number)
        kept = [head for head in range(weights_BHTT.shape[1]) if head + 1 not in off]
        if kept:
            enabled.append(weights_BHTT[:, kept])
        else:
            enabled.append(torch.eye(weights_BHTT.shape[-1])[None, None].to(weights_BHTT) * float(skip))
    return rollout([*enabled, pooling], skips)
