"""Ablation of attention heads, after Michel et al., "Are Sixteen Heads Really Better than One?", NeurIPS 2019.

The output of a head is replaced by its mean over the words of many reviews. The paper replaces it by zero, an output
that the next layer may never have received in training.

Shape suffixes: B reviews, C classes, T positions; L layers, H heads, d width of one head.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.data.ragged import Batch
from imdbattn.nn.ladder import SelfAttention


def self_attentions(net: nn.Module) -> dict[int, SelfAttention]:
    """By number of the layer, from 1, without layers that do not have exactly one."""
    by_number = {}
    for number, layer in enumerate(getattr(net, "layers", ()), 1):
        parts = [part for part in layer.modules() if isinstance(part, SelfAttention)]
        if len(parts) == 1:
            by_number[number] = parts[0]
    return by_number


def units(net: nn.Module) -> dict[str, Tensor]:
    """Name of each unit -> bool (L, H), True on the heads that it replaces; {} without self-attention.

    All layers must have the same number of heads. "all but" a head replaces the other heads of its layer; "all but" a
    layer replaces all other layers.
    """
    numbers = list(self_attentions(net))
    if not numbers:
        return {}
    heads = next(iter(self_attentions(net).values())).heads
    none_LH = torch.zeros(len(numbers), heads, dtype=torch.bool)
    heads_of: dict[str, Tensor] = {}
    for row, number in enumerate(numbers):
        layer = f"layer {number}"
        layer_LH = none_LH.clone()
        layer_LH[row] = True
        heads_of[layer] = layer_LH
        if len(numbers) > 1:
            heads_of[f"all but {layer}"] = ~layer_LH
        for head in range(heads if heads > 1 else 0):
            head_LH = none_LH.clone()
            head_LH[row, head] = True
            heads_of[f"{layer}, head {head + 1}"] = head_LH
            heads_of[f"all but {layer}, head {head + 1}"] = layer_LH & ~head_LH
    return heads_of


@contextmanager
def hooked(net: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Calls `hook(row, module, inputs, output_BHTd)` after the attention of each layer; an output replaces the old."""
    with ExitStack() as stack:
        for row, part in enumerate(self_attentions(net).values()):
            stack.enter_context(part.attention.register_forward_hook(partial(hook, row)))
        yield


@torch.no_grad()
def mean_outputs(net: nn.Module, batches: Iterable[Batch]) -> list[Tensor]:
    """(H, d) for each layer of `units`: the mean output of its heads over all words, and <cls>, of all reviews."""
    sums: dict[int, Tensor] = {}
    positions: dict[int, Tensor] = {}

    def add(row: int, module: nn.Module, inputs: tuple[Any, ...], output_BHTd: Tensor) -> None:
        mask_B1T1 = inputs[3].transpose(-2, -1)  # of the keys, which are also the queries
        words_BHTd = output_BHTd.double().masked_fill(~mask_B1T1, 0)
        sums[row] = sums.get(row, 0) + words_BHTd.sum((0, 2))
        positions[row] = positions.get(row, 0) + mask_B1T1.sum()

    with hooked(net, add):
        for batch in batches:
            net(batch)
    return [sums[row] / positions[row] for row in sorted(sums)]


@torch.no_grad()
def ablate(net: nn.Module, batch: Batch, unit: str, means: Sequence[Tensor]) -> Tensor:
    """Logits (B, C) with the outputs of the heads of a unit replaced. means: of `mean_outputs`."""
    replaced_LH = units(net)[unit]

    def replace(row: int, module: nn.Module, inputs: tuple[Any, ...], output_BHTd: Tensor) -> Tensor:
        replaced_H11 = replaced_LH[row, :, None, None].to(output_BHTd.device)
        return torch.where(replaced_H11, means[row][:, None].to(output_BHTd), output_BHTd)

    with hooked(net, replace):
        return net(batch)
