"""The kinds of parts: how each is made, its rules, and the formula that it is compared with.

The parameters of a student's module are copied into the formula (see weights.py); the mistakes of a
formula are in mistakes/. Shape suffixes: B reviews, T positions, D width.
"""

import itertools
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import imdbattn.tools.check.decoder as decoder
import imdbattn.tools.check.model as model
import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.accuracy import TEST, TRAIN, accuracy_examples, share
from imdbattn.tools.check.context import bindings_of_context
from imdbattn.tools.check.formulas import (
    Binding,
    Call,
    Comparison,
    Names,
    identity,
    last_step,
)
from imdbattn.tools.check.numbers import mask, normal, same
from imdbattn.tools.check.part import HEADS, WIDTH, Kind, Part, Rule, call_student
from imdbattn.tools.check.tables import TABLES, Mistake
from imdbattn.tools.check.weights import (
    MOST_MATRICES,
    Roles,
    readings,
    repeated,
    role_orders,
    stored,
)

WITH_PADDING = "3 reviews of 2, 4 and 3 words and padding"


def agrees(part: Part) -> None:
    """The result is that of the formula; known mistakes are not looked for."""
    if not part.comparison.is_right():
        raise Mistake("differs-from-reference", "")


def reference(part: Part) -> str:
    """The result is that of the formula. Returns the sentence.

    If not, a mistake of the table is the finding, or else a property that does not hold.
    """
    comparison = part.comparison
    if comparison.is_right():
        return comparison.table.texts["holds"]
    if named := comparison.named():
        raise named
    unnamed = comparison.unnamed()
    if isinstance(unnamed, Mistake) and any(part.kind.arguments.values()):
        rules.batch(part)
        if isinstance(part.net(), nn.Module):
            rules.gradients(part)
    raise unnamed


RESULT_RULES = [
    Rule("reference", reference, ("repeatable", "registered")),
    Rule("batch", rules.batch, ("repeatable", "registered", "reference")),
    Rule("finite", rules.finite, ("registered", "reference", "input-unchanged")),
]


class FormulaKind(Kind):
    """A part whose result is that of the formula with the same name in mistakes/."""

    def rules(self) -> list[Rule]:
        if not self.is_module:
            return [*rules.FIRST, *RESULT_RULES]
        needs = ("registered", "reference", "input-unchanged")
        gradients = Rule("gradients", rules.gradients, needs)
        return [*rules.FIRST, rules.REGISTERED, *RESULT_RULES, gradients]

    def examples(self, part: Part) -> Names:
        """Returns the inputs that are compared, by description; the last ones have padding."""
        return {
            "16 reviews of 3 words": part.inputs(*[3] * 16),
            "1 review of 1 word": part.inputs(1),
            "1 review of 2 words": part.inputs(2),
            WITH_PADDING: [x[1:] for x in part.inputs(6, 2, 4, 3)],
        }

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        """Returns what the formula uses besides arguments."""
        return [Binding(self.names(part))]

    def names(self, part: Part, **more: Any) -> Call:
        """Returns a function from the arguments of an example to the names that expressions use:
        the arguments by name, and `more`.
        """
        return lambda *given: dict(zip(part.kind.arguments, given, strict=True)) | more

    def compare(self, part: Part) -> Comparison:
        net = part.net()
        examples = self.examples(part)
        results = [self.result(part, net, given) for given in examples.values()]
        bindings = self.bindings(part, net, results)
        is_of_words = [*part.kind.arguments] == ["x", "mask"] and "T" in part.kind.returned
        keep: Call = (lambda y, x, words: y[words]) if is_of_words else identity
        table = TABLES[self.name]
        return Comparison(part.name, part.change, table, examples, results, bindings, keep)

    def result(self, part: Part, net: Any, given: Any) -> Tensor:
        y: Tensor = part.call(net, *given)
        return y.detach()


class MaskedMeanKind(FormulaKind):
    def examples(self, part: Part) -> Names:
        x_BTD, numbers = normal(3, 4, WIDTH), torch.zeros(1, 3, WIDTH)
        x_BTD[0, 1], x_BTD[1, 0, 2], numbers[0, :, 0] = 0, 0, torch.tensor([2.0, 4.0, 30.0])
        text = "the words 2 and 4 and padding of 30 as the first numbers"
        return {
            text: (numbers, mask(2, size=3)),
            "3 reviews of 4, 2 and 3 words": (x_BTD, mask(4, 2, 3)),
        }


class DotProductKind(FormulaKind):
    returns_weights = True

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        return [Binding(partial(attention_names, None, 0))]


class PositionsKind(FormulaKind):
    """A function of numbers."""

    def rules(self) -> list[Rule]:
        return [Rule("reference", reference)]

    def examples(self, part: Part) -> Names:
        sizes = (1, 2), (2, 4), (5, 6), (30, 8)
        return {f"length {length} and width {width}": (length, width) for length, width in sizes}

    def result(self, part: Part, net: Any, given: Any) -> Tensor:
        y = part.call(net, *given)
        rules.require_shape(y, given, f"positional_encoding{given}", part)
        return y.detach()


class AccuracyKind(PositionsKind):
    """A function of a model and two loaders."""

    def examples(self, part: Part) -> Names:
        return accuracy_examples(part)

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        return [Binding(self.names(part, share=share, train=TRAIN, test=TEST))]

    def result(self, part: Part, net: Any, given: Any) -> Tensor:
        return torch.tensor([call_student(float, part.call(net, *given))])


class EncodingKind(FormulaKind):
    """A module that adds positions to vectors."""

    may_overwrite_first = True

    def rules(self) -> list[Rule]:
        return [*rules.FIRST, *RESULT_RULES[:2]]

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        names = lambda x: {"x": x, "length": x.shape[1], "width": x.shape[2]}  # noqa: E731
        return [Binding(names)]


# --- attention ------------------------------------------------------------------------------------


def attention_names(roles: Roles | None, heads: int, *given: Tensor) -> Names:
    """Returns the names of the formula of attention.

    roles: None, and heads: 0, for a function of the queries, keys and values of one head. given: x,
    or query, key and value; and the mask.
    """
    *sources, m = given
    sources = sources * 3 if len(sources) == 1 else sources
    projections: tuple[Call, ...] = roles.projections if roles else (identity,) * 3
    Q, K, V = (w(x) for w, x in zip(projections, sources, strict=True))

    def merge(y: Tensor, added: Tensor | None = None) -> Tensor:
        y = y.transpose(1, 2).flatten(2) if heads else y
        y = roles.output(y) if roles else y
        return y if added is None else y + added

    names: Names = {"query": sources[0], "m": m, "split": identity, "merge": merge}
    names |= {"Q": Q, "K": K, "V": V, "B": len(Q), "T": Q.shape[-2]}
    names["D"] = names["d"] = Q.shape[-1]
    if heads:
        names["m"], names["d"] = m[:, None, None], Q.shape[-1] // heads
        names["split"] = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return names


class AttentionKind(FormulaKind):
    """Self-attention with any number of heads."""

    heads: tuple[int, ...] = (1, 2, 4, 8)

    def numbers_of_heads(self, part: Part, roles: Roles) -> list[int]:
        q, _, v = (w.outputs for w in roles.projections)
        allowed = (HEADS,) if "heads" in part.asked else self.heads
        return [heads for heads in allowed if q % heads == v % heads == 0]

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        """Returns each order of the matrices, and the mistakes of using one twice, or none."""
        found: list[Binding] = []
        wrong: list[Binding] = []
        for matrices in readings(net):
            orders = list(role_orders(matrices))
            complete = [roles for roles in orders if not roles.rest]
            for roles in self.with_value(part, complete or orders, results):
                for heads in self.numbers_of_heads(part, roles):
                    is_usual = heads <= HEADS and len(complete) > 0
                    names = partial(attention_names, roles, heads)
                    found.append(Binding(names, is_usual=is_usual))
            if len(matrices) < MOST_MATRICES:
                wrong += [
                    Binding(partial(attention_names, roles, heads), finding, text)
                    for finding, text, roles in repeated(matrices)
                    for heads in self.numbers_of_heads(part, roles)
                    if heads <= HEADS
                ]
        return found + wrong

    def with_value(self, part: Part, orders: list[Roles], results: list[Tensor]) -> list[Roles]:
        """Returns the orders in which W_v and W_O give the result of one word; all if none does."""
        values = part.inputs(1)[-2]
        fitting = [
            roles
            for roles in orders
            if same(roles.output(roles.projections[2](values)), results[1])
        ]
        return fitting or orders


class MultiHeadKind(AttentionKind):
    heads: tuple[int, ...] = (HEADS,)
    returns_weights = True


class MultiHeadSelfKind(MultiHeadKind):
    also_called = ("SelfAttention", "MultiHeadAttention")


class CausalKind(MultiHeadSelfKind):
    heads = AttentionKind.heads


# --- layers ---------------------------------------------------------------------------------------


def attention_of(roles: Roles, heads: int, steps: dict[str, str], x: Tensor, m: Tensor) -> Tensor:
    """Returns the result of the formula, or of a mistake in it, with these matrices."""
    y: Tensor | None = last_step(steps, attention_names(roles, heads, x, m))
    if y is None:
        raise RuntimeError("The steps cannot be computed for these shapes.")
    return y


def attending(module: nn.Module) -> list[Call]:
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


class LayerKind(FormulaKind):
    """g(f(x)) or g(x + f(LN(x))). f is a module of the layer, or the layer computes it itself."""

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        children = list(net.modules())[1:]
        inner = [(child, attend) for child in children for attend in attending(child)]
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
            for matrices in readings(net)
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


MOST_MISTAKES_IN_LAYER = 700  # the number of mistakes of attention that are tried in a layer


def layer_names(attention: Call, x: Tensor, m: Tensor, norm: Call, g: Call) -> Names:
    return {"x": x, "mask": m, "attention": attention, "n": norm, "g": g}


def norms(modules: Iterable[nn.Module]) -> list[Call]:
    """Returns LayerNorm with the weights and biases of each module that has them; without any if
    none has.
    """
    found: list[Call] = []
    for module in modules:
        every = [p for p in module.parameters(recurse=False) if p.requires_grad]
        own = [p.detach() for p in every if p.shape == (WIDTH,)]
        has_matrices = any(p.ndim > 1 for p in every)
        is_without_weights = not every and "norm" in type(module).__name__.lower()
        if is_without_weights or len(own) == 2 or (own and not has_matrices):
            weight, bias = torch.ones(WIDTH), torch.zeros(WIDTH)
            if len(own) == 1:
                weight = own[0]
            elif own:
                weight, bias = own[:2]
            found.append(partial(F.layer_norm, normalized_shape=(WIDTH,), weight=weight, bias=bias))
    return found or [partial(F.layer_norm, normalized_shape=(WIDTH,))]


def linears_for_g(net: nn.Module, attentions: list[nn.Module]) -> list[Call]:
    """Returns the square matrices outside of the attention; a function to NaN if there is none."""
    both = [*stored(net, False, attentions), *stored(net, True, attentions)]
    found: list[Call] = [matrix for matrix in both if matrix.inputs == matrix.outputs == WIDTH]
    return found or [lambda x: x * float("nan")]


# --- scores ---------------------------------------------------------------------------------------


class AdditiveKind(FormulaKind):
    """A score, or attention with it, of Linears W and U and a vector, or Linear, w."""

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        found: list[Binding] = []
        size = part.sizes["E"]
        own = [p.detach() for p in net.parameters() if p.ndim == 1 and p.requires_grad]
        for is_transposed, own_biases in itertools.product((True, False), repeat=2):
            matrices = stored(net, is_transposed, own_biases=own_biases)
            to_number = [lambda x, v=v: v(x)[..., 0] for v in matrices if v.outputs == 1]
            for W, U in itertools.permutations(matrices, 2):
                if (W.inputs, U.inputs) == (size, part.sizes["D"]) and W.outputs == U.outputs:
                    vectors = [partial(torch.matmul, other=p) for p in own if len(p) == W.outputs]
                    for w in (*to_number, *vectors):
                        found.append(Binding(self.names(part, W=W, U=U, w=w)))
        return found


class BilinearKind(FormulaKind):
    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        found: list[Binding] = []
        size = part.sizes["E"]
        biases = [p.detach() for p in net.parameters() if p.numel() == 1] or [torch.zeros(1)]
        for matrix in [*stored(net, True), *stored(net, False)]:
            if (matrix.inputs, matrix.outputs) == (size, WIDTH):
                found.append(Binding(self.names(part, W=matrix, U=identity, b=biases[0])))
            if (matrix.inputs, matrix.outputs) == (WIDTH, size):
                found.append(Binding(self.names(part, W=identity, U=matrix, b=biases[0])))
        return found


class ContextKind(FormulaKind):
    """The context of a decoder: see context.py."""

    returns_weights = True

    def rules(self) -> list[Rule]:
        return [*rules.FIRST, rules.REGISTERED, *RESULT_RULES]

    def examples(self, part: Part) -> Names:
        given = part.inputs(4, 2, 3)
        first = [x[:1] for x in given]
        return {"1 review of 4 words": first, "3 reviews of 4, 2 and 3 words": given}

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        return bindings_of_context(part, net, self.names)


class ClassifierKind(Kind):
    """The model of --stub, which is given vectors, positions and cls."""

    is_model = True
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"positions": "sinusoidal"},
        {"cls": True},
        {"positions": "sinusoidal", "cls": True},
    )

    def rules(self) -> list[Rule]:
        return model.CLASSIFIER


class ModelKind(ClassifierKind):
    """A model under any name."""

    also_called = ("Classifier", "model")
    variants: tuple[dict[str, Any], ...] = ({},)

    def rules(self) -> list[Rule]:
        return model.MODEL


KIND_CLASSES: dict[str, type[Kind]] = {  # a part comes before those that use it
    "masked_softmax": FormulaKind,
    "scaled_dot_product_attention": DotProductKind,
    "MultiHeadAttention": MultiHeadKind,
    "MultiHeadSelfAttention": MultiHeadSelfKind,
    "CausalSelfAttention": CausalKind,
    "SelfAttention": AttentionKind,
    "masked_mean": MaskedMeanKind,
    "positional_encoding": PositionsKind,
    "PlainLayer": LayerKind,
    "ResidualLayer": LayerKind,
    "Classifier": ClassifierKind,
    "test_accuracy": AccuracyKind,
    "AdditiveScore": AdditiveKind,
    "BilinearScore": BilinearKind,
    "DecoderAttention": ContextKind,
    "AdditiveAttention": AdditiveKind,
    "PositionalEncoding": EncodingKind,
    "Model": ModelKind,
    "Decoder": decoder.DecoderKind,
    "Seq2Seq": decoder.Seq2SeqKind,
}
KINDS: dict[str, Kind] = {name: make(name) for name, make in KIND_CLASSES.items()}
