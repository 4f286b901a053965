"""Intervals over seeds and reviews, paired tests, calibration and slices.

Suffixes of arrays: N reviews, V variants, S seeds, B resamples, C classes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

LEVEL = 0.95  # of the intervals
DRAWS = 4_000_000  # reviews drawn at a time: about 100 MB
FEW = 25  # with fewer discordant reviews, McNemar's test is exact
BINS = 15  # of confidence, as in Guo et al. 2017
APOSTROPHE = "['’ʼ´`\x92]"  # as found in reviews; x92 is from cp1252


def level(comparison: Mapping[str, Any]) -> str:
    """Of the intervals of a comparison, as text."""
    return f"{100 * comparison['method']['level']:g} %"


def review_means(share_NV: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """(B, V): means over N reviews drawn with replacement; a resample uses the same reviews in all
    columns.
    """
    count = len(share_NV)
    rng = np.random.default_rng((seed, 0))
    means_BV = np.empty((resamples, share_NV.shape[1]))
    step = max(1, DRAWS // count)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        times_BN = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        means_BV[start : start + size] = times_BN @ share_NV / count
    return means_BV


def seed_shifts(accuracies: Iterable[np.ndarray], resamples: int, seed: int) -> np.ndarray:
    """(B, V): change of the mean of a variant's S accuracies when S seeds are drawn with
    replacement.

    Widened by sqrt(S / (S - 1)), because a resample varies less than the population (Hesterberg
    2015, "What Teachers Should Know About the Bootstrap", section 3.2.1). 0 for a single seed,
    whose spread is unknown.
    """
    rng = np.random.default_rng((seed, 1))
    shifts = []
    for values_S in accuracies:
        count = len(values_S)
        means_B = values_S[rng.integers(count, size=(resamples, count))].mean(1)
        shifts.append((means_B - values_S.mean()) * np.sqrt(count / max(count - 1, 1)))
    return np.stack(shifts, axis=1)


def seed_noise(right_NS: np.ndarray) -> float:
    """Variance of a review's mean over S seeds that is due to the seeds, averaged over reviews; 0
    for one seed.
    """
    seeds = right_NS.shape[1]
    return float(right_NS.var(1, ddof=1).mean() / seeds) if seeds > 1 else 0.0


def degrees_of_freedom(variance_V: np.ndarray, seeds_V: np.ndarray) -> float:
    """Of the sum of the variances of V means over different numbers of seeds (Satterthwaite 1946;
    Welch 1947).
    """
    several_V = (seeds_V > 1) & (variance_V > 0)
    variance_V, seeds_V = variance_V[several_V], seeds_V[several_V]
    return (
        float(variance_V.sum() ** 2 / (variance_V**2 / (seeds_V - 1)).sum())
        if len(seeds_V)
        else 0.0
    )


def interval(
    means_B: np.ndarray, shifts_B: np.ndarray, freedom: float, noise: float = 0.0
) -> tuple[float, float]:
    """Percentile interval of the resampled means plus the shifts of the resampled seeds.

    freedom: degrees of freedom of the seeds' spread; the shifts are widened by the ratio of t to
    normal quantiles, because the spread is estimated from few seeds (Hesterberg 2015).
    noise: share of the reviews' variance that is `seed_noise`. It is removed, because the shifts
    contain it: seeds that differ in their correct reviews also differ in accuracy (Owen 2007, "The
    pigeonhole bootstrap").
    """
    from scipy import stats

    tail = (1 + LEVEL) / 2
    widening = stats.t.ppf(tail, freedom) / stats.norm.ppf(tail) if freedom > 0 else 1.0
    middle = means_B.mean()
    moved_B = middle + np.sqrt(max(0.0, 1 - noise)) * (means_B - middle) + widening * shifts_B
    low, high = np.quantile(moved_B, (1 - tail, tail))
    return float(low), float(high)


class Bootstrap:
    """The inputs of the intervals of V variants.

    values: (N, S) of each variant, such as whether a review is classified correctly. mean_NV: mean
    over seeds.
    """

    def __init__(self, values: Sequence[np.ndarray], resamples: int, seed: int):
        accuracies = [value_NS.mean(0) for value_NS in values]
        self.mean_NV = np.stack([value_NS.mean(1) for value_NS in values], axis=1)
        self.noise_V = np.array([seed_noise(value_NS) for value_NS in values])
        self.means_BV = review_means(self.mean_NV, resamples, seed)
        self.shifts_BV = seed_shifts(accuracies, resamples, seed)
        self.seeds_V = np.array(list(map(len, accuracies)))  # number of seeds of each variant
        self.variance_V = np.array(
            [a_S.var(ddof=1) / len(a_S) if len(a_S) > 1 else 0.0 for a_S in accuracies]
        )

    def interval(self, to: int, old: int | None = None) -> tuple[float, float]:
        """The interval of a variant's mean, or of its difference from that of `old`."""
        places, signs = ([to], [1]) if old is None else ([to, old], [1, -1])
        mean_N, means_B, shifts_B = (
            a[:, places] @ signs for a in (self.mean_NV, self.means_BV, self.shifts_BV)
        )
        noise = self.noise_V[places].sum() / max(mean_N.var(), 1e-12)
        freedom = degrees_of_freedom(self.variance_V[places], self.seeds_V[places])
        return interval(means_B, shifts_B, freedom, noise)


def mcnemar(gain_N: np.ndarray) -> float:
    """Two-sided p-value of McNemar's test with reviews as clusters of their pairs of seeds
    (Durkalski et al. 2003).

    gain_N: share of one variant's seeds that classify a review correctly, minus that of the other.
    For few discordant reviews the p-value is exact: that of random signs of the gains. With one
    seed each this is McNemar's original test without continuity correction or, for few discordant
    reviews, the exact (binomial) one.
    """
    from scipy import stats

    discordant_N = gain_N[gain_N != 0]
    if len(discordant_N) >= FEW:
        return float(stats.chi2.sf(discordant_N.sum() ** 2 / (discordant_N**2).sum(), 1))
    probabilities = {0.0: 1.0}  # of each sum of gains with random signs
    for gain in np.abs(discordant_N).tolist():
        longer: dict[float, float] = {}
        for total, probability in probabilities.items():
            for other in (round(total + gain, 9), round(total - gain, 9)):
                longer[other] = longer.get(other, 0.0) + probability / 2
        probabilities = longer
    least = abs(discordant_N.sum()) - 1e-6
    return min(
        1.0, sum(probability for total, probability in probabilities.items() if abs(total) >= least)
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number (Holm 1979)."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(p_values, method="holm")[1]] if len(p_values) else []


def verdict(p_value: float, low: float, high: float) -> str:
    """better or worse if both the test and the interval show a difference, else undecided.

    p_value: corrected for the number of comparisons. The test is about these trained models only;
    the interval also covers other seeds if a variant has several.
    """
    if p_value >= 0.05 or low <= 0 <= high:
        return "undecided"
    return "better" if low > 0 else "worse"


def calibration_error(confidence_N: np.ndarray, right_N: np.ndarray) -> float:
    """Expected calibration error (Guo et al. 2017, eq. 3): mean |accuracy - confidence| of 15 bins
    (i/15, (i+1)/15].
    """
    bins_N = np.clip(np.ceil(confidence_N * BINS).astype(int) - 1, 0, BINS - 1)
    return float(np.abs(np.bincount(bins_N, right_N - confidence_N)).sum() / len(confidence_N))


def length_slices(lengths_N: np.ndarray, unit: str) -> dict[str, np.ndarray]:
    """Name -> mask of reviews: five slices of similar size by length, or fewer if lengths
    repeat.
    """
    bounds = np.unique(np.quantile(lengths_N, (0.2, 0.4, 0.6, 0.8, 1), method="lower").astype(int))
    slices: dict[str, np.ndarray] = {}
    for below, bound in pairwise((-1, *bounds)):
        slices[f"{below + 1:,} to {bound:,} {unit}"] = (lengths_N > below) & (lengths_N <= bound)
    return slices


def word_slices(texts: Sequence[str], words: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Masks of the reviews without and with any word of each list, unless all or none have one.

    Words are whole words in any case; n't matches in don't.
    """
    slices: dict[str, np.ndarray] = {}
    for name, listed in words.items():
        pattern = re.compile("|".join(map(as_pattern, listed)), re.IGNORECASE)
        found_N = np.array([pattern.search(text) is not None for text in texts], dtype=bool)
        if 0 < found_N.sum() < len(texts):
            slices |= {f"without “{name}”": ~found_N, f"with “{name}”": found_N}
    return slices


def as_pattern(word: str) -> str:
    """Matches a whole word; one with an apostrophe, such as n't, also as the end of another."""
    pattern = re.sub(APOSTROPHE, APOSTROPHE, re.escape(word)) + r"(?!\w)"
    return pattern if re.search(APOSTROPHE, word) else r"(?<!\w)" + pattern
