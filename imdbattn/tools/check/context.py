"""The reference of DecoderAttention, whose scores are found from reviews of two words.

Shape suffixes: B reviews, T positions, D width.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from imdbattn.tools.check.formulas import RIGHT, Call, Choice, Names
from imdbattn.tools.check.numbers import Mistake, NotChecked, mask, mistake, same
from imdbattn.tools.check.part import Part, call, inputs, net_of


def scores_of(
    part: Part, context: Call, values_BTD: Tensor, louder: Callable[[float], Call] | None = None
) -> Tensor:
    """The scores (B, T) of which the weights are the softmax, each minus that of the first word.

    context(reviews, places, mask): (B, D). For two words only one pair of weights gives the context
    as a sum of the values. Raises Mistake if there is none.
    louder: context for so many times the state.
    """
    scores = [torch.zeros(3)]
    reviews = [slice(b, b + 1) for b in range(3)]

    def wrong(finding: str, *numbers: Tensor) -> Mistake:
        return mistake(finding, *numbers, fix=part.change(finding))

    for other in range(1, 4):
        v_B2D = values_BTD[:, [0, other]]
        y_BD = torch.cat([context(b, [0, other], mask(2)) for b in reviews])
        inverted_BD = torch.cat([context(b, [0, other], ~mask(2)) for b in reviews])
        a_B2 = torch.linalg.lstsq(v_B2D.mT, y_BD[..., None]).solution[..., 0]
        if same(a_B2, torch.full((3, 2), 0.5)):
            if same(inverted_BD, y_BD):
                raise wrong("no-attention", a_B2[0])
            raise wrong("mask-inverted", y_BD, inverted_BD)
        if not same(fitted := (a_B2[..., None] * v_B2D).sum(1), y_BD, 2e-3):
            share_BD = (y_BD - v_B2D[:, 0]) / (v_B2D[:, 1] - v_B2D[:, 0])
            if bool(((share_BD > 0) & (share_BD < 1)).all()):
                raise wrong("weight-for-each-number", share_BD[0])
            for matrix in matrices(part):
                projected = torch.linalg.lstsq((v_B2D @ matrix).mT, y_BD[..., None]).solution
                if same((projected * (v_B2D @ matrix)).sum(1), y_BD, 2e-3):
                    raise wrong("outputs-projected", y_BD, fitted)
            raise wrong("not-a-sum-of-outputs", y_BD, fitted)
        if same(a_B2, torch.ones(3, 2)):
            together_BD = context(slice(0, 3), [0, other], mask(2, 2, 2))
            over = "softmax-over-one" if same(together_BD, y_BD) else "softmax-over-batch"
            raise wrong(over, a_B2[0])
        if same(a_B2.exp().sum(1), torch.ones(3)):
            raise wrong("log-softmax", a_B2[0])
        if not same(a_B2.sum(1), torch.ones(3), 2e-3) or bool((a_B2 < -1e-6).any()):
            if louder is not None:
                weights = []
                for factor in (1.0, 2.0, 3.0):
                    rows = [louder(factor)(b, [0, other], mask(2)) for b in reviews]
                    solved = torch.linalg.lstsq(v_B2D.mT, torch.cat(rows)[..., None]).solution
                    weights.append(solved[..., 0])
                require_softmax(part, weights)
            raise wrong("weights-do-not-sum-to-1", a_B2, a_B2.softmax(1))
        if same(a_B2.max(1).values, torch.ones(3), 1e-9):
            raise wrong("one-word-only", a_B2[0])
        ratio_B = (a_B2[:, 1] / a_B2[:, 0]).clamp(min=1e-12)
        if 0 < int((ratio_B < 1e-9).sum()) < len(ratio_B):
            raise NotChecked("The scores were not checked: some weights are too close to 0.")
        scores.append(ratio_B.log())
    return torch.stack(scores, 1)


def matrices(part: Part) -> list[Tensor]:
    """The square parameters of the module, and their transposes."""
    net = net_of(part)
    found = [p.detach() for p in net.parameters()] if isinstance(net, nn.Module) else []
    size = part.sizes["D"]
    square = [matrix for matrix in found if matrix.shape == (size, size)]
    return [*square, *(matrix.mT for matrix in square)]


# What is linear in the scores, and so in the state, and what the weights are then.
FUNCTIONS: list[tuple[Call, str, str]] = [
    (lambda a: a, "no-softmax", "The weights are the scores themselves: there is no softmax."),
    (torch.log, "no-softmax", "The weights are exp of the scores, not divided by its sum."),
    (torch.logit, "sigmoid-not-softmax", "The weights are the sigmoid of the scores."),
]


def require_softmax(part: Part, weights: list[Tensor]) -> None:
    """Raises Mistake if the weights are another known function of the scores.

    weights: (B, 2), for the state, and for twice and three times the state.
    """
    one, two, three = weights
    example = str(mistake("weights-do-not-sum-to-1", one, one.softmax(1), fix="").args[2])
    if same(two, one, 1e-2):
        sentence = "The weights are the scores divided by their sum: there is no softmax."
        raise Mistake("no-softmax", sentence, example, part.change("no-softmax"))
    for function, finding, sentence in FUNCTIONS:
        first, second, third = (function(x) for x in (one, two, three))
        if bool(third.isfinite().all()) and same(third - second, second - first, 1e-2):
            raise Mistake(finding, sentence, example, part.change(finding))


def decoder_examples(part: Part) -> Names:
    given = inputs(part, 4, 2, 3)
    return {"1 review of 4 words": [x[:1] for x in given], "3 reviews of 4, 2 and 3 words": given}


def decoder_choices(part: Part, net: nn.Module, results: list[Tensor]) -> Iterator[Choice]:
    state_BD, outputs_BTD, _ = inputs(part, 4, 2, 3)
    of_state = partial(call, part, net)

    def context(factor: float, rows: slice, places: list[int], m: Tensor) -> Tensor:
        y: Tensor = of_state(factor * state_BD[rows], outputs_BTD[rows][:, places], m)
        return y.detach()

    s_BT = scores_of(part, partial(context, 1.0), outputs_BTD, lambda n: partial(context, n / 4))
    y, other = (of_state(state_BD[row : row + 1], outputs_BTD[:1], mask(4)) for row in (0, 1))
    if same(y, other, 1e-5):
        raise mistake("state-not-used", y, fix=part.change("state-not-used"))
    yield RIGHT, "", {"scores": s_BT}
