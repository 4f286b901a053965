"""Reviews of different lengths as one flat tensor, and padded batches of them.

Batches are gathered without a loop over tokens; the samplers assign items to batches, the same in
every process.
Shape suffixes: N reviews of a split, B reviews of a batch, T positions.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Sampler


class Batch(NamedTuple):
    """A padded batch. `items_B` are the indices of the reviews in their split, so that each is
    scored exactly once.
    """

    tokens_BT: Tensor  # int64 ids, then 0
    positions_BT: Tensor  # int64 position of each token in its (truncated) review
    lengths_B: Tensor  # int64 tokens in the batch, may be 0
    labels_B: Tensor  # int64
    items_B: Tensor  # int64
    total: int  # number of reviews in this batch, over all processes


AnyBatch = TypeVar("AnyBatch", bound=NamedTuple)


def with_tensors(batch: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
    """Returns the batch with `change` applied to each of its tensors."""
    columns: Any = (change(field) if isinstance(field, Tensor) else field for field in batch)
    return type(batch)(*columns)


def with_positions(batch: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
    """Returns the batch with `change` applied to each of its tensors (B, T, ...)."""
    return with_tensors(batch, lambda tensor: change(tensor) if tensor.ndim > 1 else tensor)


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
        """Returns (N,) tokens of each review, before truncation. On the CPU, where batches are
        planned.
        """
        return (self.offsets[1:] - self.offsets[:-1]).cpu()

    def to(self, device: torch.device) -> "Ragged":
        ids, offsets, labels = (
            tensor.to(device) for tensor in (self.ids, self.offsets, self.labels)
        )
        return replace(self, ids=ids, offsets=offsets, labels=labels)

    def batch(self, index_B: Tensor, *, seed: int = 0, **options: Any) -> Batch:
        """Returns the reviews `index_B` (on the CPU), padded to the longest of them. options: see
        `batches`.
        """
        return self.batches([(seed, index_B)], **options)[0]

    def batches(
        self,
        plans: Sequence[tuple[int, Tensor]],
        *,
        max_tokens: int | None = None,
        head_share: float = 1.0,
        word_dropout: float = 0.0,
        multiple: int = 1,
        own: slice = slice(None),
        widths: Sequence[int] = (),
    ) -> list[Batch]:
        """Makes several batches with as many operations as one. Each is padded to its longest
        review, or to 1 position.

        Args:
            plans: for each batch, the random seed of word dropout and the indices of its reviews
                (on the CPU). The same seed drops different words on different device types.
            max_tokens: a longer review keeps its first `head_share` x max_tokens tokens and as many
                of its last as fit.
            word_dropout: share of each review's tokens that are removed at random; the others keep
                their positions.
            multiple: the number of positions is rounded up to a multiple of this, but not beyond
                max_tokens.
            own: the reviews of this process; random numbers are drawn for all of them.
            widths: numbers of positions to round up to, instead of `multiple`; see `padded`.
        """
        # 1. Sizes, on the CPU, so that nothing below synchronizes with the device.
        seeds, counts = [seed for seed, _ in plans], [len(index_B) for _, index_B in plans]
        index_B = torch.cat([index_B for _, index_B in plans])
        lengths_B = self.kept(self.lengths[index_B], max_tokens)
        kept_B = self.kept(lengths_B, max_tokens, word_dropout)
        # Of each batch, before and after word dropout
        longest, sizes = longest_of(lengths_B, counts), longest_of(kept_B, counts)
        padded_sizes = [int(padded(size, multiple, max_tokens, widths)) for size in sizes]
        index_B, lengths_B, kept_B = move(
            torch.stack([index_B, lengths_B, kept_B]), self.ids.device
        )
        # 2. The position of each token in its truncated review.
        if word_dropout > 0:
            positions_BT = draw_positions(seeds, counts, longest, lengths_B, kept_B, max(sizes))
        else:
            positions_T = torch.arange(max(longest), device=self.ids.device)
            positions_BT = positions_T.expand(len(index_B), -1)
        positions_BT = F.pad(positions_BT, (0, max(padded_sizes) - max(sizes)))
        word_BT = torch.arange(positions_BT.shape[1], device=self.ids.device) < kept_B[:, None]
        positions_BT = positions_BT * word_BT
        # 3. The ids of the tokens.
        tokens_BT = torch.zeros_like(positions_BT)
        if len(self.ids):
            indices_BT = self.indices(index_B, positions_BT, max_tokens, head_share) * word_BT
            tokens_BT = self.ids[indices_BT].long() * word_BT
        # 4. Separate batches.
        columns = (tokens_BT, positions_BT, kept_B, self.labels[index_B], index_B)
        made = []
        for count, width, *rows in zip(
            counts, padded_sizes, *(column.split(counts) for column in columns), strict=True
        ):
            own_rows = [
                (column[own, :width] if column.ndim > 1 else column[own]).contiguous()
                for column in rows
            ]
            made.append(Batch(*own_rows, total=count))  # type: ignore[misc]
        return made

    def batch_lengths(
        self, max_tokens: int | None = None, word_dropout: float = 0.0, **options: Any
    ) -> np.ndarray:
        """Returns (N,) positions that each review takes in a batch with these options."""
        kept_N = self.kept(self.lengths, max_tokens, word_dropout).numpy()
        return padded(kept_N, options.get("multiple", 1), max_tokens, options.get("widths", ()))

    def indices(
        self,
        items_B: Tensor,
        positions_BT: Tensor,
        max_tokens: int | None = None,
        head_share: float = 1.0,
    ) -> Tensor:
        """Returns (B, T): the index in `ids` of the token at each position of a truncated review.

        A truncated review is its head and its tail: a gap precedes the tail. Arguments: as in
        `batches`.
        """
        start_B = self.offsets[items_B]
        indices_BT = start_B[:, None] + positions_BT
        if max_tokens is None:
            return indices_BT
        gap_B = (self.offsets[items_B + 1] - start_B - max_tokens).clamp(min=0)
        return indices_BT + gap_B[:, None] * (positions_BT >= round(max_tokens * head_share))

    @staticmethod
    def kept(lengths: Tensor, max_tokens: int | None, word_dropout: float = 0.0) -> Tensor:
        """Returns the number of tokens that reviews of these lengths keep; at least one unless a
        review is empty.
        """
        lengths = lengths if max_tokens is None else lengths.clamp(max=max_tokens)
        return (lengths * (1 - word_dropout)).round().long().clamp(min=1).minimum(lengths)


def draw_positions(
    seeds: list[int],
    counts: list[int],
    longest: list[int],
    lengths_B: Tensor,
    kept_B: Tensor,
    size: int,
) -> Tensor:
    """Returns the random positions that word dropout keeps, ascending (B, size); positions after a
    review's `kept_B` are unused.

    seeds, counts, longest: for each batch, its seed, number of reviews and longest review.
    """
    # Each review keeps its `kept` smallest random numbers; those after its end are 2 and never
    # kept.
    device = lengths_B.device
    draw_BT = torch.full((len(lengths_B), max(longest)), 2.0, device=device)
    for seed, rows_BT, columns in zip(seeds, draw_BT.split(counts), longest, strict=True):
        rows_BT[:, :columns].uniform_(generator=torch.Generator(device).manual_seed(seed))
    draw_BT.masked_fill_(torch.arange(max(longest), device=device) >= lengths_B[:, None], 2.0)
    chosen_BT = draw_BT.topk(size, largest=False).indices
    beyond_BT = torch.arange(size, device=device) >= kept_B[:, None]
    return chosen_BT.masked_fill_(beyond_BT, max(longest)).sort().values


def padded(
    lengths: np.ndarray | int, multiple: int, max_tokens: int | None, widths: Sequence[int] = ()
) -> np.ndarray:
    """Returns the lengths rounded up to one of `widths`, if any; else to a multiple, but not beyond
    max_tokens. At least 1.

    widths: ascending; the last is at least the longest length.
    """
    if widths:
        return np.asarray(widths)[np.searchsorted(widths, lengths)]
    rounded = -(-np.maximum(lengths, 1) // multiple) * multiple
    return rounded if max_tokens is None else np.minimum(rounded, max_tokens)


def longest_of(lengths_B: Tensor, counts: list[int]) -> list[int]:
    """Returns the longest length of each batch, at least 1. counts: of the items of each batch."""
    return [max(lengths.tolist(), default=0) or 1 for lengths in lengths_B.split(counts)]


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a CPU tensor to another device without synchronizing with it."""
    cuda = device.type == "cuda"
    return (tensor.pin_memory() if cuda else tensor).to(device, non_blocking=cuda)


def as_tensor(array: np.ndarray) -> Tensor:
    """Returns a tensor over a memory-mapped array, without a copy. Torch warns that it is
    read-only; nothing writes to it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def ragged(ids: list[list[int]], labels: np.ndarray | None = None) -> Ragged:
    """Returns a Ragged of Python lists of ids, for tests and for prediction; labels default to
    0.
    """
    lengths = torch.tensor([0, *map(len, ids)])
    flat = torch.tensor([token for review in ids for token in review], dtype=torch.int32)
    labels_N = torch.as_tensor(np.zeros(len(ids)) if labels is None else labels, dtype=torch.int64)
    return Ragged(flat, lengths.cumsum(0), labels_N, np.arange(len(ids)))


def read_places(length: int, max_tokens: int | None, head_share: float) -> list[int]:
    """Returns the indices of the tokens that remain when `Ragged.batch` truncates a review of
    `length` tokens.
    """
    batch = ragged([list(range(length))]).batch(
        torch.tensor([0]), max_tokens=max_tokens, head_share=head_share
    )
    return batch.tokens_BT[0, : batch.lengths_B[0]].tolist()


# --- samplers: length buckets with a token budget -------------------------------------------------


def fill(order: np.ndarray, lengths_N: np.ndarray, budget: int) -> list[np.ndarray]:
    """Splits `order` into batches whose padded size (items x longest item) is at most `budget`, or
    single items.
    """
    batches, start, longest = [], 0, 0
    for end, length in enumerate(np.maximum(lengths_N[order], 1).tolist()):
        longest = max(longest, length)
        if longest * (end + 1 - start) > budget and start < end:
            batches.append(order[start:end])
            start, longest = end, length
    return [*batches, order[start:]]


def halve_to(batches: list[np.ndarray], count: int) -> list[np.ndarray]:
    """Halves the largest batches until there are `count`, or none has two items."""
    batches = sorted(batches, key=len)
    while len(batches) < count and len(batches[-1]) >= 2:
        largest = batches.pop()
        half = len(largest) // 2
        batches = sorted([*batches, largest[:half], largest[half:]], key=len)
    return batches


class TrainBatches(Sampler[tuple[int, np.ndarray]]):
    """The batches of an epoch: random pools, sorted by length, divided by the budget, in random
    order.

    Determined by seed and epoch; their number is the same in each epoch. All processes plan the
    same batches, and each takes its items of every batch, perhaps none. Yields (random seed of the
    batch, indices of its items).

    Args:
        lengths_N: positions that each item takes in a batch.
        budget: padded tokens in one batch, over all processes together.
        pool: items that are shuffled and sorted together; larger pools pad less and mix less. None
        is all items, for
            lengths with few different values: then all batches have one of few shapes, except one
            with the rest, and the order of the shapes depends on the epoch alone, so that runs with
            other seeds have the same.
        done: returns how many batches of the starting epoch to skip, because a resumed run has
        trained on them.
        count: number of batches, each of about the same size, instead of what the budget gives.
    """

    def __init__(
        self,
        lengths_N: np.ndarray,
        budget: int,
        seed: int,
        pool: int | None = 8192,
        done: Callable[[], int] = lambda: 0,
        count: int | None = None,
    ):
        self.lengths_N, self.budget, self.seed, self.pool = lengths_N, budget, seed, pool
        self.epoch, self.done = 0, done
        if count is None:
            count = self._needed()
        else:
            self.budget = max(1, int(lengths_N.sum()) // count)
            while self._needed() > count:
                self.budget += 1 + self.budget // 100
        self.count = count

    def _needed(self) -> int:
        """Returns a number of batches that suffices in every epoch."""
        sorted_whole = len(self._by_length(np.arange(len(self.lengths_N))))
        # Pools need a few more batches than the whole set sorted.
        slack = 1 + sorted_whole // 50 + len(self.lengths_N) // self.pool if self.pool else 0
        return max(1, min(sorted_whole + slack, len(self.lengths_N)))

    def _by_length(self, order: np.ndarray) -> list[np.ndarray]:
        # Without pools, sorted from long to short: the last items of a length are batched with
        # shorter ones.
        ascending = 1 if self.pool else -1
        order = order[np.argsort(ascending * self.lengths_N[order], kind="stable")]
        return fill(order, self.lengths_N, self.budget)

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self.lengths_N))
        if self.pool is None:
            batches, numbers = self._by_length(order), np.random.default_rng(self.epoch)
            if len(batches) < self.count:
                batches = halve_to(batches, self.count)
        else:
            batches, numbers = self._by_pool(order, self.pool), rng
        drawn = [
            (int(rng.integers(2**62)), batches[number])
            for number in numbers.permutation(len(batches))
        ]
        yield from drawn[self.done() :]

    def _by_pool(self, order: np.ndarray, size: int) -> list[np.ndarray]:
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        # Alternately ascending and descending, so that lengths are similar where two pools join.
        pools = [
            p[np.argsort(self.lengths_N[p], kind="stable")][:: 1 - 2 * (i % 2)]
            for i, p in enumerate(pools)
        ]
        batches = fill(np.concatenate(pools), self.lengths_N, self.budget)
        # more than the slack (never observed): the whole set sorted always fits
        if len(batches) > self.count:
            batches = self._by_length(order)
        return halve_to(batches, self.count)


class EvalBatches(Sampler[tuple[int, np.ndarray]]):
    """Every item exactly once, longest first; each process gets every `ranks`-th batch.

    A process without items gets an empty batch: else Lightning would skip its end of the epoch,
    which gathers scores.
    """

    def __init__(self, lengths_N: np.ndarray, budget: int, rank: int = 0, ranks: int = 1):
        batches = fill(np.argsort(-lengths_N, kind="stable"), lengths_N, budget)
        if len(batches) < ranks:
            batches = halve_to(batches, ranks)
        self.batches = batches[rank::ranks] or [np.array([], dtype=int)]

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        return ((0, batch) for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Batches:
    """Makes the padded batches that a sampler plans: each plan is a random seed and the indices of
    the items.

    Args:
        split: `Ragged`, or another type with `batch` and `batch_lengths`; on a GPU, `batches`, too.
        rank, ranks: this process gets every `ranks`-th item of each batch, starting with `rank`.
        options: arguments of `split.batch`.
    """

    def __init__(self, split: Any, rank: int = 0, ranks: int = 1, **options: Any):
        self.split, self.own, self.options = split, slice(rank, None, ranks), options

    def __getitem__(self, plan: tuple[int, np.ndarray]) -> Any:
        seed, index = plan
        return self.split.batch(torch.from_numpy(index), seed=seed, own=self.own, **self.options)

    def several(self, plans: Sequence[tuple[int, np.ndarray]]) -> list[Any]:
        """Returns the batches of several plans, made together."""
        tensors = [(seed, torch.from_numpy(index)) for seed, index in plans]
        return self.split.batches(tensors, own=self.own, **self.options)

    def lengths_N(self) -> np.ndarray:
        """Returns the positions that each item takes in a batch."""
        return self.split.batch_lengths(**self.options)

    def limit_widths(self, count: int) -> None:
        """Pads to at most `count` lengths, those with the least padding."""
        from imdbattn.data.widths import best_widths

        side_lengths = getattr(self.split, "side_lengths", self.split.batch_lengths)
        self.options["widths"] = best_widths(side_lengths(**self.options), count)
