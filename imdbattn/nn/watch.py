"""Lists the attention weights of a network, and estimates from them the share of each input.

Shape suffixes: B reviews, H heads, Q queries, K keys, T positions.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def watch(net: nn.Module) -> Iterator[list[Tensor]]:
    """Yields a list to which every attention of `net` appends its weights (B, H, Q, K) in order of
    use, pooling last.

    That is every module with a method `attention_weights`, which is called with the inputs of
    `forward`.
    """
    weights: list[Tensor] = []

    def append(module: Any, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        weights.append(module.attention_weights(*inputs, **options).detach())

    with ExitStack() as stack:
        for module in filter(shows_weights, net.modules()):
            stack.enter_context(module.register_forward_hook(append, with_kwargs=True))
        yield weights


def shows_weights(module: nn.Module) -> bool:
    """Whether `attention_weights` belongs to the module's `forward`: not if a subclass replaces
    `forward` only.
    """
    for cls in type(module).__mro__:
        if "attention_weights" in vars(cls) or "forward" in vars(cls):
            return "attention_weights" in vars(cls)
    return False


def rollout(weights: Sequence[Tensor], skips: Sequence[bool]) -> Tensor:
    """(B, T), each row summing to 1: the share of each input position in the pooled vector.

    Attention rollout (Abnar & Zuidema 2020, equation 1). weights: (B, H, T, T) of each layer, then
    (B, 1, 1, T) of the pooling, as `watch` lists them. skips: for each layer whether x is added to
    f(x); it then counts as (A + I) / 2.
    """
    *layers, share_B1T = (each.mean(1) for each in weights)
    for weights_BTT, skip in zip(reversed(layers), reversed(skips), strict=True):
        passed_B1T = share_B1T @ weights_BTT
        share_B1T = (passed_B1T + share_B1T) / 2 if skip else passed_B1T
    return share_B1T.squeeze(1)
