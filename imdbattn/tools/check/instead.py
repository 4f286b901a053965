"""Right parts, with which those that use a wrong one are still checked."""

from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import imdbattn.nn as own
from imdbattn.tools.check.numbers import StudentError, normal
from imdbattn.tools.check.part import Part, inputs, student
from imdbattn.tools.check.sheets import meant, parameters_of


class Instead(nn.Module):
    """A right module, with which parts that use a wrong one are still checked; it accepts other
    arguments, too.
    """

    def __init__(self, right: Any, count: int, *sizes: int, **named: Any) -> None:
        super().__init__()
        self.right = right(*[*sizes, *named.values()][:count])

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.right(*[*given, *named.values()][:2])


class Masked(nn.Module):
    """Our layer, called with a mask (B, T), which is True on words, or without one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = x.new_ones(x.shape[:2]) if mask is None else mask
        return self.layer(x, own.Mask.of(mask.bool()))


def by_position(right: Any, *given: Any, **named: Any) -> Any:
    """A right function whose arguments may have other names."""
    return right(*given, *named.values())


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    weights = own.masked_softmax(q @ k.mT * k.shape[-1] ** -0.5, mask)
    return weights @ v, weights


def softmax(scores: Tensor, lengths: Tensor | None = None) -> Tensor:
    """lengths: (B,), (B, Q) or None."""
    if lengths is None:
        return own.masked_softmax(scores, None)
    lengths = lengths if lengths.ndim == 2 else lengths[:, None]
    words = torch.arange(scores.shape[-1], device=scores.device) < lengths[..., None]
    return own.masked_softmax(scores, words)


class InsteadDotProduct(nn.Module):
    """A right DotProductAttention of the textbook, with which its MultiHeadAttention is checked."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.attention_weights = softmax(q @ k.mT * k.shape[-1] ** -0.5, lengths)
        return self.attention_weights @ v


class InsteadAdditive(nn.Module):
    """A right AdditiveAttention of the textbook, for the decoder that uses it."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__()
        self.W_q, self.W_k = nn.LazyLinear(8, bias=False), nn.LazyLinear(8, bias=False)
        self.w_v = nn.Linear(8, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None) -> Tensor:
        hidden = (self.W_q(q)[:, :, None] + self.W_k(k)[:, None]).tanh()
        self.attention_weights = softmax(self.w_v(hidden)[..., 0], lengths)
        return self.attention_weights @ v


class InsteadMasked(nn.Module):
    """A right layer that is given lengths, or a mask that may be True on padding."""

    def __init__(self, right: Any, is_padding: bool, *sizes: int, **named: Any) -> None:
        super().__init__()
        width = next(size for size in (*sizes, *named.values()) if isinstance(size, int))
        self.right, self.is_padding = right(width), is_padding

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        if given is not None and given.ndim == 1:
            given = own.padding_mask(given, x.shape[1])
        elif given is not None:
            given = given.bool() if given.dtype == torch.bool or (given >= 0).all() else given == 0
            given = ~given if self.is_padding else given
        return self.right(x, given)


MODULES = {
    "SelfAttention": lambda width: Masked(own.SelfAttention(width)),
    "MultiHeadSelfAttention": lambda width: Masked(own.SelfAttention(width)),
    "PlainLayer": lambda width: Masked(own.PlainLayer(width)),
    "ResidualLayer": lambda width: Masked(own.ResidualLayer(width)),
}
INSTEAD: dict[str, Any] = {name: partial(Instead, right, 1) for name, right in MODULES.items()} | {
    "AdditiveScore": partial(Instead, own.Additive, 3),
    "masked_softmax": partial(by_position, softmax),
    "masked_mean": partial(by_position, Masked(own.MeanPooling(1))),
    "positional_encoding": partial(by_position, own.sinusoids),
    "scaled_dot_product_attention": partial(by_position, attention),
}


def attention_as(part: Part) -> Any:
    """A right function with the mask of the student's, which returns the weights if that does."""
    assert part.adapter is not None
    mask_is = next((v for v in part.adapter.way.arguments.values() if "mask" in v), "mask")
    with_weights = False
    with suppress(StudentError):
        with_weights = isinstance(student(part.make, *inputs(part, 2)[:3], None), tuple)

    def right(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *rest: Any) -> Any:
        if mask is not None and "torch.zeros" in mask_is:
            mask = mask > -1
        elif mask is not None:
            mask = ~mask.bool() if "~mask" in mask_is else mask.bool()
        weights = own.masked_softmax(q @ k.mT * k.shape[-1] ** -0.5, mask)
        return (weights @ v, weights) if with_weights else weights @ v

    return partial(by_position, right)


def method_of(part: Part) -> Any:
    """A right get_context_vector, with a matrix of its own, for the model that uses a wrong one."""
    assert part.adapter is not None
    wanted = part.adapter.way.arguments
    names = parameters_of(getattr(part.make, part.adapter.entry.method))
    values = [wanted.get(meant(name, wanted) or "", "") for name in names]
    is_swapped = bool(values) and values[0].startswith("state")

    def get_context_vector(self: nn.Module, *given: Any, **named: Any) -> Tensor:
        outputs, state = [*given, *named.values()][:: -1 if is_swapped else 1]
        state = state[0] if isinstance(state, tuple) else state
        query = state.reshape(-1, *state.shape[-2:])[-1]
        matrix = normal(outputs.shape[-1], query.shape[-1], seed=3).to(outputs)
        scores = (outputs @ matrix @ query[..., None]) / outputs.shape[-1] ** 0.5
        context: Tensor = (scores.softmax(1) * outputs).sum(1, keepdim=True)
        return context

    return get_context_vector


def instead(part: Part) -> Any:
    """A right part for those that use a wrong one. It returns the weights, too, if the student's
    does.
    """
    if part.adapter:
        if part.adapter.entry.method:
            setattr(part.make, part.adapter.entry.method, method_of(part))
            return part.make
        is_module = part.adapter.entry.is_module
        if part.kind.name == "scaled_dot_product_attention" and is_module:
            return InsteadDotProduct
        if part.kind.name == "AdditiveAttention":
            return InsteadAdditive
        heads = [name for name in parameters_of(part.make) if "head" in name or name == "h"]
        is_width_first = not heads or next(iter(parameters_of(part.make))) != heads[0]
        if part.kind.name in MODULES and is_width_first:
            is_padding = "~" in "".join(part.adapter.way.arguments.values())
            return partial(InsteadMasked, MODULES[part.kind.name], is_padding)
        if part.kind.name == "scaled_dot_product_attention":
            return attention_as(part)
        same_call = part.kind.name in ("masked_softmax", "masked_mean", "positional_encoding")
        return INSTEAD[part.kind.name] if same_call and not is_module else part.make
    right = INSTEAD.get(part.name, part.make)
    with suppress(StudentError):
        is_attention = part.name == "scaled_dot_product_attention"
        if is_attention and not isinstance(student(part.make, *inputs(part, 2)), tuple):
            return lambda *given, **named: right(*given, **named)[0]
    return right
