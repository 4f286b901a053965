"""A training step that is recorded and replayed computes what an eager one computes, and a run of
recorded steps counts, logs, validates, stops and resumes as one of eager steps.

On a CPU, with the stand-in for CUDA graphs in tests/recording.py.
"""

import logging
import os
import signal

import lightning as L
import pytest
import torch

from imdbattn.data.ragged import BatchMaker
from imdbattn.errors import UserError
from imdbattn.runs.fit import fit
from imdbattn.tasks.data_module import GPU_CHUNK, GPU_LENGTHS
from imdbattn.tasks.optim import Muon
from imdbattn.tasks.recorded import StepRecorder
from imdbattn.tasks.reviews.module import ReviewClassifier
from imdbattn.tasks.reviews.task import ReviewTask
from tests.marks import slow
from tests.recording import Tapes, record_on_cpu
from tests.resuming import curve, differences, saved

RUN = (
    "model=residual_pe",
    "model.net.layers=1",
    "model.net.layer.dropout=0.1",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=5",
    "data.batch_tokens=128",
    "label_smoothing=0.1",
)


@pytest.fixture
def tapes(monkeypatch) -> Tapes:
    return record_on_cpu(monkeypatch)


@pytest.fixture
def run(small, settings, tmp_path, monkeypatch):
    """run(name, overrides...): the folder of that run; the steps of "eager" are not recorded."""

    def train(name: str, *overrides: str):
        with monkeypatch.context() as patch:
            if name == "eager":
                patch.setattr(StepRecorder, "can_record", False)
            fit(settings(*small, *RUN, *overrides), tmp_path / name)
        return tmp_path / name

    return train


def assert_equal_up_to_rounding(one, other) -> None:
    """Compares the learning curves, the counts of Lightning's loops, and the last weights."""
    first, second = curve(one), curve(other)
    assert [{*row} for row in first] == [{*row} for row in second]
    for row, same in zip(first, second, strict=True):
        assert [bool(value) for value in row.values()] == [bool(value) for value in same.values()]
        for name in row:
            tolerance = 0.02 if "accuracy" in name else 2e-3  # of accuracy, one of 240 reviews
            close = pytest.approx(float(same[name] or 0), rel=2e-3, abs=tolerance)
            assert float(row[name] or 0) == close, name
    first, second = saved(one), saved(other)
    for loops in (first["loops"], second["loops"]):  # of the last batch; Lightning sees one of many
        loops["fit_loop"]["epoch_loop.batch_progress"].pop("is_last_batch")
        loops["fit_loop"].pop("epoch_loop.automatic_optimization.optim_progress")
    assert first["loops"] == second["loops"]
    assert first["global_step"] == second["global_step"]
    assert first["lr_schedulers"] == second["lr_schedulers"]
    weights = [torch.cat([w.flatten() for w in s["state_dict"].values()]) for s in (first, second)]
    assert (weights[0] - weights[1]).norm() < 1e-3 * weights[0].norm()


@pytest.mark.parametrize(
    "more",
    [
        ("trainer.val_check_interval=7", "data.curriculum=[4]", "trainer.max_steps=31"),
        slow(("trainer.limit_train_batches=11", "optim=lazy_adamw")),
    ],
)
def test_a_recorded_run_counts_logs_and_learns_as_an_eager_one(run, tapes, more):
    eager = run("lightning", "record_steps=false", *more)
    assert_equal_up_to_rounding(eager, run("recorded", "record_steps=true", *more))
    assert tapes.recorded > 1


def test_a_recorded_step_has_the_bits_of_an_eager_one(run, tapes):
    eager = run("eager")
    assert tapes.recorded == 0
    assert not differences(eager, run("recorded"))


@pytest.mark.slow
def test_masked_words_are_recorded_with_a_fixed_number_of_places(run, tapes):
    words = ("task=masked_words", "model=pretrained", "model.phrases=null", "optim=adamw")
    eager = run("lightning", "record_steps=false", *words)
    assert_equal_up_to_rounding(eager, run("recorded", "record_steps=true", *words))


def test_encoder_decoders_have_few_shapes_and_are_recorded(settings, tapes, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)  # as on a GPU, sources are not packed
    words = ["task=seq2seq", "model=seq2seq_attention", "data=reverse", "data.train=300"]
    words += ["data.lengths=[1,12]", "data.validation=20", "data.test=20", "data.batch_tokens=256"]
    words += ["model.net.hidden=8", "logger=csv", "trainer=cpu", "trainer.max_epochs=1"]
    words += ["pictures=false", "trainer.enable_progress_bar=false", "threads=1"]
    fit(settings(*words, "record_steps=true"), tmp_path / "recorded")
    assert 1 < tapes.recorded <= GPU_LENGTHS + 1
    monkeypatch.setattr(StepRecorder, "can_record", False)
    fit(settings(*words), tmp_path / "eager")
    assert not differences(tmp_path / "eager", tmp_path / "recorded")


def test_a_learning_rate_that_is_frozen_in_a_recording_is_noticed(run, tapes, caplog, monkeypatch):
    """The silent fault of recorded steps: the first rate is used in all of them."""
    monkeypatch.setattr(StepRecorder, "set_rates", lambda self: None)
    run("recorded", "trainer.max_steps=2")
    assert "from here on: weights that an eager step moves by" in caplog.text


class Counting(Muon):
    """Counts its steps on the host: the count of the recorded step would be repeated."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            group["weight_decay"] = 0.1 * self.steps
        return super().step(closure)


COUNTING = f"optim._target_={Counting.__module__}.Counting"


def test_a_run_whose_recording_differs_goes_on_eagerly_and_says_so(run, tapes, caplog):
    with caplog.at_level(logging.WARNING):
        folder = run("recorded", COUNTING, "trust=tests")
    lines = [line for line in caplog.messages if "not recorded" in line]
    assert len(lines) == 1
    assert "from here on: weights that an eager step moves by" in lines[0]
    assert saved(folder)["global_step"] == 44


class Reading(Muon):
    """Reads a value after the step's loss has been added to the sums of the epoch."""

    def step(self, closure=None):
        self.param_groups[0]["params"][0].sum().item()
        return super().step(closure)


def test_each_review_counts_once_if_a_recording_fails_after_the_loss(run, tapes, caplog):
    optimizer = (f"optim._target_={Reading.__module__}.Reading", "trust=tests")
    eager = run("lightning", "record_steps=false", *optimizer)
    replayed = run("recorded", *optimizer)
    assert "from here on: a value is read within a step" in caplog.text
    assert_equal_up_to_rounding(eager, replayed)


class Freezes(L.Callback):
    """Clips more from step 10, freezes the layers after an epoch, and sees each step."""

    seen = 0

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch:
            module.net.layers.requires_grad_(False)

    def on_train_batch_end(self, trainer, *arguments):
        Freezes.seen += 1
        if trainer.global_step == 10:
            trainer.gradient_clip_val = 1e-4


def test_what_a_callback_changes_is_recorded_again(run, tapes):
    callback = f"+trainer.callbacks=[{{_target_: {Freezes.__module__}.Freezes}}]"
    eager = run("lightning", "record_steps=false", callback, "trust=tests")
    seen, Freezes.seen = Freezes.seen, 0
    replayed = run("recorded", "record_steps=true", callback, "trust=tests")
    assert Freezes.seen == seen
    assert_equal_up_to_rounding(eager, replayed)


class Annealed(ReviewClassifier):
    """Has a loss that is different in each step."""

    def training_loss(self, batch):
        return super().training_loss(batch) * 0.9**self.global_step


class AnnealedTask(ReviewTask):
    module = Annealed


def test_custom_parts_are_recorded_on_request_only(run, tapes, caplog):
    task = ("task._target_=tests.runs.test_recorded.AnnealedTask", "trust=tests")
    eager = run("lightning", "record_steps=false", *task)
    with caplog.at_level(logging.INFO):
        assert_equal_up_to_rounding(eager, run("auto", *task))
    assert "AnnealedTask may compute numbers in Python" in caplog.text
    assert not tapes.recorded
    run("recorded", "record_steps=true", *task)
    assert tapes.recorded


class Watches(L.Callback):
    def on_after_backward(self, *arguments):
        """Sees gradients."""


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("trainer.accumulate_grad_batches=2",), "accumulate_grad_batches is above 1"),
        (("optim._target_=torch.optim.SGD", "~optim.matrix_lr", "~optim.momentum"), "SGD reads"),
        (
            (f"+trainer.callbacks=[{{_target_: {Watches.__module__}.Watches}}]", "trust=tests"),
            "Watches has a hook within the step, on_after_backward",
        ),
    ],
)
def test_steps_that_cannot_be_recorded_are_eager(run, tapes, caplog, overrides, reason):
    run("steps", *overrides, "record_steps=true", "trainer.max_steps=2")
    assert [reason in line for line in caplog.messages if "not recorded" in line] == [True]
    assert not tapes.recorded


# --- stopping and resuming ------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "how"), [(3, "signal"), slow(2, "crash")])
def test_a_recorded_run_that_was_stopped_equals_one_that_was_not(
    run, tapes, monkeypatch, settings, small, tmp_path, call, how
):
    """While batches are made together a signal comes, so that the state is saved before the next of
    them; or the run crashes, so that it resumes from a state within those before.
    """
    whole, make = run("whole"), BatchMaker.make
    calls = []

    def made(self, plans):
        calls.extend(["word_dropout"] * (self.options.word_dropout > 0))  # of training batches
        if len(calls) == call:
            if how == "crash":
                raise RuntimeError("the machine is gone")
            os.kill(os.getpid(), signal.SIGTERM)
        return make(self, plans)

    monkeypatch.setattr(BatchMaker, "make", made)
    with pytest.raises(SystemExit if how == "signal" else RuntimeError):
        run("stopped", "save_minutes=0")
    monkeypatch.setattr(BatchMaker, "make", make)
    stopped = tmp_path / "stopped"
    step = saved(stopped)["global_step"]
    assert 0 < step < saved(whole)["global_step"]
    assert (step % GPU_CHUNK > 0) == (how == "crash" or call == 3)
    fit(settings(*small, *RUN), stopped, resume=True)
    assert not differences(whole, stopped)


def test_a_loss_that_is_not_finite_names_its_own_step_and_rows(run, tapes, monkeypatch):
    make, spoilt = BatchMaker.make, []

    def spoiled(self, plans):
        batches = make(self, plans)
        if len(plans) > 3 and not spoilt and self.options.word_dropout > 0:
            spoilt.append(sorted(self.items.rows[batches[3].items_B]))
            batches[3] = batches[3]._replace(labels_B=batches[3].labels_B * 0 + 1)
        return batches

    loss = ReviewClassifier.training_loss

    def endless(self, batch):
        return loss(self, batch) / (batch.labels_B == 0).any()

    monkeypatch.setattr(BatchMaker, "make", spoiled)
    monkeypatch.setattr(ReviewClassifier, "training_loss", endless)
    with pytest.raises(UserError, match=r"the loss is inf in step 4 \(epoch 1") as error:
        run("recorded")
    assert f"in rows {', '.join(map(str, spoilt[0][:10]))}" in str(error.value)
