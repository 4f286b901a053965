"""Batches of other reviews or fewer words, and the output of a classifier whose change is measured.

Shape suffixes: B reviews, T positions, C classes, W preceding words, R rows of a new batch.
"""

import torch
from torch import Tensor

from imdbattn.data.ragged import Batch
from imdbattn.nn.scores import padding_mask


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
