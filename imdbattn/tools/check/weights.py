"""The matrices that a student's module stores, and the roles that they may have in a formula.

Shape suffixes: M outputs, D inputs of a matrix.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from imdbattn.tools.check.part import HEADS, WIDTH

MOST_MATRICES = 5  # matrices of one module whose orders are all tried


@dataclass(frozen=True, eq=False)
class Linear:
    """A function of vectors that a module stores as a matrix, with or without a bias."""

    weight_MD: Tensor
    bias_M: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight_MD.mT + self.bias_M

    @property
    def outputs(self) -> int:
        return self.weight_MD.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight_MD.shape[1]

    def rows(self, index_M: Tensor) -> "Linear":
        return Linear(self.weight_MD[index_M], self.bias_M[index_M])


def joined(parts: Sequence[Linear]) -> Linear:
    """Their results side by side."""
    weights = torch.cat([one.weight_MD for one in parts])
    return Linear(weights, torch.cat([one.bias_M for one in parts]))


def stored(
    net: nn.Module, is_transposed: bool, left_out: Sequence[nn.Module] = (), own_biases: bool = True
) -> list[Linear]:
    """Returns the matrices of a module in the order in which they are registered.

    is_transposed: whether the parameters of the student's own classes are multiplied from the
    right, as in x @ W. own_biases: whether their vectors are biases. left_out: modules whose
    matrices do not count.
    """
    found: list[Linear] = []
    omitted = {id(child) for module in left_out for child in module.modules()}
    for module in net.modules():
        own = [] if id(module) in omitted else list(module.parameters(recurse=False))
        biases = [p.detach() for p in own if p.ndim == 1 and p.requires_grad]
        matrices = [p.detach() for p in own if p.ndim == 2]
        lists = nn.ParameterList | nn.ParameterDict
        is_own = not type(module).__module__.startswith("torch.") or isinstance(module, lists)
        if len(biases) > len(matrices) or (is_own and not own_biases):  # they include LayerNorm's
            biases = []
        for matrix in matrices:
            weight_MD = matrix.mT if is_transposed and is_own else matrix
            fitting = [one for one in biases if len(one) == len(weight_MD)]
            bias_M = fitting[0] if fitting else torch.zeros(len(weight_MD))
            biases = [one for one in biases if one is not bias_M]
            found.append(Linear(weight_MD, bias_M.to(weight_MD)))
    return found


def readings(net: nn.Module) -> Iterator[list[Linear]]:
    """Yields lists of a module's matrices: those of all projections cut, those of heads joined."""
    seen: list[object] = []
    by_role = partial(heads_in_turn, by_role=True)
    cuts: tuple[Callable[..., list[Linear]], ...] = (thirds, heads_in_turn, by_role)
    for is_transposed, cut in itertools.product((True, False), cuts):
        pieces = cut(stored(net, is_transposed))
        numbers = [(one.weight_MD.tolist(), one.bias_M.tolist()) for one in pieces]
        if numbers not in seen:
            seen.append(numbers)
            yield pieces


def thirds(plain: list[Linear]) -> list[Linear]:
    """Cuts a joint matrix of Q, K and V into three."""
    pieces: list[Linear] = []
    for one in plain:
        count = 3 if one.inputs == WIDTH < one.outputs and one.outputs % 3 == 0 else 1
        pieces += [one.rows(rows) for rows in torch.arange(one.outputs).chunk(count)]
    return pieces


def heads_in_turn(plain: list[Linear], by_role: bool = False) -> list[Linear]:
    """Joins the matrices of heads, which are the three of each head in turn; by_role: those of all
    heads to queries, then those to keys, then those to values.
    """
    of_heads = [one for one in plain if one.inputs == WIDTH == HEADS * one.outputs]
    count, rest = divmod(len(of_heads), 3)
    if count < 2 or rest:
        return plain
    starts, step = (range(0, 3 * count, count), 1) if by_role else (range(3), 3)
    three = [joined(of_heads[start::step][:count]) for start in starts]
    return three + [one for one in plain if one not in of_heads]


@dataclass(frozen=True)
class Roles:
    """Which matrices are W_q, W_k, W_v and W_O; the others are the rest."""

    three: tuple[Linear, Linear, Linear]
    output: Linear | None
    rest: list[Linear]


def roles(pieces: list[Linear], extra: Sequence[Linear] = ()) -> Iterator[Roles]:
    """Yields the orders of three of the matrices that have fitting shapes; with extra ones, or if
    one of the matrices is used several times, those in which it is.
    """
    if len(pieces) > MOST_MATRICES:
        return
    every = [*pieces, *extra]
    triples = itertools.product(every, repeat=3) if extra else itertools.permutations(pieces, 3)
    for three in triples:
        q, k, v = three
        if {one.inputs for one in three} != {WIDTH} or q.outputs != k.outputs:
            continue
        used = {id(one) for one in three}
        rest = [one for one in pieces if id(one) not in used]
        for output in rest:
            if output.inputs == v.outputs and output.outputs == WIDTH:
                others = [one for one in rest if one is not output]
                yield Roles((q, k, v), output, others)
        if v.outputs == WIDTH:
            yield Roles((q, k, v), None, rest)


def repeated(pieces: list[Linear]) -> Iterator[tuple[str, str, Roles]]:
    """Yields the mistakes of using a matrix for several projections, or none for one of them."""
    identity = Linear(torch.eye(WIDTH), torch.zeros(WIDTH))
    for one in roles(pieces, [identity]):
        named = zip(("W_q", "W_k", "W_v"), one.three, strict=True)
        missing = [name for name, w in named if w is identity]
        if missing:
            yield "no-projection", f"There is no {' and no '.join(missing)}.", one
        elif len({id(w) for w in one.three}) < 3:
            text = "One Linear is used for several of W_q, W_k, W_v and W_O."
            yield "shared-projections", text, one
