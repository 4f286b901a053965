"""The reference of DecoderAttention, whose scores are found from reviews of two words.

Shape suffixes: B reviews, T positions, D width.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from imdbattn.tools.check.formulas import RIGHT, Call, Choice, Names
from imdbattn.tools.check.numbers import Mistake, NotChecked, mask, mistake, same
from imdbattn.tools.check.part import Part, call, inputs


def scores_of(part: Part, context: Call, values_BTD: Tensor) -> Tensor:
    """The scores (B, T) of which the weights are the softmax, each minus that of the first word.

    context(reviews, places, mask): (B, D). For two words only one pair of weights gives the context
    as a sum of the values. Raises Mistake if there is none.
    """
    scores = [torch.zeros(3)]
    reviews = [slice(b, b + 1) for b in range(3)]

    def wrong(finding: str, *numbers: Tensor) -> Mistake:
        return mistake(finding, *numbers, fix=part.change(finding))

    for other in range(1, 4):
        v_B2D = values_BTD[:, [0, other]]
        y_BD, inverted_BD = (
            torch.cat([context(b, [0, other], m) for b in reviews]) for m in (mask(2), ~mask(2))
        )
        a_B2 = torch.linalg.lstsq(v_B2D.mT, y_BD[..., None]).solution[..., 0]
        if same(a_B2, torch.full((3, 2), 0.5)):
            if same(inverted_BD, y_BD):
                raise wrong("no-attention", a_B2[0])
            raise wrong("mask-inverted", y_BD, inverted_BD)
        if not same(fitted := (a_B2[..., None] * v_B2D).sum(1), y_BD, 2e-3):
            raise wrong("not-a-sum-of-outputs", y_BD, fitted)
        if same(a_B2, torch.ones(3, 2)):
            together_BD = context(slice(0, 3), [0, other], mask(2, 2, 2))
            over = "softmax-over-one" if same(together_BD, y_BD) else "softmax-over-batch"
            raise wrong(over, a_B2[0])
        if not same(a_B2.sum(1), torch.ones(3), 2e-3) or bool((a_B2 < -1e-6).any()):
            raise wrong("weights-do-not-sum-to-1", a_B2, a_B2.softmax(1))
        if same(a_B2.max(1).values, torch.ones(3), 1e-9):
            raise wrong("one-word-only", a_B2[0])
        ratio_B = (a_B2[:, 1] / a_B2[:, 0]).clamp(min=1e-12)
        if 0 < int((ratio_B < 1e-9).sum()) < len(ratio_B):
            raise NotChecked("The scores were not checked: some weights are too close to 0.")
        scores.append(ratio_B.log())
    return torch.stack(scores, 1)


def decoder_examples(part: Part) -> Names:
    given = inputs(part, 4, 2, 3)
    return {"1 review of 4 words": [x[:1] for x in given], "3 reviews of 4, 2 and 3 words": given}


def decoder_choices(part: Part, net: Any, results: list[Tensor]) -> Iterator[Choice]:
    state_BD, outputs_BTD, _ = inputs(part, 4, 2, 3)
    of_state = partial(call, part, net)
    s_BT = scores_of(
        part, lambda rows, t, m: of_state(state_BD[rows], outputs_BTD[rows][:, t], m), outputs_BTD
    )
    y, other = (of_state(state_BD[row : row + 1], outputs_BTD[:1], mask(4)) for row in (0, 1))
    if same(y, other, 1e-5):
        raise mistake("state-not-used", y, fix=part.change("state-not-used"))
    yield RIGHT, "", {"scores": s_BT}
