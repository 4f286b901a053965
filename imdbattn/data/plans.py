"""Which items form a batch: length buckets with a token budget, the same in every process.

Shape suffixes: N items of a split, B items of a batch. Lengths are positions in a batch.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np


class BatchPlan(NamedTuple):
    """A batch that has not been made yet."""

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
    """Halves the largest batch repeatedly, until there are `count`, or each has one item."""
    batches = sorted(batches, key=len)
    while len(batches) < count and len(batches[-1]) >= 2:
        largest = batches.pop()
        half = len(largest) // 2
        batches += [largest[:half], largest[half:]]
        batches.sort(key=len)
    return batches


class TrainPlans:
    """The batches of an epoch: random pools, sorted by length, divided by the budget, shuffled.

    They are determined by seed and epoch; their number is the same in each epoch. All processes
    plan the same batches, and each takes its share of every batch, which may be empty.

    Args:
        lengths_N: number of positions of each item in a batch.
        budget: number of padded tokens in one batch, over all processes together.
        batches_to_skip: returns the number of batches of the starting epoch that a resumed run has
            already trained on.
        count: number of batches of an epoch; if it is given, `budget` is not used.
    """

    pool = 8192  # items that are shuffled and sorted together; larger pools pad less and mix less

    def __init__(
        self,
        lengths_N: np.ndarray,
        budget: int,
        seed: int,
        batches_to_skip: Callable[[], int] = lambda: 0,
        count: int | None = None,
    ):
        self.lengths_N, self.budget, self.seed = lengths_N, budget, seed
        self.batches_to_skip = batches_to_skip
        self.epoch = 0
        if count:
            self.budget = max(1, int(lengths_N.sum()) // count)
            while self.planned_count() > count:
                self.budget += 1 + self.budget // 100
        self.count = count or self.planned_count()

    def planned_count(self) -> int:
        """Returns a number of batches that suffices in every epoch."""
        count = len(self.sorted_batches(np.arange(len(self.lengths_N))))
        # Pools need a few more batches than the whole set sorted.
        slack = 1 + count // 50 + len(self.lengths_N) // self.pool
        return max(1, min(count + slack, len(self.lengths_N)))

    def sorted_batches(self, order: np.ndarray) -> list[np.ndarray]:
        """Returns the batches of all items, from short to long; equal lengths keep this order."""
        order = order[np.argsort(self.lengths_N[order], kind="stable")]
        return split_by_budget(order, self.lengths_N, self.budget)

    def shuffled_batches(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Returns the batches of an epoch."""
        order = rng.permutation(len(self.lengths_N))
        pools: list[np.ndarray] = []
        for start in range(0, len(order), self.pool):
            items = order[start : start + self.pool]
            items = items[np.argsort(self.lengths_N[items], kind="stable")]
            # Every other pool is descending, so lengths are similar where two pools meet.
            pools.append(items[::-1] if len(pools) % 2 else items)
        batches = split_by_budget(np.concatenate(pools), self.lengths_N, self.budget)
        # If the slack was too small (never observed): the whole set, sorted, always fits.
        if len(batches) > self.count:
            batches = self.sorted_batches(order)
        batches = halve_to(batches, self.count)
        return [batches[number] for number in rng.permutation(len(batches))]

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[BatchPlan]:
        rng = np.random.default_rng([self.seed, self.epoch])
        batches = self.shuffled_batches(rng)
        plans = [BatchPlan(int(rng.integers(2**62)), items_B) for items_B in batches]
        yield from plans[self.batches_to_skip() :]


def eval_plans(
    lengths_N: np.ndarray, budget: int, rank: int = 0, ranks: int = 1
) -> list[BatchPlan]:
    """Returns this process's batches: over all processes, every item exactly once, longest first;
    each process gets every `ranks`-th batch.

    A process without items gets an empty batch; without a batch, Lightning would skip the end of
    the epoch, which gathers scores.
    """
    batches = split_by_budget(np.argsort(-lengths_N, kind="stable"), lengths_N, budget)
    of_rank = batches[rank::ranks] or [np.array([], dtype=int)]
    return [BatchPlan(0, items_B) for items_B in of_rank]
