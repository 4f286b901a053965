"""Comprehensiveness and sufficiency of scores of words (DeYoung et al. 2020, "ERASER", section 4.2).

Shape suffixes: B reviews, T positions, S shares of the words.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from imdbattn.data.ragged import Batch
from imdbattn.faithfulness.interventions import keep, probability, words_of
from imdbattn.nn.ladder import Classifier


def ranks(scores_BT: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
    """(B, T): the rank of each word, 0 for the largest score; equal scores are ranked at random, padding comes last."""
    scores_BT = scores_BT.masked_fill(~words_of(batch), -torch.inf)
    shuffled_BT = torch.rand(scores_BT.shape, generator=generator).argsort(1)
    order_BT = shuffled_BT.gather(1, scores_BT.gather(1, shuffled_BT).argsort(dim=1, descending=True, stable=True))
    return order_BT.argsort(1)


@torch.no_grad()
def erase(net: Classifier, batch: Batch, ranks_BT: Tensor, shares: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Comprehensiveness and sufficiency (B, S), in float64.

    The probability of the predicted label, minus the same without the words of the lowest ranks, or with only these.
    They are `shares` of a review's words, rounded up, but not all of them.
    """
    logits_BC = net(batch)
    label_B = logits_BC.argmax(1)
    whole_B = probability(logits_BC, label_B)
    comprehensiveness, sufficiency = [], []
    for share in shares:
        exact_B = share * batch.lengths_B.double() - 1e-9  # 0.3 of 50 words must be 15, whatever the rounding
        number_B = exact_B.ceil().minimum(batch.lengths_B - 1)
        chosen_BT = ranks_BT < number_B.clamp(min=1)[:, None]
        only_B = probability(net(keep(batch, chosen_BT)), label_B)
        removed_BT = ranks_BT < number_B[:, None]  # nothing, in a review of one word
        without_B = probability(net(keep(batch, ~removed_BT)), label_B)
        comprehensiveness.append(whole_B - without_B)
        sufficiency.append(whole_B - only_B)
    return torch.stack(comprehensiveness, 1), torch.stack(sufficiency, 1)
