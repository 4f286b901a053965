"""Intervals over seeds and reviews, paired tests, calibration and slices.

Intervals come from one model, a two-way layout of reviews x seeds. The variance of a mean is the
sum of two parts. The first is the variance over reviews of means over seeds. The second is the
variance over seeds of means over reviews. Both contain the noise of single predictions, as in the
quasi-F test of Clark 1973 ("The language-as-fixed-effect fallacy"), so the sum counts it twice. The
variance component of the seeds is never below zero (Searle, Casella & McCulloch 1992, "Variance
Components"): seeds that agree by chance do not make an interval narrower than their noise alone
would. Degrees of freedom follow Satterthwaite 1946. benchmarks/coverage.py simulates how often
these intervals contain the truth.

Suffixes of arrays: N reviews, S seeds, C classes, G groups of reviews, T different texts.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, SupportsFloat

import numpy as np

from imdbattn.tasks.metrics import Metric

LEVEL = 0.95  # level of the intervals
ALPHA = 0.05  # level of the tests
UPPER_TAIL = (1 + LEVEL) / 2
EXACT_BELOW = 25  # McNemar's test is exact for fewer discordant reviews
GROUPS = 200  # groups of reviews; the jackknife of a metric omits one at a time
BINS = 15  # bins of confidence, as in Guo et al. 2017
APOSTROPHE = "['’ʼ´`\x92]"  # apostrophes in reviews; x92 is from cp1252


# --- intervals ------------------------------------------------------------------------------------


class Variance(NamedTuple):
    """The variance of a mean, or a part of it, and the degrees of freedom of its estimate."""

    variance: float
    freedom: float


class Estimate(NamedTuple):
    """A mean, its interval, and the two-sided p-value of the hypothesis that it is 0.

    interval: None where the values do not vary: nothing is known about their spread, and p is 1.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float


def reviews_variance(value_N: np.ndarray) -> Variance:
    """Returns the variance of the mean of N values; 0 for a single one, whose spread is unknown."""
    count = len(value_N)
    if count < 2:
        return Variance(0.0, 0)
    return Variance(value_N.var(ddof=1) / count, count - 1)


def seeds_variance(value_NS: np.ndarray) -> Variance:
    """Returns the variance of the mean over S seeds that is due to the seeds; 0 for one seed.

    The mean square of the seeds contains the noise of single predictions. If it is smaller than the
    noise, the noise is used instead, so that the variance component is not negative.
    """
    reviews, seeds = value_NS.shape
    if seeds == 1:
        return Variance(0.0, 0)
    shift_S = value_NS.mean(0) - value_NS.mean()
    rest_NS = value_NS - value_NS.mean(1, keepdims=True) - shift_S
    noise = (rest_NS**2).sum() / max((reviews - 1) * (seeds - 1), 1) / reviews
    spread = (shift_S**2).sum() / (seeds - 1)
    return Variance(max(spread, noise) / seeds, seeds - 1)


def total_variance(parts: Sequence[Variance]) -> Variance:
    """Returns the sum of variances, with degrees of freedom by Satterthwaite 1946."""
    total = sum(part.variance for part in parts)
    used = [part for part in parts if part.variance > 0]
    below = sum(part.variance**2 / part.freedom for part in used)
    freedom = total**2 / below if used else max(part.freedom for part in parts)
    return Variance(float(total), float(freedom))


def t_estimate(mean: float, error: Variance) -> Estimate:
    """Returns the estimate by Student's t-distribution. error: the variance of the mean."""
    from scipy import stats

    deviation = float(np.sqrt(error.variance))
    if deviation <= 1e-12 * abs(mean):  # 0, or what rounding leaves of it
        return Estimate(mean, None, 1.0)
    half = float(stats.t.ppf(UPPER_TAIL, error.freedom)) * deviation
    p = 2 * float(stats.t.sf(abs(mean) / deviation, error.freedom))
    return Estimate(mean, (mean - half, mean + half), p)


def estimate_mean(value_NS: np.ndarray) -> Estimate:
    """Estimates the mean of numbers without known limits, over reviews and seeds."""
    error = total_variance([reviews_variance(value_NS.mean(1)), seeds_variance(value_NS)])
    return t_estimate(float(value_NS.mean()), error)


def estimate_share(value_NS: np.ndarray, reviews: float | None = None) -> Estimate:
    """Estimates a share, such as an accuracy: the mean of values from 0 to 1.

    The interval is by Clopper & Pearson 1934, for the effective number of reviews. This number is
    share x (1 - share) / variance, corrected for the degrees of freedom (Korn & Graubard 1998,
    "Confidence intervals for proportions with small expected number of positive counts estimated
    from survey data"). The interval has a width even at 0 % and 100 %. As in that paper, the
    effective number is at most `reviews`, by default N: more seeds never make the interval narrower
    than one seed does. The p-value has no meaning here, and is 1.
    """
    from scipy import stats

    count = len(value_NS)
    most = count if reviews is None else reviews
    share = float(np.clip(value_NS.mean(), 0, 1))
    error = total_variance([reviews_variance(value_NS.mean(1)), seeds_variance(value_NS)])
    effective = min(share * (1 - share) / error.variance, most) if error.variance > 0 else most
    if error.freedom > 0 and count > 1:
        wide = stats.t.ppf(UPPER_TAIL, error.freedom)
        narrow = stats.t.ppf(UPPER_TAIL, count - 1)
        effective *= min(narrow / wide, 1.0) ** 2
    right = share * effective
    wrong = (1 - share) * effective
    low = float(stats.beta.ppf(1 - UPPER_TAIL, right, wrong + 1)) if share > 0 else 0.0
    high = float(stats.beta.ppf(UPPER_TAIL, right + 1, wrong)) if share < 1 else 1.0
    return Estimate(share, (low, high), 1.0)


def estimate_difference(new_NS: np.ndarray, old_NS: np.ndarray, bounded: bool = True) -> Estimate:
    """Estimates a paired difference of means over the same reviews.

    The numbers of seeds may differ.

    bounded: the values are from 0 to 1. Then two reviews are added for the interval and the
    p-value, one gained and one lost (Bonett & Price 2012, "Adjusted Wald confidence interval for a
    difference of binomial proportions based on paired data"). The interval then has a width even if
    no review was gained or lost.
    """
    gain_N = new_NS.mean(1) - old_NS.mean(1)
    with_two = np.append(gain_N, (1.0, -1.0)) if bounded else gain_N
    error = total_variance(
        [reviews_variance(with_two), seeds_variance(new_NS), seeds_variance(old_NS)]
    )
    estimate = t_estimate(float(with_two.mean()), error)
    interval = estimate.interval
    if bounded and interval is not None:
        low, high = interval
        interval = (max(low, -1.0), min(high, 1.0))
    return Estimate(float(gain_N.mean()), interval, estimate.p)


def by_text(value_NS: np.ndarray, text_index_N: np.ndarray) -> np.ndarray:
    """Returns (T, S): one value per text; intervals treat texts as they otherwise treat reviews.

    A model predicts the same for equal texts, so their reviews are not independent draws. The
    value of a text is the mean over all reviews, plus T / N times the deviations of its own
    reviews. The mean remains the same. Its variance is computed as for a sample of clusters of
    different sizes (Cochran 1977, "Sampling Techniques", section 9A). Without equal texts, nothing
    changes.

    text_index_N: the number of the text of each review, from 0, as by pandas.factorize.
    """
    texts = int(text_index_N.max(initial=-1)) + 1
    if texts == len(text_index_N):
        return value_NS
    mean_S = value_NS.mean(0)
    deviations_TS = np.zeros((texts, value_NS.shape[1]))
    np.add.at(deviations_TS, text_index_N, value_NS - mean_S)
    return mean_S + deviations_TS * texts / len(text_index_N)


def pseudo_values(
    metric: Metric,
    labels_N: np.ndarray,
    probabilities: Sequence[np.ndarray],
    text_index_N: np.ndarray,
) -> np.ndarray:
    """Returns (G, S): one value of a metric per group of reviews, from which intervals are
    computed.

    The values are the jackknife's pseudo-values (Tukey 1958): GROUPS groups of reviews are omitted,
    one at a time. They are shifted so that their mean is the metric on all reviews. For a metric
    that is a mean over reviews, the value of a group is its own mean. A group has every G-th text.
    probabilities: (N, C) of each seed. text_index_N: see `by_text`. Raises ValueError if the metric
    is not a finite number.
    """
    group_N = text_index_N % GROUPS
    groups = int(group_N.max()) + 1
    columns = []
    for probabilities_NC in probabilities:
        whole = finite(metric(labels_N, probabilities_NC))
        without_G = []
        for group in range(groups):
            kept_N = group_N != group
            without_G.append(finite(metric(labels_N[kept_N], probabilities_NC[kept_N])))
        value_G = groups * whole - (groups - 1) * np.array(without_G)
        columns.append(value_G - value_G.mean() + whole)
    return np.stack(columns, axis=1)


def finite(value: SupportsFloat) -> float:
    """Returns the value as a number. Raises ValueError if it is infinite or NaN."""
    number = float(value)
    if not np.isfinite(number):
        raise ValueError(f"it is {number:g} on some of the reviews")
    return number


# --- tests ----------------------------------------------------------------------------------------


def mcnemar(gain_N: np.ndarray) -> float:
    """Returns the two-sided p-value of McNemar's test with reviews as clusters of their pairs of
    seeds (Durkalski et al. 2003).

    For few discordant reviews, the p-value is exact: each gain has a random sign. With one seed
    each, this is McNemar's original test without continuity correction, or, for few discordant
    reviews, the exact (binomial) test.

    gain_N: share of one variant's seeds that classify a review correctly, minus the other
    variant's share.
    """
    from scipy import stats

    discordant_N = gain_N[gain_N != 0]
    if len(discordant_N) >= EXACT_BELOW:
        return float(stats.chi2.sf(discordant_N.sum() ** 2 / (discordant_N**2).sum(), 1))
    probabilities = {0.0: 1.0}  # sum of gains with random signs -> probability
    for gain in np.abs(discordant_N).tolist():
        with_gain: dict[float, float] = defaultdict(float)
        for total, probability in probabilities.items():
            with_gain[round(total + gain, 9)] += probability / 2
            with_gain[round(total - gain, 9)] += probability / 2
        probabilities = with_gain
    least = abs(discordant_N.sum()) - 1e-6
    extreme = [share for total, share in probabilities.items() if abs(total) >= least]
    return min(1.0, sum(extreme))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values, corrected for the number of tests (Holm 1979)."""
    from statsmodels.stats.multitest import multipletests

    if len(p_values) == 0:
        return []
    _, corrected, _, _ = multipletests(p_values, method="holm")
    return [float(p) for p in corrected]


def verdict(p_value: float, difference: float) -> str:
    """Returns "better" or "worse" if the test shows a difference, else "undecided".

    p_value: corrected for the number of comparisons.
    """
    if p_value >= ALPHA:
        return "undecided"
    return "better" if difference > 0 else "worse"


# --- calibration and slices -----------------------------------------------------------------------


def calibration_error(confidence_N: np.ndarray, right_N: np.ndarray) -> float:
    """Returns the expected calibration error (Guo et al. 2017, eq. 3): the mean of |accuracy -
    confidence| over 15 bins (i/15, (i+1)/15].
    """
    bins_N = np.clip(np.ceil(confidence_N * BINS).astype(int) - 1, 0, BINS - 1)
    return float(np.abs(np.bincount(bins_N, right_N - confidence_N)).sum() / len(confidence_N))


def length_slices(lengths_N: np.ndarray, unit: str) -> dict[str, np.ndarray]:
    """Returns a mask of reviews for each slice by length, by the name of the slice.

    There are five slices of similar size, or fewer if lengths repeat.
    """
    bounds = np.unique(np.quantile(lengths_N, (0.2, 0.4, 0.6, 0.8, 1), method="lower").astype(int))
    slices: dict[str, np.ndarray] = {}
    for below, bound in pairwise((-1, *bounds)):
        slices[f"{below + 1:,} to {bound:,} {unit}"] = (lengths_N > below) & (lengths_N <= bound)
    return slices


def word_slices(texts: Sequence[str], words: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Returns masks of the reviews with and without a word of each list. Omits empty slices.

    Words are whole words in any case; n't matches in don't.
    """
    slices: dict[str, np.ndarray] = {}
    for name, listed in words.items():
        pattern = re.compile("|".join(map(as_pattern, listed)), re.IGNORECASE)
        has_word_N = np.array([pattern.search(text) is not None for text in texts], dtype=bool)
        if 0 < has_word_N.sum() < len(texts):
            slices |= {f"without “{name}”": ~has_word_N, f"with “{name}”": has_word_N}
    return slices


def as_pattern(word: str) -> str:
    """Returns a pattern for a whole word; a word with an apostrophe, like n't, may end another."""
    pattern = re.sub(APOSTROPHE, APOSTROPHE, re.escape(word)) + r"(?!\w)"
    return pattern if re.search(APOSTROPHE, word) else r"(?<!\w)" + pattern
