"""Simulates how often the intervals of a comparison contain the truth.

Conditional coverage is that among the draws whose seeds agree to 0.1 points, as they do by chance;
an interval that takes the spread of the seeds for the whole truth is too narrow there. Writes the
tables of benchmarks/coverage.md: `python benchmarks/coverage.py` that of the intervals of a
comparison, and its summary in docs/coverage.md, `python benchmarks/coverage.py methods` that of
other published methods.

Suffixes: D draws, S seeds, P patterns of right and wrong answers of the seeds, Q points of a
quadrature.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit

from imdbattn.report import statistics

DIFFICULTY = 1.5  # standard deviation of the logits over reviews
AGREEMENT = 0.001 + 1e-9  # of the seeds' accuracies
MOST = 60_000  # draws of a cell
ENOUGH = 1_000  # draws whose seeds agree, after which a cell is complete
FEWEST = 100  # draws, below which no coverage is reported
TABLES = Path(__file__).with_suffix(".md")
PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"  # has the summary
RUNGS = 8  # of a comparison, over which the variance of the seeds is pooled
REVIEWS = 5_000  # of the table of methods
REVIEW_SD = 0.2  # of numbers over reviews
PREDICTION_SD = 0.1  # of numbers over the predictions of one review
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
            yield agreed, contains(statistics.estimate_share(right_NS).interval, accuracy)


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
            yield agreed, contains(statistics.estimate_difference(new_NS, old_NS).interval, 0.0)


def of_numbers(
    rng: np.random.Generator, accuracy: float, reviews: int, seeds: int, sd: float
) -> Iterator[Draw]:
    """Draws numbers such as those of faithfulness, skewed over the reviews, around `accuracy`."""
    while True:
        review_N1 = REVIEW_SD * (rng.exponential(size=(reviews, 1)) - 1)
        seed_S = rng.normal(0, 0.1 * sd, seeds)
        noise_NS = rng.normal(0, PREDICTION_SD, (reviews, seeds))
        value_NS = accuracy + review_N1 + seed_S + noise_NS
        estimate = statistics.estimate_mean(value_NS)
        yield agree(value_NS.mean(0)), contains(estimate.interval, accuracy)


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


def methods(
    rng: np.random.Generator, seeds: int, sd: float, others: float, draws: int
) -> dict[str, str]:
    """Returns for each method how often its intervals of a number contain the truth, how often
    where the seeds agree, and their mean width, as a multiple of that with known variances.

    Means and mean squares of normal numbers are drawn, not the numbers themselves. sd: of the
    seeds. others: that of the seeds of the other RUNGS - 1 rungs, with which they are pooled.
    """
    freedom = seeds - 1
    noise = PREDICTION_SD**2 / REVIEWS
    true_review = (REVIEW_SD**2 + PREDICTION_SD**2 / seeds) / REVIEWS
    seed_DS = rng.normal(0, np.hypot(sd, noise**0.5), (draws, seeds))
    error_D = seed_DS.mean(1) + rng.normal(0, REVIEW_SD / REVIEWS**0.5, draws)
    agree_D = np.ptp(seed_DS, axis=1) <= AGREEMENT
    review_D = true_review * rng.chisquare(REVIEWS - 1, draws) / (REVIEWS - 1)
    square_D = seed_DS.var(1, ddof=1)
    other_D = (others**2 + noise) * rng.chisquare(freedom * (RUNGS - 1), draws) / freedom
    pooled_D = np.maximum((square_D + other_D) / RUNGS, noise) / seeds
    seed_D = np.maximum(square_D, noise) / seeds
    t_review = stats.t.ppf(statistics.UPPER_TAIL, REVIEWS - 1)
    t_seed = stats.t.ppf(statistics.UPPER_TAIL, freedom)
    true_error = REVIEW_SD**2 / REVIEWS + (sd**2 + noise) / seeds
    known = stats.norm.ppf(statistics.UPPER_TAIL) * np.sqrt(true_error)
    half = {
        "variances known": np.full(draws, known),
        "Satterthwaite (ours)": satterthwaite(review_D, seed_D, freedom),
        "Cochran & Cox": (review_D * t_review + seed_D * t_seed) / np.sqrt(review_D + seed_D),
        "Banerjee": np.sqrt(review_D * t_review**2 + seed_D * t_seed**2),
        "seeds pooled": satterthwaite(review_D, pooled_D, freedom * RUNGS),
        "Student, seeds only": t_seed * np.sqrt(square_D / seeds),
    }
    cells = {}
    for name, half_D in half.items():
        covered_D = np.abs(error_D) <= half_D
        shares = f"{100 * covered_D.mean():.1f}, {100 * covered_D[agree_D].mean():.1f}"
        cells[name] = f"{shares}, × {half_D.mean() / known:.2f}"
    return cells


def satterthwaite(review_D: np.ndarray, seed_D: np.ndarray, freedom: int) -> np.ndarray:
    """Returns half the width of intervals as statistics.estimate_mean makes them.

    freedom: of the variance of the seeds.
    """
    total_D = review_D + seed_D
    below_D = review_D**2 / (REVIEWS - 1) + seed_D**2 / freedom
    return stats.t.ppf(statistics.UPPER_TAIL, total_D**2 / below_D) * np.sqrt(total_D)


def compare_methods(draws: int = 400_000) -> None:
    """Writes the table of methods."""
    rows = []
    for seeds, sd, others in (
        *((2, sd, sd) for sd in (0.0, 0.0025, 0.005, 0.01, 0.025)),
        (2, 0.01, 0.005),
        *((3, sd, sd) for sd in (0.0, 0.0025, 0.005, 0.01)),
        (3, 0.01, 0.005),
    ):
        rng = np.random.default_rng([seeds, int(10_000 * sd), int(10_000 * others)])
        spreads = {"seeds": str(seeds), "seeds' sd": f"{sd:g}", "other rungs' sd": f"{others:g}"}
        rows.append(spreads | methods(rng, seeds, sd, others, draws))
        print(*rows[-1].values(), sep="\t", flush=True)
    write_table(TABLES, "methods", [list(rows[0]), *(list(row.values()) for row in rows)])


def summary(lines: list[list[str]]) -> list[list[str]]:
    """Returns the range of the coverage of each kind of interval. lines: of the table of cells."""
    rows = [["interval of", "coverage %", "where seeds agree %"]]
    for name, group in itertools.groupby(lines[1:], key=lambda line: line[0]):
        *_, coverage, conditional, _ = zip(*group, strict=True)
        rows.append([name, spread(coverage), spread(conditional)])
    return rows


def spread(cells: Iterable[str]) -> str:
    """Returns the least and the greatest of numbers, without those that are missing."""
    numbers = sorted(float(cell) for cell in cells if cell != "–")
    return f"{numbers[0]} to {numbers[-1]}" if numbers else "–"


def write_table(page: Path, name: str, lines: list[list[str]]) -> None:
    """Writes a table into a page, between the marks of that name. lines: the first is the head."""
    marked = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in marked)
    first = f"<!-- {name} -->"
    last = f"<!-- end of the {name} -->"
    before, _, rest = page.read_text().partition(first)
    after = rest.partition(last)[2]
    page.write_text(f"{before}{first}\n\n{table}\n\n{last}{after}")


def main(seconds: float) -> None:
    """Simulates all cells, and writes their table. seconds: the longest time of a cell."""
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
    write_table(TABLES, "results", lines)
    write_table(PAGE, "summary", summary(lines))


if __name__ == "__main__":
    if sys.argv[1:] == ["methods"]:
        compare_methods()
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
