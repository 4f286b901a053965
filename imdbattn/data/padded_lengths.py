"""The few lengths to which reviews are padded on a GPU, or with data.max_padded_lengths.

Shape suffix: N items of a split.
"""

import numpy as np


def best_lengths(lengths_N: np.ndarray, count: int) -> list[int]:
    """Returns at most `count` of the lengths, ascending: those to which all lengths can be rounded
    up with the least padding.

    Exact, by dynamic programming over the different lengths.
    """
    values, times = np.unique(lengths_N, return_counts=True)
    before = np.concatenate([[0], times.cumsum()])  # number of shorter items
    # padded tokens of the items below each value; none at first
    least = np.full(len(values) + 1, np.inf)
    least[0] = 0
    starts = []  # of the items of the last length, for each number of lengths and each end
    for _ in range(min(count, len(values))):
        # cost[end, start]: the items from `start` to before `end` are rounded up to the last of
        # them
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
