"""The few lengths to which items are padded on a GPU, or with data.max_padded_lengths, and the
training batches of few shapes that they allow.

Shape suffix: N items of a split.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from imdbattn.data.plans import TrainPlans, halve_to, split_by_budget
from imdbattn.data.ragged import BatchOptions


def with_few_lengths(items: Any, options: BatchOptions, count: int) -> BatchOptions:
    """Returns the options with at most `count` padded lengths, chosen for the least padding of the
    items of a BatchMaker.
    """
    side_lengths = getattr(items, "side_lengths", items.batch_lengths)
    return replace(options, padded_lengths=best_lengths(side_lengths(options), count))


def best_lengths(lengths_N: np.ndarray, count: int) -> list[int]:
    """Returns at most `count` of the lengths, ascending, to round up to with the least padding.

    The result is optimal, by dynamic programming over the different lengths.
    """
    values, times = np.unique(lengths_N, return_counts=True)
    before = np.concatenate([[0], times.cumsum()])  # number of shorter items
    # least[i]: fewest padded tokens of the items of values[:i]; without lengths, i must be 0
    least = np.full(len(values) + 1, np.inf)
    least[0] = 0
    starts = []  # starts[n][i]: the first value rounded up to the last of n + 1 lengths
    for _ in range(min(count, len(values))):
        # cost[i, start]: the items of values[start:i + 1] are rounded up to values[i].
        cost = least[None, :-1] + values[:, None] * (before[1:, None] - before[None, :-1])
        cost[np.triu_indices(len(values), 1)] = np.inf
        starts.append(np.concatenate([[0], cost.argmin(1)]))
        least = np.concatenate([[0], cost.min(1)])
    chosen, end = [], len(values)
    for start in reversed(starts):
        if end:
            chosen.append(int(values[end - 1]))
            end = int(start[end])
    return chosen[::-1]


class FewShapesPlans(TrainPlans):
    """The batches of an epoch for lengths with few different values, as on a GPU: all items are
    sorted together, so that batches have few shapes, in an order that depends on the epoch only.
    """

    def planned_count(self) -> int:
        return len(self.sorted_batches(np.arange(len(self.lengths_N))))

    def sorted_batches(self, order: np.ndarray) -> list[np.ndarray]:
        """Returns the batches of all items, from long to short: the last items of a length are
        batched with shorter ones.
        """
        order = order[np.argsort(-self.lengths_N[order], kind="stable")]
        return split_by_budget(order, self.lengths_N, self.budget)

    def shuffled_batches(self, rng: np.random.Generator) -> list[np.ndarray]:
        batches = self.sorted_batches(rng.permutation(len(self.lengths_N)))
        if len(batches) < self.count:
            batches = halve_to(batches, self.count)
        numbers = np.random.default_rng(self.epoch).permutation(len(batches))
        return [batches[number] for number in numbers]
