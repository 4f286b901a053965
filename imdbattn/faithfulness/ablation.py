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
    found = {}
    for number, layer in enumerate(getattr(net, "layers", ()), 1):
        parts = [part for part in layer.modules() if isinstance(part, SelfAttention)]
        if len(parts) == 1:
            found[number] = parts[0]
    return found


def units(net: nn.Module) -> dict[str, Tensor]:
    """Name of each unit -> bool (L, H), True on the heads that it replaces; {} without self-attention.

    All layers must have the same number of heads. "all but" a head replaces the other heads of its layer; "all but" a
    layer replaces all other layers.
    """
    parts = self_attentions(net)
    heads = next(iter(parts.values())).heads if parts else 0
    found: dict[str, Tensor] = {}
    for row, number in enumerate(parts):
        layer_LH = torch.zeros(len(parts), heads, dtype=torch.bool)
        layer_LH[row] = True
        found[f"layer {number}"] = layer_LH
        if len(parts) > 1:
            found[f"all but layer {number}"] = ~layer_LH
        for head in range(heads if heads > 1 else 0):
            head_LH = layer_LH & (torch.arange(heads) == head)
            found[f"layer {number}, head {head + 1}"] = head_LH
            found[f"all but layer {number}, head {head + 1}"] = layer_LH & ~head_LH
    return found


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
    totals: dict[int, tuple[Any, Any]] = {}

    def add(row: int, module: nn.Module, inputs: tuple[Any, ...], output_BHTd: Tensor) -> None:
        mask_B1T1 = inputs[3].transpose(-2, -1)  # of the keys, which are also the queries
        total_Hd, positions = totals.get(row, (0, 0))
        total_Hd = total_Hd + output_BHTd.double().masked_fill(~mask_B1T1, 0).sum((0, 2))
        totals[row] = total_Hd, positions + mask_B1T1.sum()

    with hooked(net, add):
        for batch in batches:
            net(batch)
    return [total_Hd / positions for total_Hd, positions in totals.values()]


@torch.no_grad()
def ablate(net: nn.Module, batch: Batch, unit: str, means: Sequence[Tensor]) -> Tensor:
    """Logits (B, C) with the outputs of the heads of a unit replaced. means: of `mean_outputs`."""
    replaced_LH = units(net)[unit]

    def replace(row: int, module: nn.Module, inputs: tuple[Any, ...], output_BHTd: Tensor) -> Tensor:
        return torch.where(replaced_LH[row, :, None, None], means[row][:, None].to(output_BHTd), output_BHTd)

    with hooked(net, replace):
        return net(batch)
