"""Each review is scored exactly once, on any number of processes."""

import json
import os
import shutil
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from imdbattn.data.plans import eval_plans
from imdbattn.data.ragged import BatchMaker, ragged_from_lists
from imdbattn.errors import UserError
from imdbattn.launch import fork
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.tasks.data_module import Loader
from imdbattn.tasks.reviews.module import ReviewClassifier
from tests.commands import label_texts


class Parrot(torch.nn.Module):
    """Says of a review how long it is."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return torch.stack([batch.lengths_B.float(), -batch.lengths_B.float()], 1) + self.unused


class Told(L.LightningDataModule):
    """Reviews of 1 to 5 words, of which every second is of the second class."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def test_dataloader(self) -> Loader:
        rows = range(self.size)
        reviews = ragged_from_lists([[3] * (1 + row % 5) for row in rows], [n % 2 for n in rows])
        maker = BatchMaker(reviews)
        ranks = self.trainer.global_rank, self.trainer.world_size
        return Loader(maker, eval_plans(maker.batch_lengths(), 8, *ranks), 1)


class Tells(ReviewClassifier):
    """Writes what has been scored."""

    def on_test_end(self) -> None:
        if self.trainer.is_global_zero:
            lengths, accuracy = self.scores.logits_NC[:, 0], self.scores.metrics["accuracy"]
            result = json.dumps([self.scores.items_N.tolist(), lengths.tolist(), accuracy])
            with open("scores.jsonl", "a") as file:
                file.write(f"{result}\n")


def test_each_review_is_scored_once_on_any_number_of_processes(settings, tmp_path, monkeypatch):
    """With two reviews in a batch, two of three have none, and must not make the other wait."""
    monkeypatch.chdir(tmp_path)
    module = Tells(Parrot(), settings(), {"vectors": ""})

    def score() -> None:
        own = {"accelerator": "cpu", "strategy": "ddp_fork", "use_distributed_sampler": False}
        own |= {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        trainer = L.Trainer(devices=3, **own)
        for size in (7, 2):
            trainer.test(module, Told(size), verbose=False)

    process = fork.start_fork(score, os.environ)
    process.join(60)
    assert process.exitcode == 0
    results = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
    (rows, lengths, accuracy), (few, _, _) = results
    assert rows == list(range(7))
    assert lengths == [1 + row % 5 for row in range(7)]
    # the parrot always says 0
    assert accuracy == pytest.approx(np.mean([row % 2 == 0 for row in range(7)]))
    assert few == [0, 1]


def test_changed_data_are_not_scored_as_the_data_of_the_run(small, settings, world, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text((world / "reviews.csv").read_text())
    fit(
        settings(*small, f"data.path={path}", "model=mean", "trainer.max_epochs=1"),
        tmp_path / "run",
    )
    path.write_text(path.read_text().replace("good", "fine"))
    for split in ("test", "train"):
        words = [f"run={tmp_path}/run", "trainer=cpu", f"split={split}"]
        with pytest.raises(UserError, match="its data have changed"):
            evaluate_run(settings(*words, config="evaluate"))


@pytest.fixture
def own_run(trained, tmp_path) -> tuple[Path, dict]:
    """Folder and metrics of a run, into which a test may write."""
    folder, metrics = trained("residual_pe")
    return shutil.copytree(folder, tmp_path / "run"), metrics


def test_a_score_on_the_data_of_training_is_not_called_a_test_accuracy(
    own_run, settings, world, tmp_path, caplog
):
    run = f"run={own_run[0]}"
    moved = shutil.copy(world / "reviews.csv", tmp_path / "moved.csv")
    other = tmp_path / "other.csv"
    other.write_text(moved.read_text().replace(" r1", " r2"))
    for path, trained_on in ((world / "reviews.csv", True), (moved, True), (other, False)):
        caplog.clear()
        evaluate_run(settings(run, f"data.path={path}", config="evaluate"))
        assert ("was trained on a part of these reviews" in caplog.text) == trained_on


def test_an_evaluation_with_other_settings_does_not_overwrite(own_run, settings, tmp_path):
    """The place of the cache is not one of them."""
    folder, metrics = own_run
    place = f"data.cache_dir={tmp_path}"
    evaluate_run(settings(f"run={folder}", "trainer=cpu", place, config="evaluate"))
    for change in ("data.max_tokens=3", "trainer.precision=bf16-mixed"):
        evaluate_run(settings(f"run={folder}", "trainer=cpu", change, config="evaluate"))
    written = [
        json.loads(file.read_text()) for file in (folder / "evaluations").glob("test-*.json")
    ]
    changes = [found["changed"] for found in written]
    assert sorted(changes, key=str) == [{"max_tokens": 3}, {"precision": "bf16-mixed"}, {}]
    assert written[changes.index({})]["accuracy"] == metrics["test_accuracy"]
    config = (folder / "config.yaml").read_text()
    config = config.replace("precision: 32-true", "precision: bf16-mixed")
    (folder / "config.yaml").write_text(config)
    half = evaluate_run(settings(f"run={folder}", "trainer=cpu", config="evaluate"))
    assert half["loss"] == written[changes.index({"precision": "bf16-mixed"})]["loss"]


def test_evaluate_gives_the_accuracy_that_training_gave(own_run, settings):
    folder, metrics = own_run
    for split, name in (("test", "test"), ("validation", "val")):
        words = [f"run={folder}", f"split={split}", "trainer=cpu"]
        found = evaluate_run(settings(*words, config="evaluate"))
        assert found["accuracy"] == metrics[f"{name}_accuracy"]
        assert found["count"] == metrics[f"{name}_count"]
        assert found["loss"] == pytest.approx(metrics[f"{name}_loss"], abs=1e-6)
        assert list((folder / "evaluations").glob(f"{split}-*.json"))


# All that is taken out at random in training, of the rung that has most of it.
TAKEN_OUT = ["data.word_dropout", "model.net.dropout", "model.net.layer.dropout"]
TAKEN_OUT.append("model.embedding.mixout")


def test_evaluation_and_prediction_read_whole_reviews_whatever_training_drops(
    trained, settings, tmp_path
):
    """Bit for bit, with trained weights, with and without an explanation."""
    folder, _ = trained("wide")
    texts = ["the film was a great story , and i do n't do it", "", "good, bad, and fine. " * 200]
    found = []
    for share in (0.0, 0.5):
        run = tmp_path / str(share)
        shutil.copytree(folder, run)
        config = OmegaConf.load(run / "config.yaml")
        for key in TAKEN_OUT:
            assert OmegaConf.select(config, key) is not None, key
            OmegaConf.update(config, key, share)
        OmegaConf.save(config, run / "config.yaml")
        scores = evaluate_run(settings(f"run={run}", "trainer=cpu", config="evaluate"))
        (table,) = (run / "evaluations").glob("test-*.parquet")
        said = []
        for explain in ("true", "false"):
            cfg = settings(f"run={run}", f"explain={explain}", config="predict")
            said.append([(one.output, one.probability) for one in label_texts(cfg, texts)[0]])
        assert said[0] == [(label, pytest.approx(share, abs=1e-6)) for label, share in said[1]]
        found.append((scores["accuracy"], scores["loss"], table.read_bytes(), said))
    assert found[0] == found[1]


@pytest.mark.parametrize("split", ["val", "test"])
def test_numbers_of_a_part_of_a_split_are_not_results(settings, small, tmp_path, split):
    """Comparisons would take them for those of the whole split."""
    part = f"trainer.limit_{split}_batches=1", "data.eval_batch_tokens=64"
    metrics = fit(settings(*small, "model=mean", "trainer.max_epochs=1", *part), tmp_path)
    assert split == "val" or metrics["test_count"] < 20
    assert (tmp_path / "debug.json").exists()
    assert not (tmp_path / "metrics.json").exists()
    whole = f"trainer.limit_{split}_batches=1.0"  # a share
    assert not settings(*small, whole).is_debug


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda batches: batches[:-1], r"\d+ of \d+ items of the validation split were scored"),
        (lambda batches: [*batches, batches[-1]], "an item was scored twice"),
    ],
    ids=["not scored", "scored twice"],
)
def test_a_run_in_which_an_item_was_not_scored_or_twice_fails(
    settings, small, tmp_path, monkeypatch, changed, message
):
    monkeypatch.setattr(
        "imdbattn.tasks.data_module.eval_plans", lambda *arguments: changed(eval_plans(*arguments))
    )
    with pytest.raises(RuntimeError, match=message):
        fit(
            settings(*small, "model=mean", "trainer.max_epochs=1", "data.eval_batch_tokens=64"),
            tmp_path,
        )
    assert not (tmp_path / "metrics.json").exists()
