"""The scores of a decoder's attention, found from contexts of two words.

Shape suffixes: B reviews, T positions, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from imdbattn.tools.check.formulas import Binding, Call
from imdbattn.tools.check.numbers import mask, mistake, same
from imdbattn.tools.check.part import Part

REVIEWS = [slice(b, b + 1) for b in range(3)]


def scores_of(part: Part, context: Call, values_BTD: Tensor) -> Tensor:
    """Returns the scores (B, T) whose softmax is the weights, each minus that of the first word.

    context(reviews, places, mask): (B, D). The weights a of the first word and another one are
    those whose sum of the values is closest to the context. Raises Mistake if they are not a
    softmax.
    """
    scores = [torch.zeros(3)]

    def require(condition: bool, finding: str, *numbers: Tensor) -> None:
        if not condition:
            raise mistake(finding, *numbers, fix=part.change(finding))

    for other in range(1, 4):
        v_B2D = values_BTD[:, [0, other]]
        y_BD = torch.cat([context(b, [0, other], mask(2)) for b in REVIEWS])
        a_B2 = torch.linalg.lstsq(v_B2D.mT, y_BD[..., None]).solution[..., 0]
        sum_BD = (a_B2[..., None] * v_B2D).sum(1)
        inverted_BD = torch.cat([context(b, [0, other], ~mask(2)) for b in REVIEWS])
        is_equal = same(a_B2, torch.full((3, 2), 0.5))
        is_inverted = not same(inverted_BD, y_BD)
        require(not (is_equal and is_inverted), "mask-inverted", y_BD, inverted_BD)
        require(not is_equal, "no-attention", a_B2[0])
        require(same(sum_BD, y_BD, 2e-3), "not-a-sum-of-outputs", y_BD, sum_BD)
        if same(a_B2, torch.ones(3, 2)):
            together_BD = context(slice(0, 3), [0, other], mask(2, 2, 2))
            is_of_one = same(together_BD, y_BD)
            require(False, "softmax-over-one" if is_of_one else "softmax-over-batch", a_B2[0])
        sums_to_1 = same(a_B2.sum(1), torch.ones(3), 2e-3) and bool((a_B2 > -1e-6).all())
        require(sums_to_1, "weights-do-not-sum-to-1", a_B2, a_B2.softmax(1))
        ratio_B = (a_B2[:, 1] / a_B2[:, 0]).clamp(min=1e-12)
        scores.append(ratio_B.log())
    return torch.stack(scores, 1)


def bindings_of_context(part: Part, net: Any, names: Callable[..., Call]) -> list[Binding]:
    """Returns the formula's names, and the scores. Raises Mistake if the state has no effect."""
    state_BD, outputs_BTD, _ = part.inputs(4, 2, 3)

    def context(rows: slice, places: list[int], m: Tensor) -> Tensor:
        y: Tensor = part.call(net, state_BD[rows], outputs_BTD[rows][:, places], m)
        return y.detach()

    s_BT = scores_of(part, context, outputs_BTD)
    y, other = (part.call(net, state_BD[b], outputs_BTD[:1], mask(4)) for b in REVIEWS[:2])
    if same(y, other, 1e-5):
        raise mistake("state-not-used", y, fix=part.change("state-not-used"))
    return [Binding(names(part, scores=s_BT))]
