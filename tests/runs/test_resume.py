"""A run that was stopped, at any moment, resumes and ends with identical results."""

import json
import os
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from filelock import FileLock
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError
from imdbattn.launch.job import has_current_results, resumable
from imdbattn.launch.resumed_settings import resumed_settings
from imdbattn.launch.single_run import summary
from imdbattn.runs.fit import fit
from imdbattn.runs.run_state import STATE_KEY
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewData
from imdbattn.tracking.loggers import Tracker
from tests.commands import changed
from tests.marks import slow, slow_except
from tests.processes import started_command, wait_for
from tests.resuming import contents, differences, saved, stops

STEPS = 12  # of an epoch of the small world at 256 tokens
# With dropout, whose random numbers a resumed run continues; a second layer would take longer.
RUN = ("model=residual_pe", "model.net.layers=1", "model.net.layer.dropout=0.1")
RUN += ("trainer.max_epochs=4",)


@pytest.fixture
def stopping(monkeypatch):
    return stops(monkeypatch, ReviewClassifier)


@pytest.fixture(scope="module")
def whole(small, settings, tmp_path_factory):
    """whole(overrides...): settings, and the folder of a run with them that nothing stopped.

    Another model has its own layers.
    """
    runs: dict[tuple, tuple] = {}

    def run(*overrides: str) -> tuple[DictConfig, Path]:
        if overrides not in runs:
            folder = tmp_path_factory.mktemp("whole")
            other = any(word.startswith("model=") for word in overrides)
            own = [word for word in RUN if not other or word != "model.net.layers=1"]
            cfg = settings(*small, *own, *overrides)
            fit(cfg, folder)
            runs[overrides] = cfg, folder
        return runs[overrides]

    return run


SAVES = (
    "lightning.pytorch.callbacks.ModelCheckpoint, every_n_train_steps: 5, save_last: true,"
    " save_weights_only: true"
)
EARLY = ("model=mean", "model.embedding.trainable=true", "optim.lr=1.0", "decay=none", "patience=2")
PHRASES = ("model=log_counts",)
CHECKPOINTS = (f"+trainer.callbacks=[{{_target_: {SAVES}}}]",)
LINEAR = ("decay=linear", "trainer.check_val_every_n_epoch=2")
SIGNAL, CRASH = signal.SIGTERM, None


# what is special, the step in which the run stops, and its own overrides
@pytest.mark.parametrize(
    ("case", "step", "how", "overrides"),
    [
        ("in the middle", 31, SIGNAL, ()),
        ("in the middle", 31, CRASH, ()),
        ("first step of an epoch", 2 * STEPS, SIGNAL, ()),
        ("vectors that train, uneven epochs, early stopping", 50, SIGNAL, EARLY),
        slow("first step", 0, SIGNAL, ()),
        slow("last step of an epoch", 2 * STEPS - 1, SIGNAL, ()),
        slow("last step of an epoch", 2 * STEPS - 1, CRASH, ()),
        slow("phrases of folds, a convolution, vectors that train", 31, SIGNAL, PHRASES),
        slow("fewer tokens in the first epochs", 31, SIGNAL, ("data.curriculum=[3,6]",)),
        slow("gradients of several batches", 5, SIGNAL, ("trainer.accumulate_grad_batches=3",)),
        slow("two validations an epoch", 29, SIGNAL, ("trainer.val_check_interval=0.5",)),
        slow("a limit of steps", 28, SIGNAL, ("trainer.max_steps=40",)),
        slow("a ModelCheckpoint that writes last.ckpt", 33, SIGNAL, CHECKPOINTS),
        slow("a ModelCheckpoint that writes last.ckpt", 33, CRASH, CHECKPOINTS),
        slow("a linear schedule", 13, SIGNAL, LINEAR),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    whole, stopping, tmp_path, caplog, case, step, how, overrides
):
    cfg, reference = whole(*overrides)
    stopping(step, how)
    with pytest.raises((SystemExit, RuntimeError)) as stopped:
        fit(cfg, tmp_path)
    if how is not None:
        # Runs with overrides have other numbers of steps.
        assert f"stopped in epoch {min((step + 1) // STEPS, 3) + 1}," in caplog.text or overrides
        assert stopped.value.code == 128 + how
        assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert not (tmp_path / "metrics.json").exists()
    stopping(None)
    fit(cfg, tmp_path, resume=True)
    assert differences(reference, tmp_path) == []
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_run_resumes_any_number_of_times_and_from_any_folder(whole, stopping, tmp_path):
    cfg, reference = whole()
    folder = tmp_path / "0"
    for number, step in enumerate((7, 8, 2 * STEPS)):
        stopping(step, signal.SIGTERM)
        with pytest.raises(SystemExit):
            fit(cfg, folder, resume=number > 0)
        folder = folder.rename(tmp_path / str(number + 1))
    stopping(None)
    fit(cfg, folder, resume=True)
    assert differences(reference, folder) == []


def test_a_run_is_saved_every_few_minutes_within_an_epoch(whole, stopping, tmp_path):
    """The next step after a crash is the one that the last save was made before."""
    cfg, reference = whole()
    stopping(31)
    with pytest.raises(RuntimeError):
        fit(changed(cfg, {"save_minutes": 0}), tmp_path)
    content = saved(tmp_path)
    assert content["global_step"] == 31
    stopping(None)
    fit(cfg, tmp_path, resume=True)
    assert differences(reference, tmp_path) == []


def test_a_finished_run_is_not_changed(whole, tmp_path, caplog):
    cfg, reference = whole()
    shutil.copytree(reference, tmp_path / "run")
    before = contents(tmp_path / "run")
    with caplog.at_level("INFO"):
        metrics = fit(cfg, tmp_path / "run", resume=True)
    assert metrics == json.loads((reference / "metrics.json").read_text())
    assert "already finished" in caplog.text
    assert contents(tmp_path / "run") == before


def test_a_run_without_test_scores_is_scored_when_it_is_resumed_with_test(
    settings, small, tmp_path
):
    words = [*small, "model=mean", "trainer.max_epochs=2"]
    expected = fit(settings(*words), tmp_path / "whole")
    fit(settings(*words, "test=false"), tmp_path / "run")
    weights = (tmp_path / "run" / "checkpoints" / "best.ckpt").read_bytes()
    # as if a run that scores on test was killed before it wrote metrics.json
    shutil.copy(tmp_path / "whole" / "predictions.parquet", tmp_path / "run")
    assert not has_current_results(tmp_path / "run", settings(*words))
    assert resumable(tmp_path / "run", settings(*words))
    metrics = fit(settings(*words), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoints" / "best.ckpt").read_bytes() == weights
    assert (metrics["test_accuracy"], metrics["epochs"]) == (expected["test_accuracy"], 2)


def test_a_finished_run_without_its_last_state_is_not_trained_again(settings, small, tmp_path):
    words = [*small, "model=mean", "trainer.max_epochs=1"]
    fit(settings(*words, "test=false"), tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "last.ckpt").unlink()
    before = contents(tmp_path / "run")
    with pytest.raises(UserError, match=r"is finished, but checkpoints/last\.ckpt is missing"):
        fit(settings(*words), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_a_run_that_patience_has_ended_is_not_trained_on_when_it_is_resumed(
    settings, small, tmp_path
):
    words = [*small, "model=mean", "optim.lr=0.0", "patience=1", "trainer.max_epochs=6"]
    ended = fit(settings(*words, "test=false"), tmp_path / "run")
    assert ended["epochs"] == 2
    metrics = fit(settings(*words), tmp_path / "run", resume=True)
    assert (metrics["epochs"], metrics["steps"]) == (2, ended["steps"])


OWN = """
from lightning.pytorch.callbacks import EarlyStopping

class Stops(EarlyStopping):
    def __init__(self):
        super().__init__("val/own", mode="max", patience=1)

    def on_validation_epoch_end(self, trainer, module):
        module.log("val/own", [1.0, 0.0, 2.0][trainer.current_epoch])
"""
EARLY_ENDS = {
    "within an epoch": (
        ["patience=2", "trainer.val_check_interval=5"],
        (0.75, "val/accuracy did not improve in 2 validations"),
    ),
    "beside a timer without a limit": (
        ["patience=2", "+trainer.callbacks={_target_: lightning.pytorch.callbacks.Timer}"],
        (3, "val/accuracy did not improve in 2 validations"),
    ),
    "steps": (["trainer.max_steps=30"], (1.5, "trainer.max_steps=30 is reached")),
    "before min_epochs, whose last one improves": (
        ["trainer.min_epochs=3", "+trainer.callbacks={_target_: own.Stops}"],
        (3, "early stopping by val/own, decided in epoch 2"),
    ),
    "the last epoch": (["trainer.max_epochs=1"], None),
}


@pytest.mark.parametrize("case", EARLY_ENDS)
def test_a_run_says_why_it_ended_early(settings, small, tmp_path, own_module, case):
    own_module("own", OWN)
    words, expected = EARLY_ENDS[case]
    small = [*small, "model=mean", "optim.lr=0.0", "trainer.max_epochs=6", *words]
    metrics = fit(settings(*small), tmp_path / "run")
    curve = pd.read_csv(tmp_path / "run" / "metrics.csv").dropna(subset="val/loss")
    assert curve["step"].iloc[-1] == metrics["steps"] - 1  # the last weights are validated
    if expected is None:
        assert "ended_early" not in metrics
        return
    epochs, reason = expected
    assert metrics["ended_early"] == {"epochs": epochs, "of": 6, "reason": reason}
    assert metrics["epochs"] == epochs
    assert metrics["epoch_seconds"] == pytest.approx(metrics["train_seconds"] / epochs, rel=0.01)
    lines = summary(metrics, tmp_path / "run")
    assert any(f": {epochs:g} of 6 epochs in" in line for line in lines)
    assert f"ended early          {reason}" in lines


def test_a_new_run_in_the_folder_of_an_old_one_uses_nothing_of_it(
    whole, stopping, tmp_path, caplog
):
    """Before it replaces the state of the old one, it says so."""
    cfg, reference = whole()
    other = changed(cfg, {"seed": 7})
    stopping(20, signal.SIGTERM)
    with pytest.raises(SystemExit):
        fit(other, tmp_path)
    stopping(0)
    with pytest.raises(RuntimeError):
        fit(cfg, tmp_path)
    assert "has the state of a stopped run, which this run replaces" in caplog.text
    # resume= would use the other run's weights
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()
    stopping(None)
    fit(cfg, tmp_path, resume=True)
    assert differences(reference, tmp_path) == []


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture
def stopped(whole, stopping, tmp_path):
    """Settings and folder of a run that was stopped."""
    cfg, _ = whole()
    stopping(20, signal.SIGTERM)
    with pytest.raises(SystemExit):
        fit(cfg, tmp_path / "run")
    stopping(None)
    return cfg, tmp_path / "run"


def refused(cfg: DictConfig, folder: Path, match: str) -> None:
    before = (folder / "checkpoints" / "last.ckpt").read_bytes()
    with pytest.raises(UserError, match=match) as error:
        fit(cfg, folder, resume=True)
    assert "\n" not in str(error.value)
    assert (folder / "checkpoints" / "last.ckpt").read_bytes() == before
    assert not (folder / "metrics.json").exists()


def test_other_reviews_and_other_vectors_are_refused(stopped, tmp_path):
    cfg, folder = stopped
    for key, file in {
        "data.path": cfg.data.path,
        "data.vectors.path": cfg.data.vectors.path,
    }.items():
        head, *lines = Path(file).read_text().splitlines(keepends=True)
        other = tmp_path / Path(file).name
        other.write_text("".join([head, *lines[2:], lines[0]]))
        refused(changed(cfg, {key: str(other)}), folder, "was trained with other data")


def test_a_callback_does_not_let_a_new_run_continue_an_old_one(stopped):
    cfg, folder = stopped
    callback = {
        "_target_": "lightning.pytorch.callbacks.OnExceptionCheckpoint",
        "dirpath": str(folder),
    }
    cfg = changed(cfg, {"trainer.callbacks": [callback]})
    with pytest.raises(UserError, match="a callback has found a checkpoint of an earlier run"):
        fit(cfg, folder)


def test_a_run_that_is_still_active_is_not_resumed(stopped, monkeypatch):
    cfg, folder = stopped
    monkeypatch.setattr("imdbattn.folders.run_folder.LOCK_SECONDS", 0.1)
    with FileLock(folder / ".lock"):
        refused(cfg, folder, "another run is active in .*: wait for it")


def test_another_number_of_processes_is_refused(stopped):
    cfg, folder = stopped
    file = folder / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    content[STATE_KEY]["trained_with"]["processes"] = 2
    torch.save(content, file)
    refused(cfg, folder, r"other data or devices \(processes=1, not 2\)")


def test_settings_come_from_the_run_and_only_those_that_affect_no_results_may_change(
    stopped, composed, small
):
    cfg, folder = stopped
    typed = [f"resume={folder}", "logger=csv", "threads=2", "data.cache_dir=/elsewhere"]
    saved = OmegaConf.load(folder / "config.yaml")
    saved.logger = composed("logger=wandb")["logger"]
    OmegaConf.save(saved, folder / "config.yaml")
    found = resumed_settings(composed(*typed), typed, folder)
    assert (found["logger"], found["threads"]) == ({}, 2)
    assert found["data"]["cache_dir"] == "/elsewhere"
    assert found["model"] == cfg.model.dump()
    assert found["trainer"] == cfg.trainer.dump()
    # the same words
    again = [*small, *RUN]
    assert resumed_settings(composed(*again), again, folder)["model"] == cfg.model.dump()
    alone = [f"resume={folder}", "seed=1"]  # only what is typed is compared
    assert resumed_settings(composed(*alone), alone, folder)["trainer"] == cfg.trainer.dump()
    with pytest.raises(UserError, match="uses that run's own settings"):
        resumed_settings(composed("debug=fast"), ["debug=fast"], folder)
    for more in ("optim.lr=0.5", "model=base", "seed=2"):
        with pytest.raises(UserError, match=rf"uses that run's own settings: {more.split('=')[0]}"):
            resumed_settings(composed(*again, more), [*again, more], folder)


# --- losses that are no numbers -------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 2])  # of a step
def test_a_loss_that_is_not_finite_ends_the_run_and_names_step_learning_rate_and_rows(
    whole, monkeypatch, tmp_path, batches
):
    cfg, _ = whole()
    lines = Path(cfg.data.path).read_text().splitlines()
    # its text stands in test, too, so it is dropped: the rows are not the places in the split
    lines[1] = lines[-2]
    (tmp_path / "double.csv").write_text("\n".join(lines))
    changes = {"trainer.accumulate_grad_batches": batches}
    cfg = changed(cfg, changes | {"data.path": str(tmp_path / "double.csv")})
    step, seen = ReviewClassifier.training_step, []

    def training_step(self, batch, batch_idx):
        loss = step(self, batch, batch_idx)
        if self.trainer.global_step == 30 // batches:
            train = self.trainer.datamodule.corpus.splits["train"]
            seen.append(sorted(train.rows[batch.items_B.numpy()]))
            return loss * float("nan")
        return loss

    monkeypatch.setattr(ReviewClassifier, "training_step", training_step)
    message = rf"the loss is nan in step {30 // batches + 1} \(epoch 3, learning rate 0\.000"
    with pytest.raises(UserError, match=message) as error:
        fit(cfg, tmp_path / "run")
    assert f"in rows {', '.join(map(str, seen[0][:10]))}" in str(error.value)
    assert "optim.lr" in str(error.value)
    content = saved(tmp_path / "run")
    assert content["global_step"] == 2 * STEPS // batches
    assert all(weight.isfinite().all() for weight in content["state_dict"].values())
    assert not (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize(("step", "kept"), [(STEPS - 1, None), (STEPS + 3, STEPS + 3)])
def test_weights_that_are_not_finite_are_never_saved(whole, monkeypatch, tmp_path, step, kept):
    """A gradient is no number, before a validation or a save, although the loss was fine."""
    cfg, _ = whole()

    def spoil(self, optimizer):
        if self.trainer.global_step == step:
            next(self.parameters()).grad[:] = float("nan")

    monkeypatch.setattr(ReviewClassifier, "on_before_optimizer_step", spoil)
    cfg = changed(cfg, {"trainer.gradient_clip_val": None, "save_minutes": 0 if kept else None})
    with pytest.raises(UserError, match=f"weights are not finite after step {step + 1}"):
        fit(cfg, tmp_path)
    files = {file.name: torch.load(file, weights_only=True) for file in tmp_path.rglob("*.ckpt")}
    assert set(files) == ({"best.ckpt", "last.ckpt"} if kept else set())
    for content in files.values():
        assert all(weight.isfinite().all() for weight in content["state_dict"].values())
    assert not kept or files["last.ckpt"]["global_step"] == kept


# --- signals at any other moment -------------------------------------------------------


BEFORE, AFTER = "before training; nothing was saved; run", "after training; the state is saved"
MOMENTS = {  # what is patched, when, and what the line says
    "reading data": (ReviewData, "read", None, BEFORE),
    "before the first step": (ReviewClassifier, "on_fit_start", None, BEFORE),
    "after the last step": (ReviewClassifier, "on_train_end", None, AFTER),
    "between two parts": (Learner, "load_state_dict", None, AFTER),
    "validation": (ReviewClassifier, "validation_step", "test", AFTER),
    "test": (ReviewClassifier, "on_test_end", "test", AFTER),
    "writing": (ReviewData, "save_texts", None, AFTER),
    "publishing": (Tracker, "publish", None, "after training; the run is finished"),
}


@pytest.mark.parametrize(
    "moment", slow_except(["reading data", "validation", "test", "writing"], MOMENTS)
)
def test_a_signal_ends_a_run_at_any_moment_in_one_line(
    whole, monkeypatch, tmp_path, caplog, moment
):
    """Never with exit status 0; the line says what is saved and how to continue."""
    owner, name, during, words = MOMENTS[moment]
    how = signal.SIGUSR1 if moment == "after the last step" else signal.SIGTERM
    cfg, reference = whole("model=mean", "patience=null")
    asked = []
    monkeypatch.setattr("imdbattn.runs.signals.requeue", lambda: asked.append(1))
    with monkeypatch.context() as patch:
        done = getattr(owner, name)

        def then(*arguments, **more):
            if during is None or arguments[0].trainer.state.fn == during:
                os.kill(os.getpid(), how)
            return done(*arguments, **more)

        patch.setattr(owner, name, staticmethod(then) if name == "read" else then)
        with pytest.raises(SystemExit) as stopped:
            fit(cfg, tmp_path)
    assert stopped.value.code == 128 + how
    assert len(asked) == (how == signal.SIGUSR1)
    (line,) = [line for line in caplog.messages if ": stopped" in line]
    assert line.startswith(f"{how.name}: stopped {words}")
    assert (tmp_path / "checkpoints" / "last.ckpt").exists() == ("nothing" not in words)
    assert (tmp_path / "metrics.json").exists() == ("finished" in words)
    fit(cfg, tmp_path, resume="nothing" not in words)
    assert differences(reference, tmp_path) == []


# --- from outside ---------------------------------------------------------------------------------


LONG = ("trainer.max_epochs=60", "patience=null", "save_minutes=0.005")


@pytest.mark.slow
def test_a_run_killed_at_random_moments_has_the_same_results(whole, small, tmp_path):
    """A fourth of the signals may come during the start, the others after a checkpoint."""
    last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    words = [*small, *RUN, *LONG, "hydra.run.dir=killed"]
    for kill in [
        *random.sample([signal.SIGKILL] * 5 + [signal.SIGTERM] * 3 + [signal.SIGINT] * 2, 10),
        None,
    ]:
        arguments = ["resume=killed"] if (tmp_path / "killed" / "config.yaml").exists() else words
        before, early = last.stat().st_mtime_ns if last.exists() else 0, random.random() < 0.25
        with started_command("train", *arguments, cwd=tmp_path) as process:
            if kill:
                wait_for(
                    lambda process=process, before=before, early=early: (
                        early
                        or process.poll() is not None
                        or (last.exists() and last.stat().st_mtime_ns != before)
                    )
                )
                time.sleep(random.uniform(0, 6 if early else 0.7))
                process.send_signal(kill)
            assert process.wait(240) in ((-kill, 128 + kill, 0) if kill else (0,))
    assert differences(whole(*LONG)[1], tmp_path / "killed") == []
    assert not [*(tmp_path / "killed").rglob("*.tmp")]


@pytest.mark.slow
def test_two_processes_stop_together_and_resume_together(small, tmp_path):
    """The signal reaches the first only, as from a shell's `kill`."""
    words = [*small, "trainer=ddp_cpu", "trainer.enable_progress_bar=false", "model=residual_pe"]
    words += ["trainer.max_epochs=40", "patience=null", "model.net.layer.dropout=0.1"]
    words += ["trainer.log_every_n_steps=5"]
    start = partial(started_command, "train", cwd=tmp_path)
    with start(*words, "hydra.run.dir=whole") as process:
        assert process.wait(240) == 0
    last = tmp_path / "stopped" / "checkpoints" / "last.ckpt"
    with start(*words, "hydra.run.dir=stopped") as process:
        wait_for(lambda: process.poll() is not None or last.exists())
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
    assert torch.load(last, weights_only=True)["global_step"] < 40 * STEPS
    with start("resume=stopped") as process:
        assert process.wait(240) == 0
    assert differences(tmp_path / "whole", tmp_path / "stopped") == []


@pytest.mark.slow
def test_a_slurm_job_is_requeued_and_resumes_automatically(small, tmp_path):
    """With a `scontrol` that records its arguments."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    slurm = {"SLURM_JOB_ID": "77", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    again = slurm | {"SLURM_RESTART_COUNT": "1"}
    words = [*small, "model=mean", "trainer.max_epochs=3000", "patience=null", "save_minutes=0"]
    (tmp_path / "runs").mkdir()

    def last() -> Path | None:
        return next((tmp_path / "runs").glob("slurm-77-mean-s1-*/checkpoints/last.ckpt"), None)

    with started_command("train", *words, cwd=tmp_path, env=slurm) as process:
        wait_for(lambda: process.poll() is not None or last())
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 128 + signal.SIGUSR1
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
    folder = last().parents[1]
    steps = saved(folder)["global_step"]
    with started_command("train", *words, cwd=tmp_path, env=again) as process:
        wait_for(
            lambda: (
                process.poll() is not None
                or torch.load(last(), weights_only=True)["global_step"] != steps
            )
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert torch.load(last(), weights_only=True)["global_step"] > steps
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.is_symlink()] == [
        folder.name
    ]
