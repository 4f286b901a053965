"""A run leaves one folder with everything in it, which predicts the same elsewhere."""

import csv
import json
import shutil
import subprocess
from functools import cached_property

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from imdbattn.errors import UserError
from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.io.files import write_atomically
from imdbattn.runs import environment
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.settings.keys import hexdigest
from imdbattn.tasks.reviews.module import ReviewScores
from tests.commands import label_texts
from tests.marks import KINDS, slow_except
from tests.models import BEYOND, RUNGS
from tests.resuming import contents

FILES = {"config.yaml", "environment.json", "metrics.json", "metrics.csv", "pictures"}
FILES |= {"checkpoints", "predictions.parquet", "reviews.parquet"}
FILES |= {"validation_predictions.parquet", "validation_reviews.parquet"}


@pytest.fixture(scope="module")
def pictured(trained):
    """Folder and metrics of a run with pictures."""
    return trained("residual_pe", "pictures=true", "trainer.max_epochs=1")


def test_a_run_leaves_all_its_files_and_nothing_else(pictured):
    folder, metrics = pictured
    assert {file.name for file in folder.iterdir()} == FILES
    assert {file.name for file in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    assert not list(folder.rglob("*.tmp*"))


def test_a_line_that_a_run_is_writing_is_not_read(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,val/accuracy\n0,0.75\n1,0.8")
    assert Run(tmp_path).curves == {"val/accuracy": {1: 0.75}}


@pytest.mark.parametrize(("split", "prefix"), [("test", "test"), ("validation", "val")])
def test_predictions_agree_with_the_metrics_and_with_the_reviews(trained, world, split, prefix):
    folder, metrics = trained("residual_pe")
    table, texts = (pq.read_table(folder / name) for name in SPLIT_FILES[split])
    label, predicted, row = (table[name].to_numpy() for name in ("label", "predicted", "row"))
    assert len(row) == metrics[f"{prefix}_count"]
    assert (label == predicted).mean() == pytest.approx(metrics[f"{prefix}_accuracy"])
    with (world / "reviews.csv").open(newline="") as file:
        source = list(csv.DictReader(file))
    assert [source[number]["label"] for number in row] == [
        ("neg", "pos")[number] for number in label
    ]
    assert texts["row"].to_pylist() == row.tolist()
    assert texts["text"].to_pylist() == [source[number]["text"] for number in row]
    probabilities = np.stack(table["probabilities"].to_numpy())
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(probabilities.max(1), table["probability"].to_numpy())


def test_the_best_epoch_is_tested_and_not_the_last(settings, small, tmp_path, monkeypatch):
    """The predictions are those of a run that ends after the first epoch, which is the best."""
    words = [*small, "model=mean", "decay=none", "warmup=0"]
    fit(settings(*words, "trainer.max_epochs=1"), tmp_path / "first")
    course = iter([{"accuracy": 0.9, "loss": 1.0}])

    class Scores(ReviewScores):
        @cached_property
        def metrics(self) -> dict[str, float]:
            return next(course, {"accuracy": 0.5, "loss": 2.0})

    monkeypatch.setattr("imdbattn.tasks.reviews.module.ReviewScores", Scores)
    fit(settings(*words, "trainer.max_epochs=2"), tmp_path / "both")
    for name, (table, _) in SPLIT_FILES.items():
        tested, first = ((tmp_path / run / table).read_bytes() for run in ("both", "first"))
        assert tested == first, name


def test_an_overwritten_run_leaves_no_results_of_the_old_model_but_files_of_the_user(
    pictured, settings, small, tmp_path
):
    words = [*small, "trainer.max_epochs=1", "test=false"]
    shutil.copytree(pictured[0], tmp_path / "run")
    evaluate_run(
        settings(f"run={tmp_path}/run", "trainer=cpu", "split=validation", config="evaluate")
    )
    write_atomically(tmp_path / "run" / "explanations" / f"{hexdigest({})}.html", "")
    own = {"pictures/thesis.png": b"mine", "evaluations/notes.json": b"mine"}
    for name, content in own.items():
        (tmp_path / "run" / name).write_bytes(content)
    (tmp_path / "run" / "metrics.json").unlink()  # as if it had not finished
    fit(settings(*words, "model=mean"), tmp_path / "run")
    fit(settings(*words, "model=mean"), tmp_path / "expected")
    after = contents(tmp_path / "run")
    assert after.keys() == contents(tmp_path / "expected").keys() | own.keys()
    assert own.items() <= after.items()


@pytest.mark.parametrize("rung", slow_except(KINDS, [*RUNGS, *BEYOND]))
def test_it_loads_with_weights_only_and_is_small(trained, rung):
    folder, _ = trained(rung)
    for name in ("best", "last"):
        file = folder / "checkpoints" / f"{name}.ckpt"
        content = torch.load(file, weights_only=True)
        assert content["hyper_parameters"]["labels"] == ["neg", "pos"]
        assert not any("vectors" in key for key in content["state_dict"])
        assert file.stat().st_size < 2_000_000


def test_it_predicts_the_same_on_another_machine(trained, settings, world, tmp_path):
    """The folder is copied, reviews are gone, vectors elsewhere, and the cache is empty."""
    folder, _ = trained("residual_pe")
    text = "The film was great, and i do n't know a lovely story like it."
    here, _ = label_texts(settings(f"run={folder}", config="predict"), [text])
    copy, vectors = tmp_path / "run", tmp_path / "elsewhere.txt"
    shutil.copytree(folder, copy)
    shutil.copy(world / "vectors.txt", vectors)
    moved = [
        f"data.cache_dir={tmp_path}/cache",
        f"data.vectors.path={vectors}",
        "data.vectors.dim=10",
    ]
    there, _ = label_texts(settings(f"run={copy}", *moved, config="predict"), [text])
    assert there[0].probability == here[0].probability
    assert there[0].output == here[0].output


def test_other_vectors_are_refused(trained, settings, world, tmp_path):
    folder, _ = trained("mean")
    lines = (world / "vectors.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    elsewhere = [f"data.vectors.path={tmp_path}/other.txt", "data.vectors.dim=10"]
    with pytest.raises(UserError, match=r"trained with other vectors: .* data\.vectors as in"):
        label_texts(settings(f"run={folder}", *elsewhere, config="predict"), ["good"])


class Harm:
    def __reduce__(self):
        return (print, ("code ran",))


def test_a_checkpoint_with_code_in_it_is_refused(trained, settings, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(trained("mean")[0], copy)
    file = copy / "checkpoints" / "best.ckpt"
    torch.save({**torch.load(file, weights_only=True), "harm": Harm()}, file)
    with pytest.raises(
        UserError, match=r"best\.ckpt cannot be read: it contains something other than tensors"
    ):
        label_texts(settings(f"run={copy}", config="predict"), ["good"])
    assert "code ran" not in capsys.readouterr().out


def test_a_run_says_whether_its_checkout_had_uncommitted_files(tmp_path, monkeypatch):
    """Files outside conf/ and imdbattn/, which training does not read, do not count."""
    for file in ("conf/model/base.yaml", "imdbattn/train.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("# old")
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], [*name, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(environment, "PACKAGE", tmp_path / "imdbattn")
    states = []
    for file in (None, "notes.txt", "conf/model/mine.yaml"):
        if file:
            (tmp_path / file).write_text("# new")
        states.append(environment.environment()["uncommitted"])
    assert states == [False, False, True]
