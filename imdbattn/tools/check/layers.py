"""Layers around attention, which is a module of the layer, or which the layer computes itself."""

import itertools
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.tools.check.attention import attention_names
from imdbattn.tools.check.formulas import Binding, Call, Names, last_step
from imdbattn.tools.check.kinds import FormulaKind
from imdbattn.tools.check.numbers import mask, normal, same
from imdbattn.tools.check.part import HEADS, WIDTH, Part
from imdbattn.tools.check.tables import TABLES
from imdbattn.tools.check.weights import Roles, matrix_lists, role_orders, stored

MOST_MISTAKES_IN_LAYER = 700  # the number of mistakes of attention that are tried in a layer


class LayerKind(FormulaKind):
    """g(f(x)) or g(x + f(LN(x))). f is a module of the layer, or the layer computes it itself."""

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        children = list(net.modules())[1:]
        inner = [(child, attend) for child in children for attend in attention_calls(child)]
        if not inner:
            return self.computed_inside(net)
        left = set(children).difference(*(child.modules() for child, _ in inner))
        further = [p for module in left for p in module.parameters(recurse=False)]
        has_others = len(further) > 4  # more than LayerNorm's and those of a Linear
        found = []
        for child, attend in inner:
            inside = {*child.modules()}
            outside = [module for module in net.modules() if module not in inside]
            for norm, g in itertools.product(norms(outside), linears_for_g(net, [child])):
                names = partial(layer_names, attend, norm=norm, g=g)
                found.append(Binding(names, has_others=has_others))
        return found

    def computed_inside(self, net: nn.Module) -> list[Binding]:
        """Returns the bindings of a layer that computes attention itself, and its mistakes."""
        found: list[Binding] = []
        wrong: list[Binding] = []
        of_layer = [
            (roles, norm)
            for matrices in matrix_lists(net)
            for roles in role_orders(matrices)
            for norm in norms(net.modules())
            if len(roles.rest) == 1 and roles.rest[0].inputs == roles.rest[0].outputs == WIDTH
        ]
        for (roles, norm), heads in itertools.product(of_layer, (1, HEADS)):
            table = TABLES["SelfAttention" if heads == 1 else "MultiHeadSelfAttention"]
            names = partial(layer_names, norm=norm, g=roles.rest[0])
            right = partial(attention_of, roles, heads, table.steps)
            found.append(Binding(partial(names, right)))
            variants = table.variants if len(wrong) < MOST_MISTAKES_IN_LAYER else []
            for finding, text, steps in variants:
                inside = partial(attention_of, roles, heads, table.steps | steps)
                wrong.append(Binding(partial(names, inside), finding, text))
        return found + wrong


def attention_of(roles: Roles, heads: int, steps: dict[str, str], x: Tensor, m: Tensor) -> Tensor:
    """Returns the result of the formula, or of a mistake in it, with these matrices."""
    y: Tensor | None = last_step(steps, attention_names(roles, heads, x, m))
    if y is None:
        raise RuntimeError("The steps cannot be computed for these shapes.")
    return y


def attention_calls(module: nn.Module) -> list[Call]:
    """Returns functions of (x, mask) that call a module in which words affect each other: those in
    which padding has no effect, or all if it has in each; [] if the module is not attention.
    """

    def heads(x: Tensor, m: Tensor) -> Tensor:
        x, padding = x if module.batch_first else x.transpose(0, 1), ~m & m.any(1, keepdim=True)
        y = module(x, x, x, key_padding_mask=padding)[0]
        return y if module.batch_first else y.transpose(0, 1)

    calls: list[Call] = [heads]
    if not isinstance(module, nn.MultiheadAttention):
        calls = [
            lambda x, m: module(x, m),
            lambda x, m: module(x, ~m),
            lambda x, m: module(x, m.sum(1)),
            lambda x, m: module(x, m[:, None, None]),
            lambda x, m: module(x, m[:, None]),
            lambda x, m: module(x),
        ]
    found = [attend for attend in calls if is_attention(attend)]
    return [attend for attend in found if ignores_padding(attend)] or found


def is_attention(attend: Call) -> bool:
    x = normal(1, 2, WIDTH)
    with suppress(Exception):  # it has another signature
        y = attend(x, mask(2))
        return y.shape == x.shape and not same(y[:, :1], attend(x[:, :1], mask(1)), 1e-6)
    return False


def ignores_padding(attend: Call) -> bool:
    """Returns whether the results of two words are the same with a third position, of padding."""
    x = normal(1, 3, WIDTH)
    with suppress(Exception):
        return same(attend(x, mask(2, size=3))[:, :2], attend(x[:, :2], mask(2)))
    return False


def layer_names(attention: Call, x: Tensor, m: Tensor, norm: Call, g: Call) -> Names:
    return {"x": x, "mask": m, "attention": attention, "n": norm, "g": g}


def norms(modules: Iterable[nn.Module]) -> list[Call]:
    """Returns LayerNorm with the weights and biases of each module that has them; without any if
    none has.
    """
    found: list[Call] = []
    for module in modules:
        trained = [p for p in module.parameters(recurse=False) if p.requires_grad]
        vectors = [p.detach() for p in trained if p.shape == (WIDTH,)]
        has_matrices = any(p.ndim > 1 for p in trained)
        is_without_weights = not trained and "norm" in type(module).__name__.lower()
        if is_without_weights or len(vectors) == 2 or (vectors and not has_matrices):
            weight, bias = [*vectors, None, None][:2]
            found.append(partial(F.layer_norm, normalized_shape=(WIDTH,), weight=weight, bias=bias))
    return found or [partial(F.layer_norm, normalized_shape=(WIDTH,))]


def linears_for_g(net: nn.Module, attentions: list[nn.Module]) -> list[Call]:
    """Returns the square matrices outside of the attention; a function to NaN if there is none."""
    both = [*stored(net, False, attentions), *stored(net, True, attentions)]
    found: list[Call] = [matrix for matrix in both if matrix.inputs == matrix.outputs == WIDTH]
    return found or [lambda x: x * float("nan")]
