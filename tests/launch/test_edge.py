"""Any exception of a command is one line on stderr and exit status 2, and nothing of a finished run
changes.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest

from imdbattn import UserError


def sums(folder: Path) -> dict[str, str]:
    """The checksum of each file of a run, without its log."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".log"]
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


@pytest.fixture
def finished(trained, tmp_path) -> Path:
    return shutil.copytree(trained("mean")[0], tmp_path / "run")


TRAIN = ("train", "model=mean", "hydra.run.dir={run}")
WRONG = {  # what is wrong -> command
    # settings
    "unknown setting": (*TRAIN, "optim.learning_rate=1"),
    "text for a number": (*TRAIN, "optim.lr=x"),
    "unknown choice": ("train", "model=men"),
    "unknown argument of the optimizer": (*TRAIN, "+optim.foo=1"),
    "wrong argument of the optimizer": (*TRAIN, "+optim.betas=[0.9]"),
    "unknown class": (*TRAIN, "optim._target_=torch.optim.Nothing"),
    "heads that do not divide the width": (
        "train",
        "model=residual",
        "hydra.run.dir={run}",
        "model.net.layer.heads=3",
    ),
    "several values": ("train", "model=mean,base", "hydra.run.dir={run}"),
    "a launcher that is not installed": (*TRAIN, "-m", "hydra/launcher=nothing"),
    "SLURM without srun": (*TRAIN, "-m", "hydra/launcher=slurm"),
    "unknown split": ("evaluate", "run={run}", "split=all"),
    "two sources of text": ("predict", "run={run}", "text=a", "file=b"),
    # files
    "missing data": (*TRAIN, "data.path=nothing.csv"),
    "table without labels": (*TRAIN, "data.path={tmp}/texts.csv"),
    "broken Parquet file": (*TRAIN, "data.path={tmp}/broken.parquet"),
    "broken JSON Lines": (*TRAIN, "data.path={tmp}/broken.jsonl"),
    "not UTF-8": (*TRAIN, "data.path={tmp}/latin.csv"),
    "unbalanced quote": (*TRAIN, "data.path={tmp}/quote.csv"),
    "labels that differ in case": (*TRAIN, "data.path={tmp}/case.csv"),
    "empty folder": (*TRAIN, "data.path={tmp}/empty"),
    "vectors of another width": (*TRAIN, "data.glove.dim=20"),
    "missing file to predict": ("predict", "run={run}", "file=nothing.txt"),
    "table without the column": ("predict", "run={run}", "file={tmp}/case.csv", "column=review"),
    "output in a missing drive": ("predict", "run={run}", "text=a", "out=/proc/no/out.csv"),
    "output into a folder with files": ("export", "run={run}", "out={tmp}"),
    # run folders
    "no run": ("predict", "run=nothing", "text=a"),
    "no run to resume": ("train", "resume={tmp}/empty"),
    "broken metrics": ("train", "resume={broken}"),
    "broken settings": ("predict", "run={settings}", "text=a"),
    "broken checkpoint": ("predict", "run={checkpoint}", "text=a"),
    "unfinished run to start from": (*TRAIN, "init={tmp}/empty"),
    "other settings when resumed": ("train", "resume={run}", "seed=7"),
    "more epochs with a schedule": ("train", "resume={run}", "trainer.max_epochs=99"),
    "wrong name of a checkpoint": ("predict", "run={run}/checkpoints/none.ckpt", "text=a"),
}


# one of each place in which a command ends: settings, Hydra, the model, the data, the run folder
KINDS = (
    "unknown setting",
    "unknown choice",
    "unknown argument of the optimizer",
    "several values",
    "SLURM without srun",
    "two sources of text",
    "broken Parquet file",
    "not UTF-8",
    "vectors of another width",
    "output in a missing drive",
    "no run to resume",
    "broken settings",
    "broken checkpoint",
    "other settings when resumed",
)


def places(finished: Path, tmp: Path) -> dict[str, Path]:
    """Files and run folders that are wrong."""
    (tmp / "empty").mkdir()
    (tmp / "texts.csv").write_text("text\na\n")
    (tmp / "broken.parquet").write_bytes(b"PAR1")
    (tmp / "broken.jsonl").write_text('{"text": "a", "label": \n')
    (tmp / "latin.csv").write_bytes("text,label\nfiancée,pos\n".encode("latin-1"))
    (tmp / "quote.csv").write_text('text,label\n"a,pos\nb,neg\n')
    (tmp / "case.csv").write_text("text,label\n" + "a,pos\nb,Pos\nc,neg\n" * 10)
    found = {"run": finished, "tmp": tmp}
    for name, file in {
        "broken": "metrics.json",
        "settings": "config.yaml",
        "checkpoint": "checkpoints/best.ckpt",
    }.items():
        found[name] = shutil.copytree(finished, tmp / name)
        (found[name] / file).write_text("{" * 40)
    return found


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(KINDS, id="kinds"),
        pytest.param([*WRONG.keys() - {*KINDS}], id="others", marks=pytest.mark.slow),
    ],
)
def test_any_exception_of_a_command_is_one_line_and_its_traceback_is_in_a_file(
    finished, shell, small, tmp_path, names
):
    known = places(finished, tmp_path)
    before = sums(finished)
    for name in names:
        command, *words = WRONG[name]
        own = [word for word in small if command == "train"]
        keys = {word.partition("=")[0] for word in words}
        own = [word for word in own if word.partition("=")[0] not in keys and "resume" not in keys]
        words = [word.format(**known) for word in words]
        done = shell(command, *own, *words, real="-m" in words)
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
        assert sums(finished) == before, name


def test_from_python_the_exception_passes_through(finished, tmp_path):
    import imdbattn

    known = places(finished, tmp_path)
    with pytest.raises(UserError, match="nothing"):
        imdbattn.load("nothing")
    with pytest.raises(Exception, match=r"checkpoint|archive|magic|zip"):
        imdbattn.load(known["checkpoint"])
