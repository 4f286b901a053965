"""Records the attention weights of a network, and estimates from them the share of each input.

Shape suffixes: B reviews, H heads, Q queries, K keys, T positions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def watch(net: nn.Module) -> Iterator[list[Tensor]]:
    """Yields a list to which every attention of `net` appends its weights (B, H, Q, K) in order of use, pooling last.

    That is every module with an attribute `record`, None unless watched. A watched attention computes its weights, and
    does not use a faster path.
    """
    weights: list[Tensor] = []
    watched = [module for module in net.modules() if hasattr(module, "record")]
    try:
        for module in watched:
            module.record = weights  # type: ignore[assignment]
        yield weights
    finally:
        for module in watched:
            module.record = None  # type: ignore[assignment]


def rollout(weights: Sequence[Tensor], skips: Sequence[bool]) -> Tensor:
    """(B, T), each row summing to 1: the share of each input position in the pooled vector.

    Attention rollout (Abnar & Zuidema 2020, equation 1). weights: (B, H, T, T) of each layer, then (B, 1, 1, T) of the
    pooling, as `watch` lists them. skips: for each layer whether x is added to f(x); it then counts as (A + I) / 2.
    """
    *layers, share_B1T = (each.mean(1) for each in weights)
    for weights_BTT, skip in zip(reversed(layers), reversed(skips), strict=True):
        passed_B1T = share_B1T @ weights_BTT
        share_B1T = (passed_B1T + share_B1T) / 2 if skip else passed_B1T
    return share_B1T.squeeze(1)
