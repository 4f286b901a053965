"""Baselines: the formulas of their papers, the same rows as rungs, choices without test, ordinary run folders."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from scipy import sparse

from benchmarks import baselines
from imdbattn.errors import UserError

pytest.importorskip("sklearn")
FASTTEXT = pytest.mark.skipif(baselines.version(baselines.FASTTEXT) is None, reason="fastText is not installed")
NAMES = [pytest.param(name, marks=[FASTTEXT] * (name == "fasttext")) for name in baselines.BASELINES]


@pytest.fixture(scope="module")
def task(small):
    return baselines.read(["data.source=auto", *small])


@pytest.fixture(scope="module")
def folders(small, tmp_path_factory):
    """A run folder of each baseline, on the small world."""
    root = tmp_path_factory.mktemp("baselines")
    list(baselines.run_all(list(baselines.BASELINES), [1, 2], ["data.source=auto", *small], root))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_run_folder_has_the_same_rows_labels_and_texts_as_that_of_a_rung(folders, trained, name):
    rung, folder = trained("mean")[0], folders / f"{name}-s1"
    ours, theirs = (json.loads((place / "metrics.json").read_text()) for place in (folder, rung))
    for fact in ("test_set", "test_fingerprint", "val_fingerprint", "labels", "test_reviews", "val_reviews"):
        assert ours[fact] == theirs[fact]
    for file in ("predictions.parquet", "validation_predictions.parquet"):
        mine, other = (pq.read_table(place / file) for place in (folder, rung))
        assert mine.schema == other.schema
        assert mine.select(["row", "label", "length"]) == other.select(["row", "label", "length"])
        assert np.allclose(np.array(mine["probabilities"].to_pylist()).sum(1), 1)
    for file in ("reviews.parquet", "validation_reviews.parquet"):
        assert pq.read_table(folder / file) == pq.read_table(rung / file)
    assert ours["test_accuracy"] > 0.65
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.model.name, config.model.after, config.seed, config.data.source) == (name, None, 1, "path")
    assert "scikit-learn" in json.loads((folder / "environment.json").read_text())["versions"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_probabilities(folders, task, tmp_path, name):
    baselines.run(name, 1, task, tmp_path)
    again, first = (pq.read_table(place / "predictions.parquet") for place in (tmp_path, folders / f"{name}-s1"))
    assert again == first


@pytest.mark.slow
@FASTTEXT
def test_only_fasttext_runs_with_several_seeds(folders):
    assert {folder.name for folder in folders.iterdir() if folder.name.endswith("s2")} == {"fasttext-s2"}


def test_the_value_is_chosen_by_validation_and_test_is_scored_once(task, tmp_path, monkeypatch):
    scored = []

    def fit(features, task, value, seed):
        def logits_NC(split):
            scored.append((value, split))
            labels_N = task.labels_N(split).copy()
            wrong = {"validation": [3, 1, 2], "test": [0, 5, 0]}[split][value]
            labels_N[:wrong] = 1 - labels_N[:wrong]
            return np.eye(2)[labels_N]

        return baselines.Model(logits_NC, value)

    splits = {split: split for split in task.words}
    monkeypatch.setitem(baselines.BASELINES, "stub", baselines.Baseline(lambda task: splits, fit, "value", (0, 1, 2)))
    metrics = baselines.run("stub", 1, task, tmp_path)
    assert metrics["chosen"] == {"value": 1}
    assert scored == [(0, "validation"), (1, "validation"), (2, "validation"), (1, "test")]
    assert metrics["test_accuracy"] == pytest.approx(1 - 5 / metrics["test_reviews"])
    assert metrics["val_accuracy"] == pytest.approx(1 - 1 / metrics["val_reviews"])


def test_words_without_a_vector_are_counted(task):
    assert any("r0" in review.split() for words in task.words.values() for review in words)
    assert "r0" not in task.corpus.glove.words


def test_the_log_count_ratio_is_that_of_the_paper():
    counts_NF = sparse.csr_matrix([[1, 0, 1], [1, 1, 0], [0, 1, 0]])
    # Class 1 counts (2, 1, 1) + 1, of 7; class 0 counts (0, 1, 0) + 1, of 4.
    expected_F = np.log([(3 / 7) / (1 / 4), (2 / 7) / (2 / 4), (2 / 7) / (1 / 4)])
    assert np.allclose(baselines.log_count_ratio(counts_NF, np.array([1, 1, 0])), expected_F)


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_nb_svm_interpolates_between_the_svm_and_naive_bayes(task, beta):
    from sklearn.svm import LinearSVC

    features = baselines.BASELINES["nb_svm"].features(task)
    assert set(features["train"].data) == {1}
    model = baselines.nb_svm(features, task, 1.0, seed=1, beta=beta)
    labels_N, binary_NF = task.labels_N("train"), features["train"].toarray()
    ratio_F = baselines.log_count_ratio(features["train"], labels_N)
    svm = LinearSVC(C=1.0, fit_intercept=False, random_state=1).fit(sparse.csr_matrix(binary_NF * ratio_F), labels_N)
    weights_F = (1 - beta) * np.abs(svm.coef_[0]).sum() / svm.coef_.size + beta * svm.coef_[0]
    margin_N = (features["test"].toarray() * ratio_F) @ weights_F
    logits_NC = model.logits_NC(features["test"])
    logit_N = logits_NC[:, 1] - logits_NC[:, 0]
    assert np.allclose(logit_N / margin_N, logit_N[0] / margin_N[0], rtol=1e-3)
    assert logit_N[0] / margin_N[0] > 0


def test_a_slope_makes_calibrated_probabilities_and_changes_no_label():
    rng = np.random.default_rng(0)
    margin_N = rng.normal(size=20_000)
    labels_N = (rng.random(20_000) < 1 / (1 + np.exp(-3 * margin_N))).astype(int)
    assert baselines.slope_of(margin_N, labels_N) == pytest.approx(3, rel=0.05)
    assert baselines.slope_of(-margin_N, labels_N) > 0


@FASTTEXT
def test_the_logits_of_fasttext_give_its_own_probabilities(task, monkeypatch):
    import fasttext

    fitted = []
    train = fasttext.train_supervised
    monkeypatch.setattr(fasttext, "train_supervised", lambda *a, **k: fitted.append(train(*a, **k)) or fitted[-1])
    model = baselines.fasttext(task.words, task, 5, seed=1)
    logits_NC = model.logits_NC(task.words["test"])
    for words, logits_C in zip(task.words["test"][:20], logits_NC, strict=False):
        theirs = {label: probability for probability, label in fitted[0].f.predict(f"{words}\n", 2, 0.0, "strict")}
        ours_C = np.exp(logits_C) / np.exp(logits_C).sum()
        assert np.allclose(ours_C, [theirs["__label__0"], theirs["__label__1"]], atol=1e-4)


def test_fasttext_gets_the_reviews_in_random_order(task, monkeypatch):
    """It reads them in the order of its file, and IMDB is sorted by label."""

    class Seen(Exception):
        pass

    def train_supervised(file, **options):
        raise Seen(Path(file).read_text().splitlines())

    def lines(seed):
        with pytest.raises(Seen) as seen:
            baselines.fasttext(task.words, task, 5, seed)
        return seen.value.args[0]

    monkeypatch.setitem(sys.modules, "fasttext", SimpleNamespace(train_supervised=train_supervised))
    written = [
        f"__label__{label} {words}" for label, words in zip(task.labels_N("train"), task.words["train"], strict=True)
    ]
    assert sorted(lines(1)) == sorted(written)
    assert lines(1) == lines(1) != lines(2)
    assert lines(1) != written


def test_without_fasttext_the_others_run(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(baselines, "FASTTEXT", "no-such-package")
    found = list(baselines.run_all(["fasttext", "mean_glove"], [1], ["data.source=auto", *small], tmp_path))
    assert [metrics["model"] for metrics in found] == ["mean_glove"]
    assert "fasttext is omitted: it needs pip install no-such-package" in capsys.readouterr().err


def test_wrong_settings_give_a_message_of_one_line(small):
    for override, message in (
        ("data.tokeniser=ptb", "data.tokeniser"),
        ("data.validation_share=2", "validation_share"),
    ):
        with pytest.raises(UserError, match=message) as error:
            baselines.read([*small, override])
        assert "\n" not in str(error.value)
