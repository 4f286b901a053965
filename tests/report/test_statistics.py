"""The comparison's statistics equal other libraries and examples by hand, and are calibrated in
simulations.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit
from statsmodels.stats.contingency_tables import mcnemar as mcnemar_of_statsmodels
from torchmetrics.functional.classification import multiclass_calibration_error

from imdbattn.report import statistics


def right_answers(rng, reviews, seeds, spread, shift=0.0):
    """(N, S) of each of several rungs: easy and hard reviews, good and bad seeds; `shift` makes the
    last one better.

    seeds: of each rung. spread: standard deviation of the logit over the seeds of each rung.
    """
    difficulty_N1 = rng.normal(1.8, 1.5, (reviews, 1))
    gains = [0.0] * (len(seeds) - 1) + [shift]
    logits = [
        gain + difficulty_N1 + rng.normal(0, sd, n)
        for gain, n, sd in zip(gains, seeds, spread, strict=True)
    ]
    return [rng.random(logit_NS.shape) < expit(logit_NS) for logit_NS in logits]


def compared(rungs, seed, resamples=400):
    """Verdict and interval of the second rung's difference from the first."""
    bootstrap = statistics.Bootstrap(rungs, resamples, seed)
    low, high = bootstrap.interval(1, 0)
    p = statistics.mcnemar(bootstrap.mean_NV[:, 1] - bootstrap.mean_NV[:, 0])
    return statistics.verdict(p, low, high), low, high


def simulated(draws, reviews=1000, seeds=(3, 3), spread=(0.0, 0.0), shift=0.0):
    """The share of decided draws, and the share of intervals that contain the true difference."""
    normal = np.random.default_rng(9).normal(size=1_000_000)
    old, to = (1.8 + np.hypot(1.5, sd) * normal for sd in spread)
    true = expit(to + shift).mean() - expit(old).mean()
    found = []
    for draw in range(draws):
        rungs = right_answers(np.random.default_rng([draw, 7]), reviews, seeds, spread, shift)
        decided, low, high = compared(rungs, draw)
        found.append((decided != "undecided", low <= true <= high))
    return np.mean(found, axis=0)


@pytest.mark.parametrize(
    ("seeds", "sd"),
    [pytest.param(3, 0.0, marks=pytest.mark.slow), (3, 0.4), (1, 0.0)],
    ids=["reviews differ most", "seeds differ most", "two models"],
)
def test_without_a_difference_few_comparisons_are_decided(seeds, sd):
    decided, covered = simulated(300, reviews=600, seeds=(seeds, seeds), spread=(sd, sd))
    assert decided <= 0.07  # 5 % and what chance adds in 300 draws
    assert covered >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.16])
@pytest.mark.parametrize(
    ("seeds", "spread", "least"),
    [((n, n), (sd, sd), 0.92) for n in (2, 3, 5) for sd in (0.0, 0.1, 0.4)]
    + [((3, 3), (0.4, 0.02), 0.92), ((3, 10), (0.4, 0.4), 0.92), ((2, 10), (0.4, 0.4), 0.86)],
)
def test_intervals_contain_the_true_difference_in_most_draws(seeds, spread, least, shift):
    """Two seeds say little about their spread: against many seeds of another rung, the interval is
    too short.
    """
    equal = len({*seeds}) == len({*spread}) == 1
    decided, covered = simulated(600, seeds=seeds, spread=spread, shift=shift)
    assert covered >= least
    assert shift or decided <= (0.065 if equal else 1 - least + 0.02)


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
    assert statistics.degrees_of_freedom(np.array(variances), np.array(seeds)) == pytest.approx(
        expected
    )


def test_a_single_seed_adds_no_degrees_of_freedom():
    assert statistics.degrees_of_freedom(np.array([0.5, 0.0]), np.array([4, 1])) == 3
    assert statistics.degrees_of_freedom(np.array([0.0, 0.0]), np.array([1, 1])) == 0


def test_the_interval_of_one_seed_equals_the_paired_bootstrap_of_scipy():
    one, other = right_answers(np.random.default_rng(3), 800, (1, 1), (0.0, 0.0), shift=0.3)
    _, low, high = compared((one, other), seed=0, resamples=10_000)
    gain = other[:, 0].astype(float) - one[:, 0]
    scipys = stats.bootstrap(
        (gain,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1)
    )
    assert (low, high) == pytest.approx(tuple(scipys.confidence_interval), abs=0.0025)


def test_without_variation_over_reviews_the_interval_is_that_of_student_t():
    """Of normal resamples it would be exactly mean +- t s / sqrt(S); of drawn seeds it is close to
    that.
    """
    accuracies = [np.random.default_rng(s).normal(0.85, 0.01, 12) for s in (0, 1)]
    shifts = statistics.seed_shifts(accuracies, 40_000, 0)
    low, high = statistics.interval(np.zeros(40_000), shifts[:, 1] - shifts[:, 0], 22)
    half = stats.t.ppf(0.975, 22) * np.sqrt(sum(values.var(ddof=1) / 12 for values in accuracies))
    assert (high - low) / 2 == pytest.approx(half, rel=0.03)
    small = statistics.seed_shifts([np.array([0.8, 0.9])], 1000, 0)
    assert set(np.round(np.unique(small) / np.sqrt(2), 9)) == {-0.05, 0.0, 0.05}
    assert not statistics.seed_shifts([np.array([0.8])], 1000, 0).any()


def test_a_resample_draws_the_same_reviews_for_all_rungs_and_depends_only_on_its_seed(monkeypatch):
    share_NV = np.random.default_rng(0).random((300, 1)) + np.array([0.0, 0.25])
    means = statistics.review_means(share_NV, 500, 1)
    np.testing.assert_allclose(means[:, 1] - means[:, 0], 0.25)
    assert means[:, 0].std() == pytest.approx(share_NV[:, 0].std() / np.sqrt(300), rel=0.1)
    np.testing.assert_array_equal(means, statistics.review_means(share_NV, 500, 1))
    assert (means != statistics.review_means(share_NV, 500, 2)).any()
    monkeypatch.setattr(statistics, "DRAWS", 1000)  # in many steps
    np.testing.assert_allclose(means, statistics.review_means(share_NV, 500, 1))


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_test_of_one_seed_equals_mcnemar_of_statsmodels(gained, lost):
    gain_N = np.array([1.0] * gained + [-1.0] * lost + [0.0] * 50)
    few = gained + lost < statistics.FEW
    theirs = mcnemar_of_statsmodels([[25, gained], [lost, 25]], exact=few, correction=False)
    assert statistics.mcnemar(gain_N) == pytest.approx(theirs.pvalue if gained + lost else 1.0)


def test_a_review_counts_once_with_several_seeds():
    """By hand, Durkalski et al. 2003: reviews as clusters; (sum d)^2 / sum d^2 = 20^2 / (40 x
    0.75^2 + 20 x 0.5^2).
    """
    gain_N = np.array([0.75] * 40 + [-0.5] * 20 + [0.0] * 100)
    assert statistics.mcnemar(gain_N) == pytest.approx(stats.chi2.sf(20**2 / 27.5, 1))
    assert statistics.mcnemar(gain_N) == pytest.approx(statistics.mcnemar(-gain_N))


@given(
    st.lists(st.sampled_from([1.0, 2 / 3, 1 / 3, -1 / 3, -2 / 3, -1.0]), min_size=1, max_size=10)
)
def test_few_discordant_reviews_are_tested_by_all_signs_of_their_gains(gains):
    signs = np.array(list(itertools.product((-1, 1), repeat=len(gains))))
    as_large = np.abs(signs @ np.abs(gains)) >= abs(sum(gains)) - 1e-9
    assert statistics.mcnemar(np.array([*gains, 0.0])) == pytest.approx(as_large.mean())


@pytest.mark.parametrize(("p", "low"), [(0.01, 0.0), (0.05, 0.1)])
def test_a_verdict_needs_the_test_and_the_interval(p, low):
    assert statistics.verdict(p, low, 0.2) == "undecided"
    assert statistics.verdict(0.01, 0.1, 0.2) == "better"


def test_seed_noise_is_the_variance_of_the_mean_of_a_review_that_is_due_to_seeds():
    """Every seed right with probability 0.7, whatever the review: p (1 - p) / S, and all of the
    mean's variance.
    """
    right_NS = np.random.default_rng(0).random((50_000, 4)) < 0.7
    assert statistics.seed_noise(right_NS) == pytest.approx(0.7 * 0.3 / 4, rel=0.02)
    assert statistics.seed_noise(right_NS) == pytest.approx(right_NS.mean(1).var(), rel=0.02)
    assert statistics.seed_noise(right_NS[:, :1]) == 0


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
        ("I do not like it", ["not"], True),
        ("nothing, and a knot", ["not"], False),
        ("I DON’T", ["n't"], True),
        ("I don\x92t", ["n't"], True),
        ("can'tankerous", ["n't"], False),
        ("a button, a rebut", ["but"], False),
        ("is this a.b?", ["a.b"], True),
        ("is this aXb?", ["a.b"], False),
    ],
)
def test_a_slice_by_words_finds_whole_words(text, words, found):
    slices = statistics.word_slices(
        [text, " ".join(words), "xyz"], {"": words, "none of them has": ["qqq"]}
    )
    assert {name: bool(mask[0]) for name, mask in slices.items()} == {
        "without “”": not found,
        "with “”": found,
    }
