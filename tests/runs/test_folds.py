"""Cross-validation tests each review once, and comparisons count its folds as one run."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdbattn.data.folds import cut_fold
from imdbattn.data.splits import Split, Texts
from imdbattn.errors import UserError
from tests.written_runs import REVIEWS, quick, quick_sets, write_run


def whole(labels, texts=None) -> Texts:
    labels = np.array(labels)
    texts = texts or [f"review {row}" for row in range(len(labels))]
    return Texts({"": Split(texts, labels, np.arange(len(labels)))}, [str(n) for n in range(4)])


def cut_into(texts: Texts, folds: int, validation=0.1) -> list[Texts]:
    return [
        cut_fold(texts, "s", {"validation": validation, "test": 0.5}, fold + 1, folds, None)
        for fold in range(folds)
    ]


@st.composite
def sources(draw):
    """Class numbers in any order, enough of each for every split, and a number of folds."""
    folds = draw(st.integers(2, 10))
    sizes = draw(st.lists(st.integers(20, 60), min_size=2, max_size=4))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1))).permutation(labels), folds


@given(sources(), st.floats(0.1, 0.4))
def test_folds_partition_the_reviews_in_consecutive_blocks_of_each_class(source, validation):
    labels, folds = source
    cuts = [one.splits for one in cut_into(whole(labels), folds, validation)]
    assert sorted(np.concatenate([one["test"].rows for one in cuts])) == list(range(len(labels)))
    for one in cuts:
        rows = np.concatenate([split.rows for split in one.values()])
        assert sorted(rows) == list(range(len(labels))), "the splits share nothing and lack nothing"
        assert all((np.diff(split.rows) > 0).all() for split in one.values())
    for label in np.unique(labels):
        places = np.full(len(labels), -1)
        places[labels == label] = np.arange((labels == label).sum())
        blocks = [[places[row] for row in one["test"].rows if places[row] >= 0] for one in cuts]
        assert [place for block in blocks for place in block] == list(range(places.max() + 1)), (
            "fold follows fold, each in one block"
        )
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
        for one, block in zip(cuts, blocks, strict=True):
            held_out = {places[row] for row in one["validation"].rows if places[row] >= 0}
            size = len(held_out)
            assert abs(size - validation * (places.max() + 1)) <= 0.5
            before = {(block[0] - 1 - n) % (places.max() + 1) for n in range(size)}
            assert held_out == before, "validation is the block before the fold"


@given(sources(), st.data())
def test_no_text_of_validation_or_test_is_trained_on_and_every_copy_is_tested(source, data):
    labels, folds = source
    texts = [f"review {row}" for row in range(len(labels))]
    for row in data.draw(st.lists(st.integers(0, len(labels) - 1), max_size=3)):
        texts[row] = texts[0]
    cuts = [one.splits for one in cut_into(whole(labels, texts), folds)]
    assert sorted(np.concatenate([one["test"].rows for one in cuts])) == list(range(len(labels)))
    for one in cuts:
        assert not set(one["train"].texts) & {*one["validation"].texts, *one["test"].texts}
        rows = np.concatenate([split.rows for split in one.values()])
        assert len(set(rows)) == len(rows)
        assert {texts[row] for row in range(len(labels))} == {
            text for split in one.values() for text in split.texts
        }


def test_the_fingerprint_of_folds_covers_all_reviews_in_order_and_the_number_of_folds():
    def prints(texts: Texts, folds=3) -> set[str]:
        return {one.facts["cross_validation"]["fingerprint"] for one in cut_into(texts, folds)}

    labels, texts = [0, 1] * 20, [f"text {n}" for n in range(40)]
    others = [whole([1, 0] * 20, texts), whole(labels, texts[::-1]), whole(labels[:-2], texts[:-2])]
    found = [
        prints(whole(labels, texts)),
        *map(prints, others),
        prints(whole(labels, texts), folds=4),
    ]
    assert [len(each) for each in found] == [1] * 5
    assert len(set.union(*found)) == 5


def write_folds(folder: Path, model="mean", seed=1, accuracy=0.8, folds=4, data="d", only=None):
    """The folders of all folds, or those in `only`, of the run that `write_run` makes."""
    written = []
    for fold in only or range(1, folds + 1):
        facts = {"folds": folds, "fold": fold, "fingerprint": f"{data}{folds}"}
        facts = {"cross_validation": facts, "test_set": f"small: fold {fold} of {folds} in blocks"}
        facts |= {"val_fingerprint": f"v{data}{fold}", "train_seconds": float(fold)}
        facts |= {"val_macro_f1": 0.1 * fold}
        facts |= {"parameters": 10, "test_fingerprint": f"{data}{folds}{fold}"}
        own = {"data__folds": folds, "data__fold": fold}
        one = folder / f"{model}-s{seed}-fold{fold}"
        write_run(one, model, seed, accuracy, metrics=facts, **own)
        # folds alternate in the source
        mask = np.arange(REVIEWS) * 7 % REVIEWS * folds // REVIEWS == fold - 1
        for name in ("predictions.parquet", "reviews.parquet"):
            pq.write_table(pq.read_table(one / name).filter(mask), one / name)
        curve = f"epoch,val/accuracy\n0,{0.1 * fold}\n" + "1,0.5\n" * (fold > 1)
        (one / "metrics.csv").write_text(curve)
        written.append(one)
    return written


@pytest.fixture(scope="module")
def four_folds(tmp_path_factory):
    """Two rungs, two seeds, four folds."""
    folder = tmp_path_factory.mktemp("folds")
    for model, accuracy in (("base", 0.85), ("mean", 0.7)):
        for seed in (1, 2):
            write_folds(folder, model, seed, accuracy + 0.01 * seed)
    return folder


def test_folds_are_compared_as_one_run_that_has_scored_every_review(four_folds, tmp_path):
    """The numbers are those of ordinary runs with the same predictions of all reviews."""
    for model, accuracy in (("base", 0.85), ("mean", 0.7)):
        for seed in (1, 2):
            write_run(tmp_path / f"{model}{seed}", model, seed, accuracy + 0.01 * seed)
    found, ordinary = quick(four_folds), quick(tmp_path)
    assert (found["count"], found["fingerprint"], found["split"]) == (REVIEWS, "d4", "test")
    assert found["test_set"] == "small: 4 folds in blocks"
    assert not found["skipped"]
    assert found["pairs"] == ordinary["pairs"]
    assert found["disagreements"] == ordinary["disagreements"], "texts and probabilities"
    assert [variant["label"] for variant in found["variants"]] == ["mean", "base"]
    for one, other in zip(found["variants"], ordinary["variants"], strict=True):
        assert one["test"]["values"] == pytest.approx(other["test"]["values"])
        for key in ("seeds", "interval", "ece", "confusion", "slices"):
            assert one[key] == other[key], key
    assert len(found["folders"]) == 16


def test_the_comparison_has_the_spread_over_folds_and_the_mean_of_each_fold(four_folds):
    found = quick(four_folds)
    variant, values = found["variants"][1], []
    for fold in (1, 2, 3, 4):
        files = four_folds.glob(f"base-s?-fold{fold}/predictions.parquet")
        tables = [pq.read_table(file).to_pandas() for file in files]
        values.append(np.mean([(one["label"] == one["predicted"]).mean() for one in tables]))
    assert variant["folds"]["values"] == pytest.approx(values)
    assert variant["folds"]["sd"] == pytest.approx(np.std(values, ddof=1))
    assert (variant["train_seconds"], variant["parameters"]) == (2.5, 10)
    assert variant["curves"]["val/accuracy"] == {"x": [1], "values": [[pytest.approx(0.25)]] * 2}
    variant = quick(four_folds, metric="macro_f1")["variants"][1]
    validation = variant["metric_validation"]  # selects the best variant
    assert validation["values"] == pytest.approx([0.25] * 2)


def test_a_missing_fold_is_named_and_the_others_of_its_run_are_omitted(four_folds, tmp_path):
    write_folds(tmp_path / "few", "residual", only=(1, 3))
    (one,) = write_folds(tmp_path / "untested", "residual_pe", only=(1,))
    (one / "predictions.parquet").unlink()
    write_folds(tmp_path / "untested", "residual_pe", only=(2, 3, 4))
    found = quick(four_folds, tmp_path)
    assert [variant["label"] for variant in found["variants"]] == ["mean", "base"]
    assert found["pairs"] == quick(four_folds)["pairs"]
    reasons = [skipped["reason"] for skipped in found["skipped"]]
    for name, missing, reason in zip(("", "_pe"), ("2, 4", "1"), reasons, strict=True):
        words = f"of residual{name}, seed 1: no test predictions of fold {missing} of 4"
        assert words in reason
    with pytest.raises(UserError, match=r"no run can be compared: .* of fold 2, 4 of 4"):
        quick(tmp_path / "few")


def test_folds_of_different_numbers_or_data_are_not_mixed(four_folds, tmp_path):
    write_folds(tmp_path / "five", "mean", folds=5)
    write_folds(tmp_path / "five", "base", folds=5)
    write_folds(tmp_path / "other", "mean", data="e")
    write_folds(tmp_path / "half", "residual", only=(1, 2))
    write_folds(tmp_path / "half", "residual", only=(3, 4), data="e")
    write_run(tmp_path / "plain", "mean")
    found = {one["fingerprint"]: one for one in quick_sets(four_folds, tmp_path)}
    labels = {name: [each["label"] for each in one["variants"]] for name, one in found.items()}
    both = ["mean", "base"]
    assert labels == {"f1": ["mean"], "d4": both, "d5": both, "e4": ["mean"]}
    assert found["d4"]["pairs"] == quick(four_folds)["pairs"]
    reasons = [skipped["reason"] for skipped in found["d4"]["skipped"]]
    assert ["fold 3, 4 of 4" in reasons[0], "fold 1, 2 of 4" in reasons[1]] == [True, True]
