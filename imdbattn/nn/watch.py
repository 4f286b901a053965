"""Lists the attention weights of a network, and measures their entropy.

Shape suffixes: B reviews, H heads, Q queries, K keys, T positions.
"""

from collections.abc import Iterable, Iterator
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
