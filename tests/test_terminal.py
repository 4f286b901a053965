"""The output of training in 80 columns: a bar, a line for each epoch, and the next commands."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parent.parent)


def seen(arguments: list[str], folder: Path) -> list[str]:
    """What training writes to a terminal of 80 columns: the pieces between its line ends and cursor movements."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "PYTHONPATH": ROOT, "TERM": "xterm"}
    env.pop("COLUMNS", None)
    command = [sys.executable, "-m", "imdbattn.train", *arguments]
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        content = b""
        while True:
            try:
                content += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert run.returncode == 0, content.decode()
    pieces = re.split(r"\r|\n|\x1b\[[0-9;?]*[A-HJKfhl]", content.decode())
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", piece).rstrip() for piece in pieces]


@pytest.fixture
def arguments(small) -> list[str]:
    quick = [*small, "model=mean", "trainer.max_epochs=2", "trainer.enable_progress_bar=true", "hydra.run.dir=runs/a b"]
    return [one for one in quick if one != "trainer.enable_progress_bar=false"]


EPOCH = r"epoch {}/2  train loss \d\.\d{{4}}  val loss \d\.\d{{4}}, accuracy \d+\.\d\d %"


@pytest.mark.slow
def test_a_terminal_shows_a_bar_with_the_loss_and_keeps_a_line_for_each_epoch(arguments, tmp_path):
    lines = seen(arguments, tmp_path)
    assert max(len(line) for line in lines if "/reviews.csv" not in line) <= 80, "a line that a terminal wraps"
    assert any(re.match(r"epoch 1/2 .* loss \d", line) and "|" in line for line in lines)
    for number in (1, 2):
        assert sum(bool(re.fullmatch(EPOCH.format(number), line)) for line in lines) == 1, lines
    assert not [line for line in lines if re.search("epoch 0|epoch 3", line, re.IGNORECASE)]
    text = "\n".join(lines)
    assert "2 epochs in" in text
    assert "python -m imdbattn.predict run='runs/a b' text=" in text
    assert "python -m imdbattn.compare runs=runs" in text


@pytest.mark.slow
def test_without_a_terminal_lines_are_written_but_no_bar(shell, arguments, tmp_path):
    arguments = [*arguments, "trainer.max_epochs=1", "logger=wandb", f"hydra.run.dir={tmp_path}/new/run"]
    nobody = {"WANDB_MODE": None, "WANDB_API_KEY": None, "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    done = shell("train", *arguments, cwd=tmp_path, env=nobody)
    assert done.returncode == 0, done.stderr
    assert re.search(EPOCH.format(1).replace("/2", "/1") + "\n", done.stdout)
    assert "1 epoch in" in done.stdout
    assert "|" not in done.stdout + done.stderr
    assert re.search("no W&B key .*offline.*wandb sync", done.stdout)
    (offline,) = (tmp_path / "new").glob("run/wandb/offline-run-*")
    assert f"wandb sync new/run/wandb/offline-run-*-{offline.name[-8:]}\n" in done.stdout
    assert "python -m imdbattn.compare runs=new\n" in done.stdout
