"""Evaluates attributions by erasing words, and by words that are known to matter.

DeYoung et al. 2020, "ERASER", sections 4.1 and 4.2; Edin et al. 2024, "Normalized AOPC".

Shape suffixes: B reviews, T positions, C classes, W preceding words, S shares of the words, R rows
of a new batch, P sets of words.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.ragged import Batch, map_per_token, with_tensors
from imdbattn.nn.ladder import Classifier
from imdbattn.nn.scores import sequence_mask

EXHAUSTIVE = 10  # words up to which all orders of erasure are compared
# the largest share of the words that the search removes without measuring the rest again
MAX_STEP_SHARE = 0.1
BUDGET = 8_192  # positions of a batch


def words_of(batch: Batch) -> Tensor:
    """Returns (B, T) bool, True on words, False on padding."""
    return sequence_mask(batch.lengths_B, batch.tokens_BT.shape[1])


def keep_words(batch: Batch, kept_BT: Tensor) -> Batch:
    """Returns the batch with only those words where kept_BT is True.

    As after word dropout (Ragged.batches), they keep their positions and the words before them.
    """
    kept_BT = kept_BT & words_of(batch)
    lengths_B = kept_BT.sum(1)
    size = max([1, *lengths_B.tolist()])
    order_BT = kept_BT.byte().argsort(dim=1, descending=True, stable=True)[:, :size]
    review_B1 = torch.arange(len(order_BT))[:, None]
    is_padding_BT = ~sequence_mask(lengths_B, size)

    def in_order(column: Tensor) -> Tensor:
        chosen = column[review_B1, order_BT]
        chosen[is_padding_BT] = 0
        return chosen

    return map_per_token(batch, in_order)._replace(lengths_B=lengths_B)


def take(batch: Batch, index_R: Tensor) -> Batch:
    """Returns the reviews `index_R` of a batch, which may repeat."""
    return with_tensors(batch, lambda column: column[index_R])._replace(global_count=len(index_R))


def in_chunks(positions: int, *columns_R: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields parts of the columns, so that a batch has at most BUDGET positions."""
    rows = max(1, BUDGET // positions)
    return zip(*(column_R.split(rows) for column_R in columns_R), strict=True)


def log_odds(logits_BC: Tensor, label_B: Tensor) -> Tensor:
    """Returns (B,): log p / (1 - p) of the probability p of each review's label.

    It does not saturate where p is near 1.
    """
    own_B1 = logits_BC.gather(1, label_B[:, None])
    others_BC = logits_BC.scatter(1, label_B[:, None], -torch.inf)
    return own_B1[:, 0] - others_BC.logsumexp(1)


def probability(logits_BC: Tensor, label_B: Tensor) -> Tensor:
    """Returns (B,), float64: the probability of each review's label."""
    return logits_BC.double().softmax(1).gather(1, label_B[:, None])[:, 0]


def ranks(attributions_BT: Tensor, batch: Batch) -> Tensor:
    """Returns (B, T): the rank of each word, 0 for the largest attribution.

    Equal attributions are ranked at random, padding comes last.
    """
    attributions_BT = attributions_BT.masked_fill(~words_of(batch), -torch.inf)
    shuffled_BT = torch.rand(attributions_BT.shape).argsort(1)
    in_shuffled_BT = attributions_BT.gather(1, shuffled_BT)
    order_BT = shuffled_BT.gather(1, in_shuffled_BT.argsort(dim=1, descending=True, stable=True))
    return order_BT.argsort(1)


def removed_words(share: float, words: int) -> int:
    """Returns the number of words in a share, rounded up, but fewer than all words.

    A share of 0.07 of 100 words is 7 words, in spite of rounding errors.
    """
    return min(math.ceil(share * words - 1e-9), words - 1) if words else 0


def erase(
    net: Classifier, batch: Batch, ranks_BT: Tensor, shares: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Returns comprehensiveness and sufficiency (B, S), in float64.

    For each of `shares`, the words with the lowest ranks are chosen. Comprehensiveness is how much
    the probability of the predicted label decreases without the chosen words, sufficiency how much
    it decreases with the chosen words only.
    """
    logits_BC = net(batch)
    label_B = logits_BC.argmax(1)
    whole_B = probability(logits_BC, label_B)
    comprehensiveness = []
    sufficiency = []
    for share in shares:
        number_B = torch.tensor([removed_words(share, words) for words in batch.lengths_B.tolist()])
        only = keep_words(batch, ranks_BT < number_B.clamp(min=1)[:, None])
        # In a review of one word, all words are removed.
        without = keep_words(batch, ranks_BT >= number_B[:, None])
        comprehensiveness.append(whole_B - probability(net(without), label_B))
        sufficiency.append(whole_B - probability(net(only), label_B))
    return torch.stack(comprehensiveness, 1), torch.stack(sufficiency, 1)


def extremes(
    net: Classifier, batch: Batch, shares: Sequence[float], beam: int
) -> dict[str, Tensor]:
    """Returns low and high (B,): the lowest and highest AOPC (mean comprehensiveness over `shares`)
    found by a search.

    The search is exact for at most EXHAUSTIVE words, where the beam holds all sets.
    """
    ends = []
    for review in range(len(batch.lengths_B)):
        padded = take(batch, torch.tensor([review]))
        alone = keep_words(padded, words_of(padded))  # padding is removed
        words = int(alone.lengths_B)
        counts = Counter(removed_words(share, words) for share in shares)
        width = 2**words if words <= EXHAUSTIVE else beam
        gain = partial(loss_without, net, alone, -1)
        loss = partial(loss_without, net, alone, 1)
        low = -search_removals(gain, words, counts, width)
        ends.append((low, search_removals(loss, words, counts, width)))
    low_B, high_B = torch.tensor(ends, dtype=torch.float64).unbind(1)
    return {"low": low_B, "high": high_B}


def loss_without(net: Classifier, review: Batch, sign: int, removed_PT: Tensor) -> Tensor:
    """Returns (P,): `sign` times the loss of probability of one review without sets of words."""
    logits_1C = net(review)
    label_1 = logits_1C.argmax(1)
    losses = []
    for (chunk_PT,) in in_chunks(removed_PT.shape[1], removed_PT):
        rest = keep_words(take(review, torch.zeros(len(chunk_PT), dtype=torch.int64)), ~chunk_PT)
        left_P = probability(net(rest), label_1.expand(len(chunk_PT)))
        losses.append(probability(logits_1C, label_1) - left_P)
    return sign * torch.cat(losses)


def search_removals(
    loss: Callable[[Tensor], Tensor], words: int, counts: Counter[int], beam: int
) -> float:
    """Returns the largest mean loss of growing sets of removed words.

    The loss without each word is measured, and the words with the largest loss are removed. At most
    MAX_STEP_SHARE of the words are removed at once; then the loss without each other word is
    measured again. With a step of one word, a beam of all sets finds the largest loss of all
    orders.

    Args:
        loss: a function from sets of words (P, T) to their losses (P,).
        words: the number of words.
        counts: the sizes of the sets, and how many shares have each size.
        beam: the number of sets that are kept at a time.
    """
    removed_PT = torch.zeros(1, max(words, 1), dtype=torch.bool)
    total_P = torch.zeros(1, dtype=torch.float64)
    step = max(1, round(MAX_STEP_SHARE * words))
    for size in sorted({*counts, *range(step, max(counts), step)}):
        if more := size - int(removed_PT[0].sum()):
            parent_R, word_R = (~removed_PT).nonzero(as_tuple=True)
            alone_PT = torch.full(removed_PT.shape, -torch.inf, dtype=torch.float64)
            one_more_RT = removed_PT[parent_R] | F.one_hot(word_R, words).bool()
            alone_PT[parent_R, word_R] = loss(one_more_RT)
            order_PT = alone_PT.argsort(1, descending=True)
            grown = []
            first_PT = order_PT[:, : more - 1]
            for skipped in range(min(beam, words - size + 1)):  # only the last word differs
                last_P1 = order_PT[:, more - 1 + skipped, None]
                chosen_PT = torch.cat([first_PT, last_P1], 1)
                grown.append(removed_PT.scatter(1, chosen_PT, True))
            removed_PT, set_P = torch.cat(grown).unique(dim=0, return_inverse=True)
            lowest_P = torch.full((len(removed_PT),), -torch.inf, dtype=torch.float64)
            total_P = lowest_P.scatter_reduce(0, set_P, total_P.repeat(len(grown)), "amax")
        losses_P = loss(removed_PT)
        best = (total_P + max(counts[size], 1) * losses_P).topk(min(beam, len(losses_P))).indices
        removed_PT = removed_PT[best]
        total_P = (total_P + counts[size] * losses_P)[best]
    return total_P.max().item() / counts.total()


def true_words(batch: Batch, negation: int) -> Tensor:
    """Returns (B, T) bool: "not" and the verb after it, in reviews of data/sources/order_probe.py.

    negation: id of "not".
    """
    not_BT = batch.tokens_BT == negation
    return (not_BT | F.pad(not_BT, (1, -1))) & words_of(batch)


def average_precision(ranks_BT: Tensor, true_BT: Tensor) -> Tensor:
    """Returns (B,): the area under the curve of precision and recall: the mean of the precision at
    the rank of each true word.

    It is 1 if the true words have the first ranks, and 0 without true words.
    """
    in_order_BT = torch.zeros_like(true_BT).scatter(1, ranks_BT, true_BT)
    counts_T = torch.arange(1, true_BT.shape[1] + 1)
    precisions_BT = in_order_BT.cumsum(1).double() / counts_T
    return (precisions_BT * in_order_BT).sum(1) / true_BT.sum(1).clamp(min=1)
