"""Batches for a net with phrases (nn/beyond/context): they contain the words before each word,
including words that truncation or word dropout removed.

Shape suffixes: B reviews of a batch, T positions, W words before a word, F ratios of a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from torch import Tensor

from imdbattn.data.plans import BatchPlan
from imdbattn.data.ragged import BatchOptions, Ragged
from imdbattn.nn.scores import sequence_mask


class PhraseBatch(NamedTuple):
    """The fields of a Batch, and what phrases need."""

    tokens_BT: Tensor
    positions_BT: Tensor
    lengths_B: Tensor
    labels_B: Tensor
    items_B: Tensor
    global_count: int
    before_BTW: Tensor  # int64 ids of the words before each token, nearest first; 0 if none
    indices_BT: Tensor  # int64 index of each token in the ids of its split; 0 on padding
    # log-count ratios of the phrases that end at each token, in training; None: they are looked up
    ratios_BTF: Tensor | None = None


@dataclass(frozen=True)
class RaggedPhrases(Ragged):
    """Reviews whose batches are PhraseBatches."""

    before: int  # W

    def batches(  # type: ignore[override]
        self, plans: Sequence[BatchPlan], options: BatchOptions
    ) -> list[PhraseBatch]:
        """Makes several batches, see Ragged."""
        batches = []
        for batch in super().batches(plans, options):
            starts_B1 = self.offsets[batch.items_B][:, None]
            indices_BT = self.indices(batch.items_B, batch.positions_BT, options)
            word_BT = sequence_mask(batch.lengths_B, indices_BT.shape[1])
            before_BTW = ids_before(self.ids, indices_BT, starts_B1, self.before)
            before_BTW = before_BTW * word_BT[..., None]
            batches.append(PhraseBatch(*batch, before_BTW, indices_BT * word_BT))
        return batches


def with_words_before(reviews: Ragged, longest: int) -> RaggedPhrases:
    """Returns the reviews for a net with phrases of up to `longest` words."""
    columns = {field.name: getattr(reviews, field.name) for field in fields(Ragged)}
    return RaggedPhrases(**columns, before=longest - 1)


def ids_before(ids: Tensor, indices: Tensor, starts: Tensor, count: int) -> Tensor:
    """Returns the `count` ids before each index into `ids`, nearest first, (..., count); 0 before
    the `starts` of the reviews.
    """
    before = indices.new_zeros(*indices.shape, count)
    for back in range(1, count + 1 if len(ids) else 1):
        inside = indices - back >= starts
        known = ids[((indices - back) * inside).clamp(max=len(ids) - 1)]
        before[..., back - 1] = known.long() * inside
    return before
