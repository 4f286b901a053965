"""Which reviews go into which batch: length buckets under a token budget, planned alike in every process.

Shape suffix: N reviews of a split.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from imdbattn.data.ragged import Batch, Ragged, padded


def fill(order: np.ndarray, lengths_N: np.ndarray, budget: int) -> list[np.ndarray]:
    """Cuts `order` into batches whose padded size, reviews x longest, stays within `budget`, or of one review."""
    batches, start, longest = [], 0, 0
    for end, length in enumerate(np.maximum(lengths_N[order], 1).tolist()):
        longest = max(longest, length)
        if longest * (end + 1 - start) > budget and start < end:
            batches.append(order[start:end])
            start, longest = end, length
    return [*batches, order[start:]]


def halve_to(batches: list[np.ndarray], count: int) -> list[np.ndarray]:
    """Halves the batches with the most reviews until there are `count`, or none has two reviews."""
    batches = sorted(batches, key=len)
    while len(batches) < count and len(batches[-1]) >= 2:
        largest = batches.pop()
        half = len(largest) // 2
        batches = sorted([*batches, largest[:half], largest[half:]], key=len)
    return batches


def default_budget(tokens: int) -> int:
    """Padded tokens in a training batch: 8,192; less where training has fewer tokens, for an epoch of 400 batches.

    A power of two of at least 512. tokens: of all training reviews, cut at data.max_tokens, before words are dropped:
    so another data.word_dropout leaves the batches as large as they are.
    """
    return min(8192, max(512, 2 ** int(math.log2(max(tokens, 1) / 400))))


class TrainBatches(Sampler[tuple[int, np.ndarray]]):
    """The batches of an epoch: random pools, sorted by length, cut under the budget, in random order.

    Deterministic in (seed, epoch), different in each epoch, and of the same number in each epoch: `len()` is what the
    schedule and Lightning count on. Every process plans the same, on any number of them; a rank later takes its part of
    each batch, which is empty where there are fewer reviews than ranks.
    Yields (a number to seed the batch's own random draws, indices of its reviews).

    Args:
        lengths_N: positions that each review will take in the batch.
        budget: padded tokens in one batch, over all ranks together.
        pool: reviews that are shuffled and sorted together; more of them pad less and mix less.
        done: says how many batches of the epoch that begins were trained on before its run was stopped.
    """

    def __init__(
        self,
        lengths_N: np.ndarray,
        budget: int,
        seed: int,
        pool: int = 8192,
        done: Callable[[], int] = lambda: 0,
    ):
        self.lengths_N, self.budget, self.seed, self.pool = lengths_N, budget, seed, pool
        self.epoch, self.done = 0, done
        sorted_whole = len(self._by_length(np.arange(len(lengths_N))))
        # Pools pad a little more than the whole sorted set; with this slack they give the same count in every epoch.
        slack = 1 + sorted_whole // 50 + len(lengths_N) // pool
        self.count = max(1, min(sorted_whole + slack, len(lengths_N)))

    def _by_length(self, order: np.ndarray) -> list[np.ndarray]:
        order = order[np.argsort(self.lengths_N[order], kind="stable")]
        return fill(order, self.lengths_N, self.budget)

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self.lengths_N))
        pools = [order[start : start + self.pool] for start in range(0, len(order), self.pool)]
        # Up and down in turn, so that the seam of two pools joins equal lengths.
        pools = [p[np.argsort(self.lengths_N[p], kind="stable")][:: 1 - 2 * (i % 2)] for i, p in enumerate(pools)]
        batches = fill(np.concatenate(pools), self.lengths_N, self.budget)
        if len(batches) > self.count:  # more than the slack (not seen): the whole set sorted always fits
            batches = self._by_length(order)
        batches = halve_to(batches, self.count)
        drawn = [(int(rng.integers(2**62)), batches[number]) for number in rng.permutation(len(batches))]
        yield from drawn[self.done() :]


class EvalBatches(Sampler[tuple[int, np.ndarray]]):
    """Every review once, longest first; rank r takes every `ranks`-th batch, and no review is repeated.

    Lightning leaves a process without batches out of the end of an epoch, where the scores are gathered: so a rank
    that has no review (there are fewer than ranks) gets a batch of none.
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


class Batches(Dataset[Batch]):
    """Turns what a sampler yields into padded batches.

    max_tokens, head_share, word_dropout, multiple, before: see `Ragged.batch`.
    rank, ranks: this process keeps every `ranks`-th review of each batch, from `rank` on. The random draws are made
    for the whole batch first, so that they don't depend on the number of processes.
    """

    def __init__(
        self,
        reviews: Ragged,
        max_tokens: int | None,
        head_share: float,
        word_dropout: float = 0.0,
        rank: int = 0,
        ranks: int = 1,
        multiple: int = 1,
        before: int = 0,
    ):
        self.reviews, self.rank, self.ranks = reviews, rank, ranks
        self.max_tokens, self.head_share, self.word_dropout = max_tokens, head_share, word_dropout
        self.multiple, self.before = multiple, before

    def __len__(self) -> int:
        return len(self.reviews)

    def __getitem__(self, item: tuple[int, np.ndarray]) -> Batch:
        seed, index = item
        cut = (self.max_tokens, self.head_share, self.word_dropout)
        batch = self.reviews.batch(torch.from_numpy(index), *cut, seed, self.multiple, self.before)
        part = slice(self.rank, None, self.ranks)
        return Batch(*(tensor[part] for tensor in batch[:-2]), reviews=batch.reviews)  # type: ignore[arg-type,misc]

    def lengths_N(self) -> np.ndarray:
        """Positions that each review takes in a batch."""
        kept_N = self.reviews.kept(self.reviews.lengths, self.max_tokens, self.word_dropout)
        return padded(kept_N.numpy(), self.multiple, self.max_tokens)
