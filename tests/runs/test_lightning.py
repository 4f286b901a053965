"""A module of one's own may do what Lightning allows, and callbacks of one's own are called."""

import csv
import re
import sys
from pathlib import Path

import pytest

from imdbattn.runs.fit import fit

OWN = """
import lightning as L
import torch

from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewData
from imdbattn.tasks.reviews.task import ReviewTask

CALLED = set()


class Logs(ReviewClassifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("mine/step", loss)
        self.log("mine/epoch", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=2)
        self.log_dict({"mine/both": loss}, on_step=True, on_epoch=True, batch_size=2)
        return loss


class Mapping(ReviewClassifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss, "steps": 3, "more": loss.detach()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert outputs["steps"] == 3


class Skips(ReviewClassifier):
    "Every other step."

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 2 else None


class OwnLoss(ReviewClassifier):
    "A step that calls neither that of ReviewClassifier nor add_to_epoch."

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch), batch.labels_B)


class Manual(ReviewClassifier):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss, retain_graph=True)
        optimizer.step()
        self.lr_schedulers().step()


class Plateau(ReviewClassifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val/loss"}


for kind in ReviewClassifier.__subclasses__():
    task = f"{kind.__name__}Task"
    globals()[task] = type(task, (ReviewTask,), {"module": kind, "__module__": __name__})


class FirstWord(ReviewData):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        batch.tokens_BT[:, 1:] = 0
        return batch


class FirstWordTask(ReviewTask):
    data = FirstWord


class Counts(L.Callback):
    def on_train_end(self, trainer, module):
        CALLED.add("callback")
"""
MODULES = re.findall(r"^class (\w+)\(ReviewClassifier\)", OWN, re.MULTILINE)


@pytest.fixture
def own(own_module) -> Path:
    return own_module("lit", OWN).parent


@pytest.fixture
def trained_with(own, settings, small):
    """trained_with(overrides...): the metrics of a run in own/run with them."""

    def train(*overrides: str) -> dict:
        words = ["model=mean", "model.embedding.trainable=true", "trainer.max_epochs=1"]
        return fit(settings(*small, *words, *overrides), own / "run")

    return train


def curves(folder: Path) -> list[dict[str, str]]:
    return [*csv.DictReader((folder / "run" / "metrics.csv").open())]


def columns(folder: Path) -> set[str]:
    return {name for row in curves(folder) for name, value in row.items() if value}


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_of_ones_own_may_do_what_lightning_allows(own, trained_with, kind):
    words = [f"task._target_=lit.{kind}Task", "trainer.log_every_n_steps=2"]
    if kind == "Manual":  # Lightning refuses to clip then
        words.append("trainer.gradient_clip_val=null")
    metrics = trained_with(*words)
    assert metrics["test_count"] > 0
    assert kind != "Logs" or columns(own) >= {"mine/step", "mine/epoch", "mine/both_epoch"}


@pytest.mark.parametrize(
    "words", ["[{_target_: lit.Counts}]", "{mine: {_target_: lit.Counts}, off: null}"]
)
def test_callbacks_are_a_list_or_a_mapping(trained_with, words):
    trained_with(f"+trainer.callbacks={words}")
    assert {"callback"} == sys.modules["lit"].CALLED


@pytest.mark.parametrize(
    "words", ["EMAWeightAveraging, decay: 0.9", "ModelPruning, pruning_fn: l1_unstructured"]
)
def test_the_weights_that_a_callback_changes_are_scored_as_they_were_validated(
    own, trained_with, words
):
    metrics = trained_with(
        f"+trainer.callbacks=[{{_target_: lightning.pytorch.callbacks.{words}}}]"
    )
    (validated,) = [float(row["val/loss"]) for row in curves(own) if row["val/loss"]]
    assert metrics["val_loss"] == pytest.approx(validated, rel=1e-5)


def test_a_hook_of_a_data_module_of_ones_own_is_called_in_validation_and_in_scoring(
    own, trained_with
):
    metrics = trained_with("task._target_=lit.FirstWordTask")
    (validated,) = [float(row["val/loss"]) for row in curves(own) if row["val/loss"]]
    assert metrics["val_loss"] == pytest.approx(validated, rel=1e-5)


def test_a_progress_bar_of_lightning_replaces_ours(trained_with, capfd, caplog):
    caplog.set_level("INFO")
    trained_with(
        "+trainer.callbacks=[{_target_: lightning.pytorch.callbacks.TQDMProgressBar}]",
        "trainer.enable_progress_bar=true",
    )
    output = capfd.readouterr()
    assert "Epoch 0" in output.out + output.err
    assert any(line.startswith("epoch 1/1  train loss") for line in caplog.messages)


def test_without_a_progress_bar_each_epoch_has_its_line(trained_with, caplog):
    caplog.set_level("INFO")
    trained_with("trainer.enable_progress_bar=false")
    assert any(line.startswith("epoch 1/1  train loss") for line in caplog.messages)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_a_progress_bar(own, trained_with, capfd, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "100")
    trained_with("trainer.enable_progress_bar=true", "data.batch_tokens=32")
    assert ("epoch 1/1 |" in capfd.readouterr().err) == terminal
