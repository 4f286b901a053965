"""Agreement of scores with the words that are known to decide the label, on the order probe (data/order_probe.py).

Shape suffixes: B reviews, T positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.ragged import Batch
from imdbattn.faithfulness.interventions import words_of

SHOWN = (1, 2)  # numbers of words at which precision is measured: a review has two true words


def true_words(batch: Batch, negation: int) -> Tensor:
    """(B, T) bool: "not" and the verb that it stands before. negation: id of "not"."""
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
