"""Signals reach the program that trains, and end a command in one line."""

import os
import signal
import subprocess
import time

import pytest

import imdbattn
from imdbattn.runs.fit import fit
from imdbattn.runs.signals import StopOnSignals, Stopped
from imdbattn.tasks.reviews.module import ReviewClassifier
from tests.processes import started_command, wait_for
from tests.resuming import stops


def test_signals_during_train_from_python_reach_the_program(small, tmp_path, monkeypatch):
    """Ctrl-C is a KeyboardInterrupt that says what is saved; SIGTERM has the program's handler."""

    def own(number: int, frame: object) -> None:
        raise ValueError("the program's own handler")

    words = [*small, "model=mean", "trainer.max_epochs=2", "test=false"]
    stopping = stops(monkeypatch, ReviewClassifier)
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: own}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        stopping(13, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match=r"^SIGINT: stopped .*resume=.*a$"):
            imdbattn.train(*words, folder=tmp_path / "a")
        stopping(13, signal.SIGTERM)
        with pytest.raises(ValueError, match="the program's own handler"):
            imdbattn.train(*words, folder=tmp_path / "b")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    stopping(None)
    assert imdbattn.train(f"resume={tmp_path}/a").metrics.epochs == 2


@pytest.mark.parametrize("wrapped", [RuntimeError, None])
def test_a_library_that_catches_what_a_signal_raises_does_not_hide_it(caplog, wrapped):
    """As pydantic does, which raises an exception of its own."""

    def catch() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:
            if wrapped:
                raise wrapped("another one") from None

    with pytest.raises(Stopped) as stopped, StopOnSignals("stopped; nothing is saved"):
        catch()
    assert stopped.value.code == 128 + signal.SIGTERM
    assert caplog.messages == ["SIGTERM: stopped; nothing is saved"]


@pytest.mark.parametrize(
    ("seconds", "saved"),
    [(0, "in epoch 1, step 3; the state is saved"), (2, "in training; nothing was saved")],
)
def test_a_second_signal_ends_a_run_at_once_unless_it_is_the_first_one_again(
    small, settings, tmp_path, monkeypatch, caplog, seconds, saved
):
    """A sweep stops its jobs, which the signal of timeout or SLURM has reached already."""
    step = ReviewClassifier.training_loss

    def signals(self, batch):
        if self.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            later = time.monotonic() + seconds
            monkeypatch.setattr(time, "monotonic", lambda: later)
            os.kill(os.getpid(), signal.SIGTERM)
            monkeypatch.undo()
        return step(self, batch)

    monkeypatch.setattr(ReviewClassifier, "training_loss", signals)
    with pytest.raises(SystemExit):
        fit(settings(*small, "model=mean"), tmp_path)
    (line,) = [line for line in caplog.messages if ": stopped" in line]
    assert line.startswith(f"SIGTERM: stopped {saved}"), line


def test_a_signal_before_training_ends_the_command_in_one_line(small, tmp_path):
    """In a process of its own, while torch is imported or data are read."""
    words = [*small, "model=mean", "hydra.run.dir=run"]
    pipes = {"stderr": subprocess.STDOUT, "stdout": subprocess.PIPE}
    with started_command("train", *words, cwd=tmp_path, **pipes) as process:
        wait_for(lambda: process.poll() is not None or (tmp_path / "run").exists())
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 128 + signal.SIGTERM, text
    assert text.splitlines()[-1] == (
        "SIGTERM: stopped before training; nothing was saved; run the command again"
    )
