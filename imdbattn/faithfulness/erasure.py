"""Evaluates scores of words: by the label without the words, and by the words that are known to decide it.

DeYoung et al. 2020, "ERASER", sections 4.1 and 4.2.

Shape suffixes: B reviews, T positions, C classes, W preceding words, S shares of the words, R rows of a new batch.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.ragged import Batch
from imdbattn.nn.ladder import Classifier
from imdbattn.nn.scores import padding_mask

SHOWN = (1, 2)  # numbers of words at which precision is measured: a review has two true words


def words_of(batch: Batch) -> Tensor:
    """(B, T) bool, True on words, False on padding."""
    return padding_mask(batch.lengths_B, batch.tokens_BT.shape[1])


def keep(batch: Batch, kept_BT: Tensor) -> Batch:
    """The batch with only those words where kept_BT is True.

    The same as word dropout in Ragged.batch: the words that remain keep their positions and their preceding words.
    """
    kept_BT = kept_BT & words_of(batch)
    lengths_B = kept_BT.sum(1)
    size = max([1, *lengths_B.tolist()])
    order_BT = kept_BT.byte().argsort(dim=1, descending=True, stable=True)[:, :size]
    word_BT = padding_mask(lengths_B, size)
    before_BTW = batch.before_BTW.gather(1, order_BT[..., None].expand(-1, -1, batch.before_BTW.shape[2]))
    return batch._replace(
        tokens_BT=batch.tokens_BT.gather(1, order_BT) * word_BT,
        positions_BT=batch.positions_BT.gather(1, order_BT) * word_BT,
        lengths_B=lengths_B,
        before_BTW=before_BTW * word_BT[..., None],
    )


def take(batch: Batch, index_R: Tensor) -> Batch:
    """The reviews `index_R` of a batch, which may repeat."""
    columns = (column[index_R] if isinstance(column, Tensor) else column for column in batch)
    return Batch(*columns)._replace(reviews=len(index_R))  # type: ignore[arg-type]


def log_odds(logits_BC: Tensor, label_B: Tensor) -> Tensor:
    """(B,): log p / (1 - p) of the probability p of each review's label. It does not saturate where p is near 1."""
    own_B1 = logits_BC.gather(1, label_B[:, None])
    others_BC = logits_BC.scatter(1, label_B[:, None], -torch.inf)
    return own_B1[:, 0] - others_BC.logsumexp(1)


def probability(logits_BC: Tensor, label_B: Tensor) -> Tensor:
    """(B,), float64: the probability of each review's label."""
    return logits_BC.double().softmax(1).gather(1, label_B[:, None])[:, 0]


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


# --- known rationales, on the order probe (data/order_probe.py) -------------------------------------------------------


def true_words(batch: Batch, negation: int) -> Tensor:
    """(B, T) bool: "not" and the verb after it. negation: id of "not"."""
    not_BT = batch.tokens_BT == negation
    return (not_BT | F.pad(not_BT, (1, -1))) & words_of(batch)


def precision(ranks_BT: Tensor, true_BT: Tensor, words: int) -> Tensor:
    """(B,): the share of true words among those of the first `words` ranks."""
    return ((ranks_BT < words) & true_BT).sum(1).double() / words


def average_precision(ranks_BT: Tensor, true_BT: Tensor) -> Tensor:
    """(B,): the area under the curve of precision and recall: the mean of the precision at the rank of each true word.

    1 if the true words have the first ranks; 0 without true words.
    """
    in_order_BT = torch.zeros_like(true_BT).scatter(1, ranks_BT, true_BT)
    places_T = torch.arange(1, true_BT.shape[1] + 1)
    precisions_BT = in_order_BT.cumsum(1).double() / places_T
    return (precisions_BT * in_order_BT).sum(1) / true_BT.sum(1).clamp(min=1)
