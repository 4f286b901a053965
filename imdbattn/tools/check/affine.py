"""The tensors that a student's module computes, and those that are affine functions of each word.

Queries, keys and values are found among them, however their weights are stored. Shape suffixes:
N samples, M columns, D width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.tools.check.numbers import same
from imdbattn.tools.check.part import Part, inputs, record

SAMPLES = 40  # reviews, to find affine functions of words; more than the columns of all arguments

EXACT = 1e-5  # a smaller difference is none


def samples(part: Part, words: int) -> list[Tensor]:
    """The arguments for reviews of so many words."""
    calls = [inputs(part, words, seed=seed) for seed in range(SAMPLES)]
    return [torch.cat(x) for x in zip(*calls, strict=True)]


def computed(part: Part, net: nn.Module, given: list[Tensor]) -> list[Tensor]:
    """What the module computes of each review, (N, M), and the arguments first; no multiple of an
    earlier one.
    """
    if part.adapter is None:
        return distinct(part, net, given)
    shapes = tuple(x.shape for x in given)
    key = id(part.adapter.way), torch.get_default_dtype(), shapes
    if key not in part.adapter.computed:
        part.adapter.computed[key] = distinct(part, net, given)
    return part.adapter.computed[key]


@torch.enable_grad()  # without gradients, torch's own attention computes in one step
def distinct(part: Part, net: nn.Module, given: list[Tensor]) -> list[Tensor]:
    """As computed, without the memory of an earlier call."""
    found: list[Tensor] = []
    for step in [*given, *(in_one_batch(part, net, given) or one_by_one(part, net, given))]:
        if step.is_floating_point() and step[0].numel() > 1:
            x_NM = step.flatten(1).to(torch.get_default_dtype())
            multiples = (
                y * ((x_NM * y).sum() / y.square().sum()) for y in found if y.shape == x_NM.shape
            )
            if not same(x_NM, x_NM[:1].expand_as(x_NM)) and not any(
                same(y, x_NM) for y in multiples
            ):
                found.append(x_NM)
    return found


def one_by_one(part: Part, net: nn.Module, given: list[Tensor]) -> list[Tensor]:
    """The tensors that are computed of each review alone, (N, ...) of those of equal shapes."""
    runs = [record(part, net, *rows_of(given, row)) for row in range(SAMPLES)]
    steps = zip(*runs, strict=False)
    return [torch.stack(step) for step in steps if have_one_shape(step)]


def rows_of(given: list[Tensor], row: int) -> list[Tensor]:
    """The arguments for one of the reviews."""
    return [x[row : row + 1] for x in given]


def have_one_shape(tensors: Sequence[Tensor]) -> bool:
    return all(x.shape == tensors[0].shape for x in tensors)


def in_one_batch(part: Part, net: nn.Module, given: list[Tensor]) -> list[Tensor]:
    """As one_by_one, from one call for all reviews; none if it gives others for some of them."""
    rows = (0, SAMPLES // 2, SAMPLES - 1)
    runs = [record(part, net, *rows_of(given, row)) for row in rows]
    together = record(part, net, *given)
    if any(len(run) != len(together) for run in runs):
        return []
    steps: list[Tensor] = []
    for x, *alone in zip(together, *runs, strict=True):
        found = by_review(x, rows, alone)
        if found is None:
            return []
        steps.append(found)
    return steps


def by_review(x: Tensor, rows: Sequence[int], alone: list[Tensor]) -> Tensor | None:
    """A tensor of all reviews as (N, ...), if it has in these rows those of the reviews alone.

    The axis of the reviews is looked for: (T, N, D) and (N * H, T, T) are found, too.
    """
    shape = alone[0].shape
    if any(one.shape != shape for one in alone) or x.ndim != len(shape):
        return None
    if x.shape == shape:  # the same for all reviews
        return x.expand(SAMPLES, *shape) if all(same(one, x, EXACT) for one in alone) else None
    for axis, size in enumerate(shape):
        if x.numel() == SAMPLES * alone[0].numel() and x.shape[axis] == SAMPLES * size:
            found = x.unflatten(axis, (SAMPLES, size)).movedim(axis, 0)
            if all(same(one, found[row], EXACT) for row, one in zip(rows, alone, strict=True)):
                return found
    return None


def fit(x_ND: Tensor, y_NM: Tensor) -> Tensor:
    """(M, D + 1), weight and bias of the affine function of x that is closest to y."""
    if not bool(x_ND.isfinite().all() and y_NM.isfinite().all()):
        return torch.full((y_NM.shape[1], x_ND.shape[1] + 1), float("nan"))
    return solved(x_ND, y_NM)


def solved(x_ND: Tensor, y_NM: Tensor) -> Tensor:
    """As fit, for finite numbers."""
    x_NE = F.pad(x_ND, (0, 1), value=1)
    return torch.linalg.lstsq(x_NE, y_NM, rcond=1e-5, driver="gelsy").solution.mT


def fits(x_ND: Tensor, targets: list[Tensor]) -> list[Tensor]:
    """As fit, for each target (N, M), where both are finite."""
    y_NM = torch.cat(targets, 1) if len(targets) > 1 else targets[0]
    if bool(x_ND.isfinite().all()) and bool(y_NM.isfinite().all()):
        return [*solved(x_ND, y_NM).split([y.shape[1] for y in targets])]
    is_finite = x_ND.isfinite().all(1)
    rows = [is_finite & y.isfinite().all(1) for y in targets]
    return [fit(x_ND[row], y[row]) for y, row in zip(targets, rows, strict=True)]


def affine_maps(x_ND: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Weight and bias of the tensors that are affine functions of x."""
    return [matrix for y_NM in tensors if same(apply(matrix := fit(x_ND, y_NM), x_ND), y_NM)]


def each_number(x_ND: Tensor, y_ND: Tensor) -> Tensor | None:
    """(2, D), weight and bias, if each number of y is an affine function of the same number of
    x.
    """
    gain_D = ((x_ND - x_ND.mean(0)) * y_ND).mean(0) / x_ND.var(0, correction=0)
    bias_D = (y_ND - gain_D * x_ND).mean(0)
    return torch.stack([gain_D, bias_D]) if same(gain_D * x_ND + bias_D, y_ND) else None


def apply(matrix: Tensor, x: Tensor) -> Tensor:
    return x @ matrix[:, :-1].mT + matrix[:, -1]


class Fitted:
    """The Linear with which the first example has the right result: it is found when it is called
    for that one.

    targets: what its result may be: the first one, as closely as possible, or one of the others
    that are an affine function of what it is given. number: which of these, of `count`.
    alone: whether it may be the identity. kept: it is not found again.
    """

    def __init__(self, *targets: Tensor, alone: bool) -> None:
        self.targets, self.alone, self.kept = targets, alone, False
        self.number, self.count = 0, 1
        self.matrix: Tensor | None = None

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """added: what is added to the result later."""
        if self.matrix is None or (len(x) == len(self.targets[0]) and not self.kept):
            self.matrix = self.found(x.flatten(0, -2), added)
        return apply(self.matrix, x)

    def found(self, x_ND: Tensor, added: Tensor | None) -> Tensor:
        right = [y.flatten(0, -2) for y in self.targets]
        if added is not None and added.shape == self.targets[0].shape:
            right = [y - added.flatten(0, -2) for y in right]
        matrices = fits(x_ND, right)
        pairs = zip(matrices[1:], right[1:], strict=True)
        given = [matrices[0], *(w for w, y in pairs if same(apply(w, x_ND), y))]
        self.count = len(given)
        matrix = given[self.number]
        if not self.alone and same(matrix, torch.eye(*matrix.shape)):
            matrix = matrix * float("nan")
        return matrix


def numbers_of(net: nn.Module, count: int) -> list[Tensor]:
    return [p.detach().flatten() for p in net.parameters() if p.numel() == count]
