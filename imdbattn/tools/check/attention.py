"""Attention of any number of heads, scores, and the context of a decoder's state.

Shape suffixes: B reviews, T positions, D width.
"""

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor

import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.findings import Mistake, mistake
from imdbattn.tools.check.formulas import Binding, Call, Names, identity
from imdbattn.tools.check.kinds import RESULT_RULES, FormulaKind
from imdbattn.tools.check.numbers import mask, same
from imdbattn.tools.check.part import HEADS, WIDTH, Part, Rule
from imdbattn.tools.check.weights import (
    MOST_MATRICES,
    Roles,
    matrix_lists,
    repeated,
    role_orders,
    stored,
)


def attention_names(roles: Roles | None, heads: int, *arguments: Tensor) -> Names:
    """Returns the names of the formula of attention.

    roles: None, and heads: 0, for a function of the queries, keys and values of one head.
    arguments: x, or query, key and value; and the mask.
    """
    *sources, m = arguments
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
        allowed = (HEADS,) if "heads" in part.make_expressions else self.heads
        return [heads for heads in allowed if q % heads == v % heads == 0]

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        """Returns each order of the matrices, and the mistakes of using one twice, or none."""
        found: list[Binding] = []
        wrong: list[Binding] = []
        for matrices in matrix_lists(net):
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


class DotProductKind(FormulaKind):
    returns_weights = True

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        return [Binding(partial(attention_names, None, 0))]


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
                        found.append(Binding(self.names(W=W, U=U, w=w)))
        return found


class BilinearKind(FormulaKind):
    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        found: list[Binding] = []
        size = part.sizes["E"]
        biases = [p.detach() for p in net.parameters() if p.numel() == 1] or [torch.zeros(1)]
        for matrix in [*stored(net, True), *stored(net, False)]:
            if (matrix.inputs, matrix.outputs) == (size, WIDTH):
                found.append(Binding(self.names(W=matrix, U=identity, b=biases[0])))
            if (matrix.inputs, matrix.outputs) == (WIDTH, size):
                found.append(Binding(self.names(W=identity, U=matrix, b=biases[0])))
        return found


# --- the context of a decoder's state -------------------------------------------------------------

REVIEWS = [slice(b, b + 1) for b in range(3)]


class ContextKind(FormulaKind):
    """The sum of the encoder's outputs, weighted by a softmax of any scores: these are found from
    contexts of two words.
    """

    returns_weights = True

    def rules(self) -> list[Rule]:
        return [*rules.FIRST, rules.REGISTERED, *RESULT_RULES]

    def examples(self, part: Part) -> Names:
        several = part.inputs(4, 2, 3)
        first = [x[:1] for x in several]
        return {"1 review of 4 words": first, "3 reviews of 4, 2 and 3 words": several}

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        """Raises Mistake if the state has no effect, or if the weights are not a softmax."""
        state_BD, outputs_BTD, _ = part.inputs(4, 2, 3)

        def context(rows: slice, positions: list[int], m: Tensor) -> Tensor:
            y: Tensor = part.call(net, state_BD[rows], outputs_BTD[rows][:, positions], m)
            return y.detach()

        s_BT = scores_of(part, context, outputs_BTD)
        y, other = (part.call(net, state_BD[b], outputs_BTD[:1], mask(4)) for b in REVIEWS[:2])
        if same(y, other, 1e-5):
            raise mistake("state-not-used", y, fix=part.change("state-not-used"))
        return [Binding(self.names(scores=s_BT))]


def scores_of(part: Part, context: Call, values_BTD: Tensor) -> Tensor:
    """Returns the scores (B, T) whose softmax is the weights, each minus that of the first word.

    context(reviews, positions, mask): (B, D). The weights a of the first word and another one are
    those whose sum of the values is closest to the context. Raises Mistake if they are not a
    softmax.
    """

    def wrong(finding: str, *numbers: Tensor) -> Mistake:
        return mistake(finding, *numbers, fix=part.change(finding))

    scores = [torch.zeros(3)]
    for other in range(1, 4):
        v_B2D = values_BTD[:, [0, other]]
        y_BD = torch.cat([context(b, [0, other], mask(2)) for b in REVIEWS])
        a_B2 = torch.linalg.lstsq(v_B2D.mT, y_BD[..., None]).solution[..., 0]
        sum_BD = (a_B2[..., None] * v_B2D).sum(1)
        if same(a_B2, torch.full((3, 2), 0.5)):
            inverted_BD = torch.cat([context(b, [0, other], ~mask(2)) for b in REVIEWS])
            if not same(inverted_BD, y_BD):
                raise wrong("mask-inverted", y_BD, inverted_BD)
            raise wrong("no-attention", a_B2[0])
        if not same(sum_BD, y_BD, 2e-3):
            raise wrong("not-a-sum-of-outputs", y_BD, sum_BD)
        if same(a_B2, torch.ones(3, 2)):
            together_BD = context(slice(0, 3), [0, other], mask(2, 2, 2))
            is_of_one = same(together_BD, y_BD)
            raise wrong("softmax-over-one" if is_of_one else "softmax-over-batch", a_B2[0])
        if not same(a_B2.sum(1), torch.ones(3), 2e-3) or bool((a_B2 <= -1e-6).any()):
            raise wrong("weights-do-not-sum-to-1", a_B2, a_B2.softmax(1))
        ratio_B = (a_B2[:, 1] / a_B2[:, 0]).clamp(min=1e-12)
        scores.append(ratio_B.log())
    return torch.stack(scores, 1)
