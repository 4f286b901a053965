"""Which items form a batch: length buckets with a token budget, the same in every process.

Shape suffixes: N items of a split, B items of a batch.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

POOL = 8192  # items that are shuffled and sorted by length together


class Plan(NamedTuple):
    """A batch that is not made yet."""

    seed: int  # the seed of word dropout
    items_B: np.ndarray  # int64 indices of its items in their split


def split_by_budget(order: np.ndarray, lengths_N: np.ndarray, budget: int) -> list[np.ndarray]:
    """Splits `order` into batches of at most `budget` tokens with padding, or of a single item."""
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


class TrainPlans:
    """The batches of an epoch: random pools, sorted by length, divided by the budget, shuffled.

    Determined by seed and epoch; their number is the same in each epoch. All processes plan the
    same batches, and each takes its items of every batch, perhaps none.

    Args:
        lengths_N: positions that each item takes in a batch.
        budget: padded tokens in one batch, over all processes together.
        pool: items that are shuffled and sorted together; larger pools pad less and mix less. None
            sorts all items together, for lengths with few different values: batches then have few
            shapes, in an order that depends on the epoch only.
        done: returns how many batches of the starting epoch to skip, because a resumed run has
            trained on them.
        count: number of batches, each of about the same size, instead of what the budget gives.
    """

    def __init__(
        self,
        lengths_N: np.ndarray,
        budget: int,
        seed: int,
        pool: int | None = POOL,
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
        slack = 0
        if self.pool:
            slack = 1 + sorted_whole // 50 + len(self.lengths_N) // self.pool
        return max(1, min(sorted_whole + slack, len(self.lengths_N)))

    def _by_length(self, order: np.ndarray) -> list[np.ndarray]:
        # Without pools, items are sorted from long to short, so that the last items of a length are
        # batched with shorter ones.
        ascending = 1 if self.pool else -1
        order = order[np.argsort(ascending * self.lengths_N[order], kind="stable")]
        return split_by_budget(order, self.lengths_N, self.budget)

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Plan]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self.lengths_N))
        if self.pool is None:
            batches, numbers = self._by_length(order), np.random.default_rng(self.epoch)
            if len(batches) < self.count:
                batches = halve_to(batches, self.count)
        else:
            batches, numbers = self._by_pool(order, self.pool), rng
        drawn = [
            Plan(int(rng.integers(2**62)), batches[number])
            for number in numbers.permutation(len(batches))
        ]
        yield from drawn[self.done() :]

    def _by_pool(self, order: np.ndarray, size: int) -> list[np.ndarray]:
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        # Pools are alternately ascending and descending, so lengths are similar where two join.
        pools = [
            p[np.argsort(self.lengths_N[p], kind="stable")][:: 1 - 2 * (i % 2)]
            for i, p in enumerate(pools)
        ]
        batches = split_by_budget(np.concatenate(pools), self.lengths_N, self.budget)
        # The slack is too small (never observed); the whole set sorted always fits.
        if len(batches) > self.count:
            batches = self._by_length(order)
        return halve_to(batches, self.count)


class EvalPlans:
    """Every item exactly once, longest first; each process gets every `ranks`-th batch.

    A process without items gets an empty batch; without one, Lightning would skip the end of its
    epoch, which gathers scores.
    """

    def __init__(self, lengths_N: np.ndarray, budget: int, rank: int = 0, ranks: int = 1):
        batches = split_by_budget(np.argsort(-lengths_N, kind="stable"), lengths_N, budget)
        if len(batches) < ranks:
            batches = halve_to(batches, ranks)
        self.batches = batches[rank::ranks] or [np.array([], dtype=int)]

    def __iter__(self) -> Iterator[Plan]:
        return (Plan(0, items_B) for items_B in self.batches)

    def __len__(self) -> int:
        return len(self.batches)
