"""Promise 7, for one process: one job, one run folder, with everything in it."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from imdbattn.run_folder import SPLIT_FILES
from imdbattn.runs.fit import fit
from imdbattn.runs.score import score_run

FILES = {"config.yaml", "environment.json", "metrics.json", "metrics.csv", "pictures", "checkpoints"}
FILES |= {f"{split}{name}.parquet" for split in ("", "validation_") for name in ("predictions", "reviews")}


def test_a_run_leaves_all_its_files_and_nothing_else(trained):
    folder, metrics = trained("residual_pe", "pictures=true", "trainer.max_epochs=1")
    assert {file.name for file in folder.iterdir()} - {"evaluations", "explanations"} == FILES
    assert {file.name for file in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    assert not list(folder.rglob("*.tmp*"))


@pytest.mark.parametrize(("split", "prefix"), [("test", "test"), ("validation", "val")])
def test_predictions_agree_with_the_metrics_and_with_the_reviews(trained, world, split, prefix):
    folder, metrics = trained("residual_pe")
    table, texts = (pq.read_table(folder / name) for name in SPLIT_FILES[split])
    label, predicted, row = (table[name].to_numpy() for name in ("label", "predicted", "row"))
    assert len(row) == metrics[f"{prefix}_reviews"]
    assert (label == predicted).mean() == pytest.approx(metrics[f"{prefix}_accuracy"])
    with (world / "reviews.csv").open(newline="") as file:
        source = list(csv.DictReader(file))
    assert [source[number]["label"] for number in row] == [("neg", "pos")[number] for number in label]
    assert texts["row"].to_pylist() == row.tolist()
    assert texts["text"].to_pylist() == [source[number]["text"] for number in row]
    probabilities = np.stack(table["probabilities"].to_numpy())
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(probabilities.max(1), table["probability"].to_numpy())


def test_the_best_epoch_is_tested_and_not_the_last(trained):
    for seed in range(1, 9):  # which seed ends below its best depends on rounding
        folder, metrics = trained("mean", "optim.lr=3.0", "decay=none", f"seed={seed}")
        with (folder / "metrics.csv").open(newline="") as file:
            accuracies = [float(line["val/accuracy"]) for line in csv.DictReader(file) if line["val/accuracy"]]
        if accuracies[-1] < max(accuracies):
            break
    assert accuracies[-1] < max(accuracies), "no run tells the best epoch from the last"
    assert metrics["val_accuracy"] == pytest.approx(max(accuracies), abs=1e-6)


def test_an_overwritten_run_leaves_no_results_of_the_old_model(settings, small, tmp_path):
    words = [*small, "trainer.max_epochs=1"]
    fit(settings(*words, "model=residual_pe", "pictures=true"), tmp_path / "run")
    score_run(settings(f"run={tmp_path}/run", "trainer=cpu", "split=validation", config="evaluate"))
    fit(settings(*words, "model=mean"), tmp_path / "run")
    fit(settings(*words, "model=mean"), tmp_path / "expected")
    names = [sorted(file.name for file in (tmp_path / run).iterdir()) for run in ("run", "expected")]
    assert names[0] == names[1]
