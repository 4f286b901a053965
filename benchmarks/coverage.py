"""Simulates how often the intervals of a comparison contain the truth.

Conditional coverage is that among the draws whose seeds agree to 0.1 points, as they do by chance;
an interval that takes the spread of the seeds for the whole truth is too narrow there. Writes the
table of docs/coverage.md.

Suffixes: D draws, S seeds, P patterns of right and wrong answers of the seeds, Q points of a
quadrature.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from imdbattn.report import statistics

DIFFICULTY = 1.5  # standard deviation of the logits over reviews
AGREEMENT = 0.001 + 1e-9  # of the seeds' accuracies
MOST = 60_000  # draws of a cell
ENOUGH = 1_000  # draws whose seeds agree, after which a cell is complete
FEWEST = 100  # draws, below which no coverage is reported
PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"
MARKS = ("<!-- results -->", "<!-- end of the results -->")
AT_Q, WEIGHT_Q = np.polynomial.hermite_e.hermegauss(25)
WEIGHT_Q = WEIGHT_Q / WEIGHT_Q.sum()

Draw = tuple[bool, bool]  # whether the seeds agree, whether the interval contains the truth


def middle(accuracy: float, sd: float) -> float:
    """Returns the logit around which reviews and seeds vary, for a true accuracy."""
    total = np.hypot(DIFFICULTY, sd)
    return float(brentq(lambda m: (WEIGHT_Q * expit(m + total * AT_Q)).sum() - accuracy, -20, 20))


def answers(
    rng: np.random.Generator, logit_DS: np.ndarray, reviews: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the patterns (P, S) of right answers, and how many reviews of each draw have each
    (D, P).
    """
    seeds = logit_DS.shape[1]
    pattern_PS = np.array([*itertools.product((0.0, 1.0), repeat=seeds)])
    chance_DSQ = expit(logit_DS[:, :, None] + DIFFICULTY * AT_Q)
    chance_DPQ = np.ones((len(logit_DS), len(pattern_PS), len(AT_Q)))
    for seed in range(seeds):
        right_D1Q = chance_DSQ[:, seed, None]
        chance_DPQ *= np.where(pattern_PS[:, seed, None] == 1, right_D1Q, 1 - right_D1Q)
    chance_DP = chance_DPQ @ WEIGHT_Q
    counts_DP = rng.multinomial(reviews, chance_DP / chance_DP.sum(1, keepdims=True))
    return pattern_PS, counts_DP


def agree(accuracy_S: np.ndarray) -> bool:
    return bool(np.ptp(accuracy_S) <= AGREEMENT)


def contains(interval: tuple[float, float] | None, truth: float) -> bool:
    return interval is not None and interval[0] <= truth <= interval[1]


def of_accuracies(
    rng: np.random.Generator, accuracy: float, reviews: int, seeds: int, sd: float, folds: int = 1
) -> Iterator[Draw]:
    """Draws accuracies; folds: each seed trains a model for each fold of the reviews."""
    logit = middle(accuracy, sd)
    while True:
        parts = []
        for _ in range(folds):
            logit_DS = logit + rng.normal(0, sd, (500, seeds))
            parts.append(answers(rng, logit_DS, reviews // folds))
        for draw in range(500):
            rows = [np.repeat(pattern_PS, counts[draw], axis=0) for pattern_PS, counts in parts]
            right_NS = np.concatenate(rows)
            agreed = agree(right_NS.mean(0))
            yield agreed, contains(statistics.share_of(right_NS).interval, accuracy)


def of_differences(
    rng: np.random.Generator, accuracy: float, reviews: int, seeds: int, sd: float
) -> Iterator[Draw]:
    """Draws differences of two rungs that are equally good on average."""
    logit = middle(accuracy, sd)
    while True:
        logit_DS = logit + rng.normal(0, sd, (200, 2 * seeds))
        pattern_PS, counts_DP = answers(rng, logit_DS, reviews)
        for counts_P in counts_DP:
            right_NS = np.repeat(pattern_PS, counts_P, axis=0)
            old_NS = right_NS[:, :seeds]
            new_NS = right_NS[:, seeds:]
            agreed = agree(old_NS.mean(0)) and agree(new_NS.mean(0))
            yield agreed, contains(statistics.difference_of(new_NS, old_NS).interval, 0.0)


def of_numbers(
    rng: np.random.Generator, accuracy: float, reviews: int, seeds: int, sd: float
) -> Iterator[Draw]:
    """Draws numbers such as those of faithfulness, skewed over the reviews, around `accuracy`."""
    while True:
        review_N1 = 0.2 * (rng.exponential(size=(reviews, 1)) - 1)
        seed_S = rng.normal(0, 0.1 * sd, seeds)
        value_NS = accuracy + review_N1 + seed_S + rng.normal(0, 0.1, (reviews, seeds))
        yield agree(value_NS.mean(0)), contains(statistics.mean_of(value_NS).interval, accuracy)


def measured(draws: Iterator[Draw], seconds: float) -> list[str]:
    """Returns the share of intervals with the truth, that where seeds agree, and the number of the
    latter.
    """
    start = time.perf_counter()
    seen = []
    agreed = 0
    for draw in itertools.islice(draws, MOST):
        seen.append(draw)
        agreed += draw[0]
        late = len(seen) % 100 == 0 and time.perf_counter() - start > seconds
        if late or (agreed >= ENOUGH and len(seen) >= 2 * ENOUGH):
            break
    agreed_D, covered_D = np.array(seen).T
    conditional = f"{100 * covered_D[agreed_D].mean():.1f}" if agreed >= FEWEST else "–"
    return [f"{100 * covered_D.mean():.1f}", conditional, f"{agreed:,} of {len(seen):,}"]


def main(seconds: float) -> None:
    """Simulates all cells, and writes the table. seconds: the longest time of a cell."""
    kinds: dict[str, tuple[Callable[..., Iterator[Draw]], tuple[float, ...], dict[str, int]]] = {
        "accuracy": (of_accuracies, (0.5, 0.9, 0.99), {}),
        "difference": (of_differences, (0.5, 0.9, 0.99), {}),
        "accuracy, 5 folds": (of_accuracies, (0.9,), {"folds": 5}),
        "number": (of_numbers, (0.3,), {}),
    }
    head = "interval of", "truth", "reviews", "seeds", "seeds' sd", "coverage %"
    lines = [[*head, "where seeds agree %", "draws that agree"]]
    for name, (draw, truths, options) in kinds.items():
        for truth, reviews, seeds, sd in itertools.product(
            truths, (50, 500, 5000), (2, 3, 5), (0.0, 0.05)
        ):
            rng = np.random.default_rng([int(1000 * truth), reviews, seeds, int(100 * sd)])
            cells = measured(draw(rng, truth, reviews, seeds, sd, **options), seconds)
            lines.append([name, f"{truth:g}", f"{reviews:,}", str(seeds), f"{sd:g}", *cells])
            print(*lines[-1], sep="\t", flush=True)
    lines.insert(1, ["---"] * len(lines[0]))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
