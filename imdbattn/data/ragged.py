"""Reviews of different lengths as one flat tensor, and padded batches of them.

Batches are gathered without a loop over tokens. data/plans decides which reviews form a batch.

Shape suffixes: N reviews of a split, B reviews of a batch, T positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.plans import BatchPlan
from imdbattn.nn.scores import sequence_mask


class Batch(NamedTuple):
    """A padded batch. `items_B` are the indices of the reviews in their split, so that each is
    scored exactly once.
    """

    tokens_BT: Tensor  # int64 ids, then 0
    positions_BT: Tensor  # int64 position of each token in its (truncated) review
    lengths_B: Tensor  # int64 tokens in the batch, may be 0
    labels_B: Tensor  # int64
    items_B: Tensor  # int64
    global_count: int  # number of reviews in this batch, over all processes


AnyBatch = TypeVar("AnyBatch", bound=NamedTuple)


def with_tensors(batch: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
    """Returns the batch with `change` applied to each of its tensors."""
    columns: Any = (change(field) if isinstance(field, Tensor) else field for field in batch)
    return type(batch)(*columns)


def map_per_token(batch: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
    """Returns the batch with `change` applied to each of its tensors (B, T, ...)."""
    return with_tensors(batch, lambda tensor: change(tensor) if tensor.ndim > 1 else tensor)


@dataclass(frozen=True)
class BatchOptions:
    """How reviews become a padded batch.

    max_tokens: a longer review keeps its first `start_share` x max_tokens tokens and as many of its
    last tokens as fit.
    word_dropout: share of each review's tokens removed at random; the others keep their positions.
    pad_to: the number of positions is rounded up to a multiple of this, but not beyond max_tokens.
    padded_lengths: ascending lengths, to one of which the number of positions is rounded up
    instead. The last one is at least the longest length.
    """

    max_tokens: int | None = None
    start_share: float = 1.0
    word_dropout: float = 0.0
    pad_to: int = 1
    padded_lengths: Sequence[int] = ()

    def truncated_lengths(self, lengths: Tensor) -> Tensor:
        """Returns the number of tokens that reviews of these lengths keep, before word dropout."""
        return lengths if self.max_tokens is None else lengths.clamp(max=self.max_tokens)

    def kept_lengths(self, lengths: Tensor) -> Tensor:
        """Returns the number of tokens that reviews of these lengths keep; at least one unless a
        review is empty.
        """
        lengths = self.truncated_lengths(lengths)
        return (lengths * (1 - self.word_dropout)).round().long().clamp(min=1).minimum(lengths)

    def padded_sizes(self, lengths: np.ndarray | int) -> np.ndarray:
        """Returns the number of positions of batches with these longest lengths, at least 1."""
        if self.padded_lengths:
            return np.asarray(self.padded_lengths)[np.searchsorted(self.padded_lengths, lengths)]
        rounded = -(-np.maximum(lengths, 1) // self.pad_to) * self.pad_to
        return rounded if self.max_tokens is None else np.minimum(rounded, self.max_tokens)


WHOLE_REVIEWS = BatchOptions()  # whole reviews, padded to the longest


@dataclass(frozen=True)
class Ragged:
    """Ids of all reviews in one flat tensor: review n is `ids[offsets[n]:offsets[n + 1]]`.

    All tensors are on one device, where batches are made.
    """

    ids: Tensor  # (tokens,) int32
    offsets: Tensor  # (N + 1,) int64
    labels: Tensor  # (N,) int64
    rows: np.ndarray  # (N,) row numbers in the source's tables

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_cuda(self) -> bool:
        return self.ids.is_cuda

    @cached_property
    def lengths(self) -> Tensor:
        """The number of tokens of each review (N,), before truncation, on the CPU, for plans."""
        return (self.offsets[1:] - self.offsets[:-1]).cpu()

    def to(self, device: torch.device) -> "Ragged":
        ids, offsets, labels = (
            tensor.to(device) for tensor in (self.ids, self.offsets, self.labels)
        )
        return replace(self, ids=ids, offsets=offsets, labels=labels)

    def batches(self, plans: Sequence[BatchPlan], options: BatchOptions) -> list[Batch]:
        """Makes several batches with as many operations as one: their reviews are padded together,
        then separated.

        plans: one for each batch. With the same seed, word dropout removes different words on a CPU
        and on a GPU.
        """
        # Suffix A: reviews of all plans. Sizes are computed on the CPU, so that nothing below
        # synchronizes with the device.
        counts = [len(plan.items_B) for plan in plans]
        items_A = torch.from_numpy(np.concatenate([plan.items_B for plan in plans]))
        truncated_A = options.truncated_lengths(self.lengths[items_A])
        kept_A = options.kept_lengths(truncated_A)
        before_dropout, longest = longest_of(truncated_A, counts), longest_of(kept_A, counts)
        sizes = [int(options.padded_sizes(length)) for length in longest]
        items_A, truncated_A, kept_A = move(
            torch.stack([items_A, truncated_A, kept_A]), self.ids.device
        )
        if options.word_dropout > 0:
            positions_AT = draw_positions(plans, before_dropout, truncated_A, kept_A, max(longest))
            positions_AT = F.pad(positions_AT, (0, max(sizes) - max(longest)))
        else:
            positions_T = torch.arange(max(sizes), device=self.ids.device)
            positions_AT = positions_T.expand(len(items_A), -1)
        together = self.padded_batch(items_A, positions_AT, kept_A, options)
        columns = [column.split(counts) for column in together]
        batches = []
        for count, size, tokens_BT, positions_BT, lengths_B, labels_B, items_B in zip(
            counts, sizes, *columns, strict=True
        ):
            tokens_BT = tokens_BT[:, :size].contiguous()
            positions_BT = positions_BT[:, :size].contiguous()
            batches.append(Batch(tokens_BT, positions_BT, lengths_B, labels_B, items_B, count))
        return batches

    def padded_batch(
        self, items_B: Tensor, positions_BT: Tensor, lengths_B: Tensor, options: BatchOptions
    ) -> tuple[Tensor, ...]:
        """Returns the tensors of one Batch: the words at these positions, `lengths_B` of them for
        each review, then padding.
        """
        mask_BT = sequence_mask(lengths_B, positions_BT.shape[1])
        positions_BT = positions_BT * mask_BT
        tokens_BT = torch.zeros_like(positions_BT)
        if len(self.ids):
            indices_BT = self.indices(items_B, positions_BT, options) * mask_BT
            tokens_BT = self.ids[indices_BT].long() * mask_BT
        return tokens_BT, positions_BT, lengths_B, self.labels[items_B], items_B

    def batch_lengths(self, options: BatchOptions) -> np.ndarray:
        """Returns the number of positions of each review in a batch with these options, (N,)."""
        return options.padded_sizes(options.kept_lengths(self.lengths).numpy())

    def indices(self, items_B: Tensor, positions_BT: Tensor, options: BatchOptions) -> Tensor:
        """Returns (B, T): the index in `ids` of the token at each position of a truncated review.

        A truncated review consists of its start and its end, with a gap between them.
        """
        start_B = self.offsets[items_B]
        indices_BT = start_B[:, None] + positions_BT
        if options.max_tokens is None:
            return indices_BT
        gap_B = (self.offsets[items_B + 1] - start_B - options.max_tokens).clamp(min=0)
        kept_from_start = round(options.max_tokens * options.start_share)
        return indices_BT + gap_B[:, None] * (positions_BT >= kept_from_start)


def draw_positions(
    plans: Sequence[BatchPlan], longest: list[int], truncated_B: Tensor, kept_B: Tensor, size: int
) -> Tensor:
    """Returns the random positions that word dropout keeps, ascending (B, size); positions after a
    review's `kept_B` are unused.

    longest: length of the longest review of each plan.
    """
    # Each review keeps its `kept_B` smallest numbers; numbers after its end are 2, so never kept.
    device = truncated_B.device
    draw_BT = torch.full((len(truncated_B), max(longest)), 2.0, device=device)
    draws = draw_BT.split([len(plan.items_B) for plan in plans])
    for plan, draw_of_plan_BT, columns in zip(plans, draws, longest, strict=True):
        generator = torch.Generator(device).manual_seed(plan.seed)
        draw_of_plan_BT[:, :columns].uniform_(generator=generator)
    draw_BT.masked_fill_(torch.arange(max(longest), device=device) >= truncated_B[:, None], 2.0)
    chosen_BT = draw_BT.topk(size, largest=False).indices
    beyond_BT = torch.arange(size, device=device) >= kept_B[:, None]
    return chosen_BT.masked_fill_(beyond_BT, max(longest)).sort().values


def longest_of(lengths_B: Tensor, counts: list[int]) -> list[int]:
    """Returns the longest length of each batch, at least 1. counts: number of items per batch."""
    return [max(lengths.tolist(), default=0) or 1 for lengths in lengths_B.split(counts)]


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a CPU tensor to another device without synchronizing with it."""
    cuda = device.type == "cuda"
    return (tensor.pin_memory() if cuda else tensor).to(device, non_blocking=cuda)


def ragged_from_lists(ids: list[list[int]], labels: np.ndarray | None = None) -> Ragged:
    """Returns a Ragged of Python lists of ids, for tests and prediction; labels default to 0."""
    lengths = torch.tensor([0, *map(len, ids)])
    flat = torch.tensor([token for review in ids for token in review], dtype=torch.int32)
    labels_N = torch.as_tensor(np.zeros(len(ids)) if labels is None else labels, dtype=torch.int64)
    return Ragged(flat, lengths.cumsum(0), labels_N, np.arange(len(ids)))


def kept_indices(length: int, options: BatchOptions) -> list[int]:
    """Returns the indices of the tokens that remain of a truncated review of `length` tokens."""
    batch = BatchMaker(ragged_from_lists([[*range(length)]]), options).of_items(np.arange(1))
    return batch.tokens_BT[0, : batch.lengths_B[0]].tolist()


class BatchMaker:
    """Makes padded batches from their plans.

    Args:
        items: `Ragged`, or another type with `batches` and `batch_lengths`.
        options: options of all batches.
        rank, ranks: this process gets every `ranks`-th item of each batch, starting with `rank`;
            random numbers are drawn for all items.
    """

    def __init__(
        self, items: Any, options: BatchOptions = WHOLE_REVIEWS, rank: int = 0, ranks: int = 1
    ):
        self.items, self.options, self.rank, self.ranks = items, options, rank, ranks

    def make(self, plans: Sequence[BatchPlan]) -> list[Any]:
        """Returns the batches of several plans, made together."""
        batches = self.items.batches(plans, self.options)
        return batches if self.ranks == 1 else [with_tensors(each, self.part) for each in batches]

    def part(self, tensor: Tensor) -> Tensor:
        """Returns this process's items of a batch's tensor (B, ...); a single number is kept."""
        return tensor[self.rank :: self.ranks].contiguous() if tensor.ndim else tensor

    def of_items(self, items_B: np.ndarray) -> Any:
        """Returns these items as one batch."""
        (batch,) = self.make([BatchPlan(0, items_B)])
        return batch

    def batch_lengths(self) -> np.ndarray:
        """Returns the positions that each item takes in a batch."""
        return self.items.batch_lengths(self.options)
