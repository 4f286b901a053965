"""What Lightning allows works: hooks and results of a LightningModule of one's own, callbacks, and
arguments of the Trainer.
"""

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imdbattn.runs.fit import fit

OWN = """
import lightning as L
import torch

from imdbattn.tasks.reviews.classifier import ReviewClassifier
from imdbattn.tasks.reviews.task import Reviews

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
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()


class OneOptimizer(ReviewClassifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Lists(ReviewClassifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Plateau(ReviewClassifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val/loss"}


class NoOptimizer(ReviewClassifier):
    def configure_optimizers(self):
        return None


class EndsEpochs(ReviewClassifier):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 3 else None


class OwnCallback(ReviewClassifier):
    def configure_callbacks(self):
        return [L.pytorch.callbacks.LambdaCallback(on_train_end=lambda *_: CALLED.add("callback"))]


def recorded(name):
    def hook(self, *arguments, **options):
        CALLED.add(name)
        return getattr(super(Hooks, self), name)(*arguments, **options)

    return hook


HOOKS = [
    "backward", "configure_gradient_clipping", "configure_model", "lr_scheduler_step",
    "on_after_backward", "on_after_batch_transfer", "on_before_backward",
    "on_before_batch_transfer", "on_before_optimizer_step", "on_before_zero_grad", "on_fit_end",
    "on_fit_start", "on_save_checkpoint", "on_test_batch_end", "on_test_batch_start", "on_test_end",
    "on_test_epoch_end", "on_test_epoch_start", "on_test_model_eval", "on_test_start",
    "on_train_batch_end", "on_train_batch_start", "on_train_end", "on_train_epoch_end",
    "on_train_epoch_start", "on_train_start", "on_validation_batch_end",
    "on_validation_batch_start", "on_validation_end", "on_validation_epoch_end",
    "on_validation_epoch_start", "on_validation_model_eval", "on_validation_start",
    "optimizer_step", "optimizer_zero_grad", "prepare_data", "setup", "teardown",
    "transfer_batch_to_device",
]
Hooks = type("Hooks", (ReviewClassifier,), {name: recorded(name) for name in HOOKS})
for kind in ReviewClassifier.__subclasses__():
    task = f"{kind.__name__}Task"
    globals()[task] = type(task, (Reviews,), {"module": kind, "__module__": __name__})


class Counts(L.Callback):
    def on_train_end(self, trainer, module):
        CALLED.add("callback")
"""
MODULES = re.findall(r"^class (\w+)\(ReviewClassifier\)", OWN, re.MULTILINE)


@pytest.fixture
def own(tmp_path, monkeypatch) -> Iterator[Path]:
    (tmp_path / "lit.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("lit", None)


@pytest.fixture
def trained_with(own, settings, small):
    """trained_with(overrides...): the metrics of a run in own/run with them."""

    def train(*overrides: str) -> dict:
        words = ["model=mean", "model.embedding.trainable=true", "trainer.max_epochs=1"]
        return fit(settings(*small, *words, *overrides), own / "run")

    return train


def columns(folder: Path) -> set[str]:
    rows = csv.DictReader((folder / "run" / "metrics.csv").open())
    return {name for row in rows for name, value in row.items() if value}


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_of_ones_own_may_do_what_lightning_allows(own, trained_with, kind):
    words = [f"task._target_=lit.{kind}Task", "trainer.log_every_n_steps=2"]
    if kind == "Manual":  # Lightning refuses to clip then
        words.append("trainer.gradient_clip_val=null")
    metrics = trained_with(*words)
    assert metrics["test_reviews"] > 0
    assert kind != "Logs" or columns(own) >= {"mine/step", "mine/epoch", "mine/both_epoch"}
    assert kind != "OwnCallback" or {"callback"} == sys.modules["lit"].CALLED


def test_every_hook_of_lightning_is_called(trained_with):
    trained_with("task._target_=lit.HooksTask")
    assert {*sys.modules["lit"].HOOKS} == sys.modules["lit"].CALLED


CALLBACKS = {
    "a list": "+trainer.callbacks=[{_target_: lit.Counts}]",
    "a mapping, as lightning-hydra-template has it": (
        "+trainer.callbacks={mine: {_target_: lit.Counts}, off: null}"
    ),
    "one callback": "+trainer.callbacks={_target_: lit.Counts}",
}


@pytest.mark.parametrize("words", CALLBACKS.values(), ids=CALLBACKS)
def test_callbacks_are_given_as_lightning_takes_them(trained_with, words):
    trained_with(words)
    assert {"callback"} == sys.modules["lit"].CALLED


@pytest.mark.parametrize("bar", ["RichProgressBar", "TQDMProgressBar"])
def test_a_progress_bar_of_lightning_replaces_ours(trained_with, capfd, caplog, bar):
    caplog.set_level("INFO")
    trained_with(
        f"+trainer.callbacks=[{{_target_: lightning.pytorch.callbacks.{bar}}}]",
        "trainer.enable_progress_bar=true",
    )
    output = capfd.readouterr()
    assert "Epoch 0" in output.out + output.err
    assert any(line.startswith("epoch 1/1  train loss") for line in caplog.messages)


ARGUMENTS = {
    "accumulation": "trainer.accumulate_grad_batches=2",
    "a share of the batches": "trainer.limit_train_batches=0.5",
    "one batch": "trainer.fast_dev_run=true",
    "the same batches": "trainer.overfit_batches=2",
    "no clipping": "trainer.gradient_clip_val=null",
    "clipped values": "+trainer.gradient_clip_algorithm=value",
    "validations within an epoch": "trainer.val_check_interval=3",
    "a profiler": "trainer.profiler=simple",
    "a summary": "trainer.enable_model_summary=true",
    "a limit of steps": "trainer.max_steps=5",
    "a limit of time": "trainer.max_time='00:00:10:00'",
    "no progress": "trainer.enable_progress_bar=false",
    "anomalies": "trainer.detect_anomaly=true",
    "data loaded again": "+trainer.reload_dataloaders_every_n_epochs=1",
}


@pytest.mark.parametrize("words", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_the_trainer_work(trained_with, words):
    assert trained_with(words)["steps"] > 0
