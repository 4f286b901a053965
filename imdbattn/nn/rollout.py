"""Attention rollout: estimates from the attention weights the share of each input in the pooled
vector.

Shape suffixes: B reviews, H heads, Q queries, K keys, T positions.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from imdbattn.nn.watch import collect_attention


def collect_attention_of_parts(
    net: nn.Module, run: Callable[[], Tensor]
) -> tuple[Tensor, list[Tensor], list[bool]]:
    """Returns what `run` returns, the weights of each layer and of the pooling, and whether each
    layer adds x itself.

    run: calls the net once. Raises ValueError for a custom part without `attention_weights`
    or, in layers, without `skip`.
    """
    # A custom model may have other parts.
    parts: list[Any] = [*getattr(net, "layers", ()), getattr(net, "pooling", net)]
    with collect_attention(parts) as collected:
        result = run()
    for part, weights in zip(parts, collected, strict=True):
        is_pooling = part is parts[-1]
        name = f"{type(part).__module__}.{type(part).__qualname__}"
        if not (len(weights) == 1 and weights[0].ndim == 4) or (
            weights[0].shape[2] != (1 if is_pooling else weights[0].shape[3])
        ):
            raise ValueError(f"{name} has no method `attention_weights` that returns (B, H, Q, K)")
        if not (is_pooling or hasattr(part, "skip")):
            raise ValueError(f"{name} has no attribute `skip`")
    return result, [weights[0] for weights in collected], [part.skip for part in parts[:-1]]


def rollout(weights: Sequence[Tensor], skips: Sequence[bool]) -> Tensor:
    """Returns (B, T), each row summing to 1: the share of each input position in the pooled vector.

    Attention rollout (Abnar & Zuidema 2020, equation 1). weights: (B, H, T, T) of each layer, then
    (B, 1, 1, T) of the pooling, as `collect_attention` lists them. skips: for each layer whether x
    is added to f(x); it then counts as (A + I) / 2.
    """
    *layers, share_B1T = (each.mean(1) for each in weights)
    for weights_BTT, skip in zip(reversed(layers), reversed(skips), strict=True):
        passed_B1T = share_B1T @ weights_BTT
        share_B1T = (passed_B1T + share_B1T) / 2 if skip else passed_B1T
    return share_B1T.squeeze(1)
