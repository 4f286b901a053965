"""An ensemble is the mean of its members' logits, and an ordinary run folder."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.ensemble import ensemble
from imdbattn.comparison.runs import find_runs
from imdbattn.errors import UserError
from imdbattn.run_folder import SPLIT_FILES


def probabilities(folder, split):
    table = pq.read_table(folder / SPLIT_FILES[split][0]).sort_by("row")
    return np.array(table["probabilities"].to_pylist()), table["label"].to_numpy()


def test_probabilities_are_the_geometric_mean_of_the_members(trained, tmp_path):
    members = [trained(rung)[0] for rung in ("mean", "residual")]
    metrics = ensemble(members, tmp_path / "both", "both", seed=3)
    assert metrics == json.loads((tmp_path / "both" / "metrics.json").read_text())
    for split, key in (("validation", "val_accuracy"), ("test", "test_accuracy")):
        product_NC = np.prod([np.sqrt(probabilities(folder, split)[0]) for folder in members], axis=0)
        found_NC, labels_N = probabilities(tmp_path / "both", split)
        np.testing.assert_allclose(found_NC, product_NC / product_NC.sum(1, keepdims=True), atol=1e-9)
        assert metrics[key] == pytest.approx((found_NC.argmax(1) == labels_N).mean())


def test_comparisons_read_it_with_its_reviews(trained, tmp_path):
    members = [trained(rung)[0] for rung in ("mean", "residual")]
    ensemble(members, tmp_path / "both", "both", seed=3)
    ((run,), _) = find_runs([tmp_path / "both"])
    assert (run.metrics["model"], run.metrics["seed"]) == ("both", 3)
    for split, (_, texts) in SPLIT_FILES.items():
        assert len(run.predictions(split).rows_N) == len(run.texts(split))
        assert pq.read_table(tmp_path / "both" / texts) == pq.read_table(members[0] / texts)


def test_runs_that_cannot_be_combined_are_refused_and_nothing_is_written(trained, tmp_path):
    mean, residual = (trained(rung)[0] for rung in ("mean", "residual"))
    other = trained("mean", "data.test_share=0.3")[0]
    cases = [([mean, mean], "is named twice"), ([mean, other], "has another test_set than")]
    for members, words in cases:
        with pytest.raises(UserError, match=words):
            ensemble(members, tmp_path / "none", "none", seed=1)
    assert not (tmp_path / "none").exists()
    ensemble([mean, residual], tmp_path / "both", "both", seed=1)
    with pytest.raises(UserError, match="is not empty: choose another --folder"):
        ensemble([mean, residual], tmp_path / "both", "both", seed=1)
