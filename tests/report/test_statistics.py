"""The statistics equal other libraries and examples by hand, and hold in simulations."""

import itertools

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm
from statsmodels.stats.proportion import proportion_confint
from torchmetrics.functional.classification import multiclass_calibration_error

from imdbattn.report import statistics


def simulated(draws, seeds, spread, reviews=1000, shift=0.0):
    """The share of decided draws, and the share of intervals that contain the true difference, of
    two variants with easy and hard reviews, and with good and bad seeds.

    seeds: of each variant. spread: standard deviation of the logit over the seeds of each variant.
    shift: makes the second variant better.
    """
    normal = np.random.default_rng(9).normal(size=1_000_000)
    old, new = (1.8 + np.hypot(1.5, sd) * normal for sd in spread)
    true = expit(new + shift).mean() - expit(old).mean()
    results = []
    for draw in range(draws):
        rng = np.random.default_rng([draw, 7])
        difficulty_N1 = rng.normal(1.8, 1.5, (reviews, 1))
        logits = [
            gain + difficulty_N1 + rng.normal(0, sd, n)
            for gain, sd, n in zip((0.0, shift), spread, seeds, strict=True)
        ]
        old_NS, new_NS = (
            (rng.random(logit_NS.shape) < expit(logit_NS)).astype(float) for logit_NS in logits
        )
        estimate = statistics.estimate_difference(new_NS, old_NS)
        low, high = estimate.interval
        is_decided = statistics.verdict(estimate.p, estimate.mean) != "undecided"
        results.append((is_decided, low <= true <= high))
    return np.mean(results, axis=0)


@pytest.mark.parametrize(
    ("seeds", "sd"),
    [(3, 0.0), (3, 0.4), (1, 0.0)],
    ids=["reviews differ most", "seeds differ most", "two models"],
)
def test_without_a_difference_few_comparisons_are_decided(seeds, sd):
    decided, covered = simulated(300, (seeds, seeds), (sd, sd), reviews=600)
    assert decided <= 0.07  # 5 % and what chance adds in 300 draws
    assert covered >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.16])
@pytest.mark.parametrize(
    ("seeds", "spread", "least"),
    [((n, n), (sd, sd), 0.92) for n in (2, 3, 5) for sd in (0.0, 0.1, 0.4)]
    + [((3, 3), (0.4, 0.02), 0.92), ((3, 10), (0.4, 0.4), 0.92), ((2, 10), (0.4, 0.4), 0.84)],
)
def test_intervals_contain_the_true_difference_in_most_draws(seeds, spread, least, shift):
    """Against ten seeds the interval of two, which say little about their spread, is short."""
    decided, covered = simulated(600, seeds, spread, shift=shift)
    assert covered >= least
    assert shift or decided <= 1 - least


# --- intervals ------------------------------------------------------------------------------------


def errors(reviews, *wrong):
    """(N, S): all reviews right but these of each seed."""
    right_NS = np.ones((reviews, len(wrong)))
    for seed, places in enumerate(wrong):
        right_NS[list(places), seed] = 0
    return right_NS


FOUR_EACH = errors(81, range(4), range(4, 8))  # 95.06 % by both seeds


def test_seeds_that_agree_by_chance_have_an_interval_of_the_width_that_81_reviews_allow():
    """A bootstrap over reviews gives 91.4 to 98.8; the interval was 95.1 to 95.1 once."""
    mean, (low, high), _ = statistics.estimate_share(FOUR_EACH)
    assert mean == pytest.approx(77 / 81)
    assert low < 0.914
    assert high > 0.98


def test_seeds_that_agree_by_chance_count_with_the_noise_of_their_predictions():
    """By hand: both seeds have the same accuracy, so the mean square of the seeds is 0, and that of
    the rest, 4 of 160 (S - 1) (N - 1) x 1/2, takes its place.
    """
    agreeing = statistics.seeds_variance(FOUR_EACH)
    assert agreeing.variance == pytest.approx((8 * 2 * 0.25 / 80) / 81 / 2)
    _, (low, high), _ = statistics.estimate_difference(FOUR_EACH, errors(81, range(4)))
    gain = FOUR_EACH.mean(1) - errors(81, range(4)).mean(1)
    of_reviews = stats.t.interval(0.95, 82, 0, np.append(gain, (1, -1)).std(ddof=1) / np.sqrt(83))
    assert high - low > 1.02 * (of_reviews[1] - of_reviews[0])


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("end", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 81])
def test_an_accuracy_of_0_or_100_percent_has_the_interval_of_clopper_and_pearson(seeds, end, n):
    _, (low, high), _ = statistics.estimate_share(np.full((n, seeds), end))
    theirs = stats.binomtest(n * int(end), n).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((theirs.low, theirs.high))
    of_nine = statistics.estimate_share(np.full((9, seeds), end), n).interval
    assert of_nine == pytest.approx((theirs.low, theirs.high))


def test_the_interval_of_one_seed_is_that_of_clopper_and_pearson():
    _, interval, _ = statistics.estimate_share(errors(200, range(17)))
    theirs = stats.binomtest(183, 200).proportion_ci(0.95, "exact")
    assert interval == pytest.approx((theirs.low, theirs.high), abs=0.001)


def test_the_interval_of_several_seeds_is_that_of_korn_and_graubard():
    """Of two seeds with 95 and 80 %, the degrees of freedom are few."""
    right_NS = errors(200, range(10), range(40))
    parts = [statistics.reviews_variance(right_NS.mean(1)), statistics.seeds_variance(right_NS)]
    variance, freedom = statistics.total_variance(parts)
    narrow, wide = stats.t.ppf(0.975, (199, freedom))
    effective = 0.875 * 0.125 / variance * (narrow / wide) ** 2
    theirs = proportion_confint(0.875 * effective, effective, method="beta")
    assert statistics.estimate_share(right_NS).interval == pytest.approx(theirs)


@given(
    st.integers(10, 200), st.integers(1, 5), st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**6)
)
def test_no_interval_is_narrower_than_that_over_the_reviews(reviews, seeds, center, spread, draw):
    rng = np.random.default_rng(draw)
    chance_NS = np.clip(center + spread * rng.normal(size=(reviews, 1)), 0, 1)
    right_NS = (rng.random((reviews, seeds)) < chance_NS).astype(float)
    _, (low, high), _ = statistics.estimate_share(right_NS)
    assert 0 <= low <= right_NS.mean() <= high <= 1
    error = right_NS.mean(1).std(ddof=1) / np.sqrt(reviews)
    below, above = right_NS.mean() + stats.norm.interval(0.95)[0] * error * np.array([1, -1])
    assert high - low >= min(above, 1) - max(below, 0)
    of_one = proportion_confint(right_NS.mean() * reviews, reviews, method="beta")
    assert high - low >= of_one[1] - of_one[0] - 1e-9, "more seeds give no narrower interval"
    _, (low, high), _ = statistics.estimate_difference(right_NS, right_NS[:, :1])
    gain_N = right_NS.mean(1) - right_NS[:, 0]
    least = 2 * stats.norm.ppf(0.975) * gain_N.std(ddof=1) / np.sqrt(reviews)
    assert high - low >= min(least, 1) * reviews / (reviews + 2)


def test_components_of_the_variance_are_those_of_a_two_way_analysis_of_variance():
    """Without interactions, by statsmodels."""
    rng = np.random.default_rng(5)
    value_NS = rng.normal(size=(40, 1)) + rng.normal(0, 2, (1, 4)) + rng.normal(size=(40, 4))
    rows, columns = np.indices(value_NS.shape)
    table = pd.DataFrame({"y": value_NS.ravel(), "n": rows.ravel(), "s": columns.ravel()})
    squares = anova_lm(ols("y ~ C(n) + C(s)", table).fit())["mean_sq"]
    assert statistics.seeds_variance(value_NS) == pytest.approx((squares["C(s)"] / 160, 3))
    assert statistics.reviews_variance(value_NS.mean(1)) == pytest.approx(
        (squares["C(n)"] / 160, 39)
    )


@given(
    st.lists(st.floats(0.01, 10), min_size=2, max_size=2),
    st.lists(st.integers(2, 20), min_size=2, max_size=2),
)
def test_degrees_of_freedom_are_those_of_welchs_test(variances, seeds):
    rng = np.random.default_rng(0)
    samples = []
    for variance, count in zip(variances, seeds, strict=True):
        values = rng.normal(size=count)
        # the variance of the mean
        samples.append(values * np.sqrt(variance * count / values.var(ddof=1)))
    expected = stats.ttest_ind(*samples, equal_var=False).df
    parts = [statistics.Variance(v, n - 1) for v, n in zip(variances, seeds, strict=True)]
    assert statistics.total_variance(parts) == pytest.approx((sum(variances), expected))


def test_the_difference_of_two_models_is_that_of_bonett_and_price():
    """By hand: 30 gained and 14 lost of 400, each with one more of 402."""
    new, old = errors(400, range(14)), errors(400, range(14, 44))
    gained, lost = 31 / 402, 15 / 402
    error = np.sqrt((gained + lost - (gained - lost) ** 2) / 402)
    mean, (low, high), p = statistics.estimate_difference(new, old)
    assert mean == pytest.approx(16 / 400)
    assert (low + high) / 2 == pytest.approx(gained - lost)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 401) * error, rel=0.002)
    assert p == pytest.approx(2 * stats.t.sf((gained - lost) / error, 401), rel=0.01)
    assert np.mean(statistics.estimate_difference(new, old, False).interval) == pytest.approx(0.04)
    assert statistics.estimate_difference(errors(2, ()), errors(2, ())).interval == (-1, 1)


# --- equal texts ----------------------------------------------------------------------------------


def test_the_variance_with_equal_texts_is_that_of_clusters_in_statsmodels():
    rng = np.random.default_rng(5)
    text_index_N, _ = pd.factorize(rng.integers(60, size=200))
    value_NS = rng.normal(size=(200, 1)) + text_index_N[:, None] / 30
    model = sm.OLS(value_NS[:, 0], np.ones(200))
    fitted = model.fit(cov_type="cluster", cov_kwds={"groups": text_index_N})
    value_T = statistics.by_text(value_NS, text_index_N)[:, 0]
    assert value_T.mean() == pytest.approx(value_NS.mean())
    assert statistics.reviews_variance(value_T).variance == pytest.approx(fitted.cov_params()[0, 0])


# --- metrics --------------------------------------------------------------------------------------


def accuracy(labels_N, probabilities_NC):
    return (probabilities_NC.argmax(1) == labels_N).mean()


@pytest.mark.parametrize("reviews", [150, 1000])
def test_the_interval_of_a_metric_that_is_a_mean_is_that_of_the_mean(reviews):
    """Of its means by text: the last fifth of the reviews has the texts of the first."""
    rng = np.random.default_rng(1)
    text_index_N = np.arange(reviews) % (reviews * 4 // 5)
    labels_N = rng.integers(2, size=reviews)
    chances = [rng.dirichlet((1, 1), reviews) for _ in range(2)]
    values = statistics.pseudo_values(accuracy, labels_N, chances, text_index_N)
    right_NS = np.stack([p_NC.argmax(1) == labels_N for p_NC in chances], axis=1).astype(float)
    assert len(values) == min(reviews * 4 // 5, statistics.GROUPS)
    assert values.mean(0) == pytest.approx(right_NS.mean(0))
    assert statistics.estimate_mean(np.full((2, 3), 0.1))[1:] == (None, 1.0), "only rounding varies"
    mean, interval, _ = statistics.estimate_mean(values)
    expected = statistics.estimate_mean(statistics.by_text(right_NS, text_index_N))
    assert interval == pytest.approx(expected.interval, abs=0.1 * (expected.interval[1] - mean))


def test_a_review_counts_once_with_several_seeds():
    """By hand, Durkalski et al. 2003: reviews as clusters; (sum d)^2 / sum d^2 = 20^2 / (40 x
    0.75^2 + 20 x 0.5^2).
    """
    gain_N = np.array([0.75] * 40 + [-0.5] * 20 + [0.0] * 100)
    assert statistics.mcnemar(gain_N) == pytest.approx(stats.chi2.sf(20**2 / 27.5, 1))
    assert statistics.mcnemar(gain_N) == pytest.approx(statistics.mcnemar(-gain_N))


@given(st.lists(st.sampled_from([1.0, 2 / 3, 1 / 3, -1 / 3, -2 / 3, -1.0]), max_size=10))
def test_few_discordant_reviews_are_tested_by_all_signs_of_their_gains(gains):
    signs = np.array(list(itertools.product((-1, 1), repeat=len(gains))))
    as_large = np.abs(signs @ np.abs(gains)) >= abs(sum(gains)) - 1e-9
    assert statistics.mcnemar(np.array([*gains, 0.0])) == pytest.approx(as_large.mean())


def test_p_values_are_corrected_as_by_holm():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_calibration_error_equals_that_of_torchmetrics(classes, seed):
    rng = np.random.default_rng(seed)
    probabilities, labels = rng.dirichlet(np.ones(classes), 200), rng.integers(classes, size=200)
    ours = statistics.calibration_error(probabilities.max(1), probabilities.argmax(1) == labels)
    theirs = multiclass_calibration_error(
        torch.tensor(probabilities),
        torch.tensor(labels),
        num_classes=classes,
        n_bins=statistics.BINS,
        norm="l1",
    )
    assert ours == pytest.approx(float(theirs), abs=1e-6)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200))
def test_each_review_is_in_the_length_slice_whose_name_matches_its_length(lengths):
    slices = statistics.length_slices(np.array(lengths), "words")
    assert (sum(mask.astype(int) for mask in slices.values()) == 1).all()
    for name, mask in slices.items():
        low, high = (int(word) for word in name.split() if word.isdigit())
        assert mask.tolist() == [low <= length <= high for length in lengths], name


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("nothing, and a knot", ["not"], False),
        ("I DON’T", ["n't"], True),
        ("is this a.b?", ["a.b"], True),
        ("is this aXb?", ["a.b"], False),
    ],
)
def test_a_slice_by_words_finds_whole_words(text, words, found):
    slices = statistics.word_slices(
        [text, " ".join(words), "xyz"], {"": words, "none of them has": ["qqq"]}
    )
    in_slice = {name: bool(mask[0]) for name, mask in slices.items()}
    assert in_slice == {"without “”": not found, "with “”": found}
