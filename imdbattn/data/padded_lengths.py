"""The few lengths to which reviews are padded on a GPU, or with data.max_padded_lengths.

Shape suffix: N items of a split.
"""

import numpy as np


def best_lengths(lengths_N: np.ndarray, count: int) -> list[int]:
    """Returns at most `count` of the lengths, ascending, to round up to with the least padding.

    Exact, by dynamic programming over the different lengths.
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
