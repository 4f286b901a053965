"""Lists the attention weights of a network, measures their entropy, and estimates from them the
share of each input.

Shape suffixes: B reviews, H heads, Q queries, K keys, T positions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from imdbattn.nn.scores import at_least_one, sequence_mask


@contextmanager
def collect_attention(parts: Iterable[nn.Module]) -> Iterator[list[list[Tensor]]]:
    """Yields a list for each part of a net, to which every attention in the part appends its
    weights (B, H, Q, K) in order of use.

    An attention is a module with a method `attention_weights`, which is called with the inputs of
    `forward`. Outside of torch.no_grad(), the weights have gradients.
    """
    with ExitStack() as stack:
        collected = []
        for part in parts:
            weights: list[Tensor] = []
            for module in filter(has_attention_weights, part.modules()):
                hook = partial(append_weights, weights)
                stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
            collected.append(weights)
        yield collected


def append_weights(
    weights: list[Tensor],
    module: Any,
    inputs: tuple[object, ...],
    options: dict[str, object],
    output: object,
) -> None:
    weights.append(module.attention_weights(*inputs, **options))


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


def has_attention_weights(module: nn.Module) -> bool:
    """Returns whether the module has `attention_weights` that belong to its `forward`. They do not
    if a subclass overrides only `forward`.
    """
    for cls in type(module).__mro__:
        if "attention_weights" in vars(cls) or "forward" in vars(cls):
            return "attention_weights" in vars(cls)
    return False


def attention_parts(net: nn.Module) -> dict[str, nn.Module]:
    """Returns the parts of a net with attention, by name: layer1, layer2 and so on, and pooling.

    A pooling with `shows_attention = False` is omitted: nothing in its weights is learned.
    """
    parts = {f"layer{n}": layer for n, layer in enumerate(getattr(net, "layers", ()), 1)}
    pooling = getattr(net, "pooling", None)
    if pooling is not None and getattr(pooling, "shows_attention", True):
        parts["pooling"] = pooling
    return {
        name: part
        for name, part in parts.items()
        if any(map(has_attention_weights, part.modules()))
    }


class BatchAttention(NamedTuple):
    """The weights of one attention, and which of its queries and keys are not padding."""

    weights_BHQK: Tensor
    is_query_BQ: Tensor  # bool
    key_count_B: Tensor  # int64, number of keys

    @classmethod
    def of_words(cls, weights_BHQK: Tensor, lengths_B: Tensor, size: int) -> "BatchAttention":
        """Returns the attention of words to words, or of a single query to them. lengths_B: words
        in each review. size: T, words and padding; further keys, such as <cls>, come first.
        """
        queries, keys = weights_BHQK.shape[-2:]
        key_count_B = at_least_one(lengths_B) + keys - size
        # Each review has a key, so a single query is never masked.
        return cls(weights_BHQK, sequence_mask(key_count_B, queries), key_count_B)

    def entropy(self) -> Tensor:
        """Returns the entropy of each query in nats, (B, H, Q): log K if all K weights are equal, 0
        if one weight is 1.
        """
        # a weight of 0 adds 0, with a finite gradient
        weights_BHQK = self.weights_BHQK.float()
        logs_BHQK = weights_BHQK.clamp(min=torch.finfo(torch.float32).tiny).log()
        return -torch.linalg.vecdot(weights_BHQK, logs_BHQK)

    def over_queries(self, values_BHQ: Tensor) -> Tensor:
        """Returns each review's mean over its queries, (B, H)."""
        mask_B1Q = self.is_query_BQ[:, None]
        return (values_BHQ * mask_B1Q).sum(-1) / mask_B1Q.sum(-1)


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
