"""Any exception of a command is one line and exit status 2, and changes no finished run."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.resuming import contents


@pytest.fixture
def finished(trained, tmp_path) -> Path:
    return shutil.copytree(trained("mean")[0], tmp_path / "run")


TRAIN = ("train", "model=mean", "hydra.run.dir={run}")
# one of each place in which a command ends: the data, the results, the run folder
WRONG = {  # what is wrong -> command
    "broken Parquet file": (*TRAIN, "data.path={tmp}/broken.parquet"),
    "output in a missing drive": ("predict", "run={run}", "text=a", "out=/proc/no/out.csv"),
    "broken checkpoint": ("predict", "run={checkpoint}", "text=a"),
}


def places(finished: Path, tmp: Path) -> dict[str, Path]:
    """Files and run folders that are wrong."""
    (tmp / "broken.parquet").write_bytes(b"PAR1")
    checkpoint = shutil.copytree(finished, tmp / "checkpoint")
    (checkpoint / "checkpoints" / "best.ckpt").write_text("{" * 40)
    return {"run": finished, "tmp": tmp, "checkpoint": checkpoint}


def test_any_exception_of_a_command_is_one_line_and_its_traceback_is_in_a_file(
    finished, shell, small, tmp_path
):
    known = places(finished, tmp_path)
    before = contents(finished)
    for name, (command, *words) in WRONG.items():
        own = small if command == "train" else []
        words = [word.format(**known) for word in words]
        done = shell(command, *own, *words)
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert (name, done.returncode, len(lines), "Traceback" in done.stderr + done.stdout) == (
            name,
            2,
            1,
            False,
        ), done
        if file := re.search(r"\(traceback: (.*)\)$", lines[0]):
            assert "Traceback (most recent call last)" in Path(file[1]).read_text()
            os.unlink(file[1])
        assert contents(finished) == before, name
