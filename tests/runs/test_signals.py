"""Signals that reach real processes end each in one line that says what is saved and how to
continue.
"""

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

import imdbattn
from imdbattn.runs.signals import Signals, Stopped
from imdbattn.tasks.reviews.classifier import ReviewClassifier
from tests.resuming import stops

from ..processes import started_command, wait_for

RUN = ("model=mean", "trainer.max_epochs=6", "patience=null", "pictures=true", "seed=3")
LINE = re.compile(
    r"^(SIG\w+): stopped( before training| in epoch \d+, step \d+| after training)?"
    r"(?:; (nothing is saved, repeat the command|the run is finished, its results are written"
    r"|the state is saved, resume it with:  python -m imdbattn\.train resume=run))?$",
    re.MULTILINE,
)


def stopped(folder: Path, words: list[str], number: signal.Signals, after: float) -> str:
    """Sends the signal so many seconds after the start, checks the end, and returns its line."""
    output = folder / "output.txt"
    words = [*words, "hydra.run.dir=run"]
    with (
        output.open("w") as file,
        started_command("train", *words, cwd=folder, stdout=file, stderr=file) as process,
    ):
        time.sleep(after)
        process.send_signal(number)
        code = process.wait(240)
    text = output.read_text()
    lines = [match[0] for match in LINE.finditer(text)]
    if code == 0:  # the run was finished before
        assert lines == [], text
        return "finished"
    if code in (-number, 1) or "KeyboardInterrupt" in text:
        return f"killed while Python started (exit status {code})"
    assert "Traceback" not in text, text
    assert code == 128 + number, text
    (line,) = lines
    assert line.startswith(number.name), line
    assert (folder / "run" / "checkpoints" / "last.ckpt").exists() == (
        "the state" in line or "finished" in line
    )
    return line


@pytest.mark.slow
def test_signals_at_fifty_random_moments(shell, small, tmp_path):
    """Each run is continued as its line says, and ends with its results. Prints how many signals
    came at which moment.
    """
    words = [*small, *RUN]
    start = time.monotonic()
    done = shell("train", *words, "hydra.run.dir=whole", cwd=tmp_path, real=True)
    assert done.returncode == 0, done.stderr
    seconds, draw, ends = time.monotonic() - start, random.Random(0), Counter[str]()
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        kind = draw.choice([signal.SIGINT, signal.SIGTERM])
        end = stopped(folder, words, kind, draw.uniform(0, seconds))
        ends[re.sub(r"\d+", "N", end)] += 1
        if number % 5 == 0 and "the state is saved" in end:
            assert shell("train", "resume=run", cwd=folder).returncode == 0
            assert (folder / "run" / "metrics.json").exists()
    print(*ends.most_common(), sep="\n")
    assert sum(count for end, count in ends.items() if "killed" in end) <= 10


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

    with pytest.raises(Stopped) as stopped, Signals("stopped; nothing is saved"):
        catch()
    assert stopped.value.code == 128 + signal.SIGTERM
    assert caplog.messages == ["SIGTERM: stopped; nothing is saved"]


def test_a_signal_before_training_ends_the_command_in_one_line(small, tmp_path):
    """In a process of its own, while torch is imported or data are read."""
    words = [*small, *RUN, "hydra.run.dir=run"]
    pipes = {"stderr": subprocess.STDOUT, "stdout": subprocess.PIPE}
    with started_command("train", *words, cwd=tmp_path, **pipes) as process:
        wait_for(lambda: process.poll() is not None or (tmp_path / "run").exists())
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 128 + signal.SIGTERM, text
    assert text.splitlines()[-1] == (
        "SIGTERM: stopped before training; nothing is saved, repeat the command"
    )
