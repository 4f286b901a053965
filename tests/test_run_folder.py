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


def test_predictions_agree_with_the_metrics(trained, world):
    folder, metrics = trained("residual_pe")
    table = pq.read_table(folder / "predictions.parquet")
    assert table.num_rows == metrics["test_reviews"]
    label, predicted, row = (table[name].to_numpy() for name in ("label", "predicted", "row"))
    assert (label == predicted).mean() == pytest.approx(metrics["test_accuracy"])
    with (world / "reviews.csv").open(newline="") as file:
        names = [line["label"] for line in csv.DictReader(file)]
    assert [names[number] for number in row] == [("neg", "pos")[number] for number in label]
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


@pytest.mark.parametrize("split", ["test", "validation"])
def test_predictions_and_texts_of_a_split_are_in_the_same_order(trained, world, split):
    folder, _ = trained("residual_pe")
    predictions, texts = (pq.read_table(folder / name) for name in SPLIT_FILES[split])
    assert predictions["row"].to_pylist() == texts["row"].to_pylist()
    with (world / "reviews.csv").open(newline="") as file:
        source = [line["text"] for line in csv.DictReader(file)]
    assert texts["text"].to_pylist() == [source[row] for row in texts["row"].to_pylist()]


def test_an_overwritten_run_leaves_no_results_of_the_old_model(settings, small, tmp_path):
    words = [*small, "trainer.max_epochs=1"]
    fit(settings(*words, "model=residual_pe", "pictures=true"), tmp_path / "run")
    score_run(settings(f"run={tmp_path}/run", "trainer=cpu", "split=validation", config="evaluate"))
    fit(settings(*words, "model=mean"), tmp_path / "run")
    fit(settings(*words, "model=mean"), tmp_path / "expected")
    names = [sorted(file.name for file in (tmp_path / run).iterdir()) for run in ("run", "expected")]
    assert names[0] == names[1]
