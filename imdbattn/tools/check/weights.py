"""The matrices that a student's module stores, and the roles that they may have in a formula.

Shape suffixes: M outputs, D inputs of a matrix.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from imdbattn.tools.check.formulas import identity
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


def joined(matrices: Sequence[Linear]) -> Linear:
    """Returns one matrix whose results are theirs side by side."""
    weights, biases = zip(*((matrix.weight_MD, matrix.bias_M) for matrix in matrices), strict=True)
    return Linear(torch.cat(weights), torch.cat(biases))


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
            fitting = [bias for bias in biases if len(bias) == len(weight_MD)]
            bias_M = fitting[0] if fitting else torch.zeros(len(weight_MD))
            biases = [bias for bias in biases if bias is not bias_M]
            found.append(Linear(weight_MD, bias_M.to(weight_MD)))
    return found


def matrix_lists(net: nn.Module) -> Iterator[list[Linear]]:
    """Yields lists of a module's matrices: with a joint one cut, or with those of heads joined."""
    seen: list[object] = []
    by_role = partial(heads_in_turn, by_role=True)
    cuts: tuple[Callable[..., list[Linear]], ...] = (thirds, heads_in_turn, by_role)
    for is_transposed, cut in itertools.product((True, False), cuts):
        matrices = cut(stored(net, is_transposed))
        numbers = [(matrix.weight_MD.tolist(), matrix.bias_M.tolist()) for matrix in matrices]
        if numbers not in seen:
            seen.append(numbers)
            yield matrices


def thirds(matrices: list[Linear]) -> list[Linear]:
    """Cuts a joint matrix of Q, K and V into three."""
    pieces: list[Linear] = []
    for matrix in matrices:
        size = matrix.outputs
        count = 3 if matrix.inputs == WIDTH < size and size % 3 == 0 else 1
        pieces += map(Linear, matrix.weight_MD.chunk(count), matrix.bias_M.chunk(count))
    return pieces


def heads_in_turn(matrices: list[Linear], by_role: bool = False) -> list[Linear]:
    """Joins the matrices of heads, which are the three of each head in turn; by_role: those of all
    heads to queries, then those to keys, then those to values.
    """
    of_heads = [matrix for matrix in matrices if matrix.inputs == WIDTH == HEADS * matrix.outputs]
    count, rest = divmod(len(of_heads), 3)
    if count < 2 or rest:
        return matrices
    starts, step = (range(0, 3 * count, count), 1) if by_role else (range(3), 3)
    three = [joined(of_heads[start::step][:count]) for start in starts]
    return three + [matrix for matrix in matrices if matrix not in of_heads]


@dataclass(frozen=True)
class Roles:
    """Which matrices are W_q, W_k, W_v and W_O; the others are the rest."""

    projections: tuple[Linear, Linear, Linear]
    output: Callable[[Tensor], Tensor]
    rest: list[Linear]


def role_orders(matrices: list[Linear], extra: Sequence[Linear] = ()) -> Iterator[Roles]:
    """Yields the orders of three matrices whose shapes fit; with extra ones, also those in which a
    matrix is used several times.
    """
    if len(matrices) > MOST_MATRICES:
        return
    every = [*matrices, *extra]
    triples = itertools.product(every, repeat=3) if extra else itertools.permutations(matrices, 3)
    for q, k, v in triples:
        if not q.inputs == k.inputs == v.inputs == WIDTH or q.outputs != k.outputs:
            continue
        rest = [matrix for matrix in matrices if matrix not in (q, k, v)]
        for output in rest:
            if output.inputs == v.outputs and output.outputs == WIDTH:
                yield Roles((q, k, v), output, [other for other in rest if other is not output])
        if v.outputs == WIDTH:
            yield Roles((q, k, v), identity, rest)


def repeated(matrices: list[Linear]) -> Iterator[tuple[str, str, Roles]]:
    """Yields the mistakes of using one matrix for several projections, or none for a projection."""
    none = Linear(torch.eye(WIDTH), torch.zeros(WIDTH))
    for roles in role_orders(matrices, [none]):
        named = zip(("W_q", "W_k", "W_v"), roles.projections, strict=True)
        missing = [name for name, matrix in named if matrix is none]
        if missing:
            yield "no-projection", f"There is no {' and no '.join(missing)}.", roles
        elif len(set(roles.projections)) < 3:
            text = "One Linear is used for several of W_q, W_k, W_v and W_O."
            yield "shared-projections", text, roles
