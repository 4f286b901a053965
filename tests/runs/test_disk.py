"""A full disk or a killed writer leaves the old file, no partial file, and one clear line."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.io.files import acquire_lock, build_once, warn_of_soft_locks, write_atomically
from imdbattn.launch.job import ended_jobs
from imdbattn.launch.sweep import begin
from imdbattn.runs.fit import fit
from tests.processes import ROOT
from tests.resuming import contents

TINY = ("model=mean", "trainer.max_epochs=1")


def test_a_file_that_cannot_be_written_is_unchanged(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomically(tmp_path / "file", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write_atomically(tmp_path / "file", "new")
    assert contents(tmp_path) == {"file": b"old"}


def test_one_of_several_threads_builds_the_folder_and_all_get_it_whole(tmp_path):
    built, seen, start = [], [], threading.Barrier(4)

    def build(folder: Path) -> None:
        built.append(1)
        threading.Event().wait(0.1)
        (folder / "file").write_text("whole")
        if len(built) == 1:
            raise ValueError("a mistake")

    def work() -> None:
        start.wait()
        seen.append((build_once(tmp_path / "key", build) / "file").read_text())

    with pytest.raises(ValueError, match="a mistake"):
        build_once(tmp_path / "key", build)
    assert os.listdir(tmp_path) == ["key.lock"], "a builder that fails leaves nothing"
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(built), seen) == (2, ["whole"] * 4)


@pytest.mark.parametrize("size", [1_000, 10_000])  # of settings, of a checkpoint
def test_a_run_whose_files_cannot_be_written_prints_one_line_and_is_not_finished(
    settings, small, tmp_path, size
):
    """A limit of the size of a file stands in for a full disk."""
    cfg, run = settings(*small, *TINY), tmp_path / "run"
    fit(cfg, tmp_path / "first")  # fills the cache
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(UserError, match=rf"{run}.* cannot be written .*: free some space") as e:
            fit(cfg, run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(e.value)
    assert (run / "config.yaml").exists() == (size > 1_000)
    assert not (run / "metrics.json").exists()
    assert not list(run.rglob("*.tmp"))


KILLED = """
import os, signal, sys
from pathlib import Path
from imdbattn.io import files as cache
folder = Path(sys.argv[1])
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def build(folder):
    (folder / "half").write_text("half")
    die()
if sys.argv[2] == "build":
    cache.build_once(folder / "key", build)
setattr(os, sys.argv[2], die)  # with all bytes written, or all but the rename done
cache.write_atomically(folder / "file", "new")
"""


@pytest.mark.parametrize("moment", ["fsync", "replace", "build"])
def test_a_killed_writer_leaves_the_old_file_and_does_not_block_later_ones(tmp_path, moment):
    write_atomically(tmp_path / "file", "old")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), moment],
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    left = contents(tmp_path)
    assert left["file"] == b"old"
    assert [name for name in left if ".tmp" in name], "it was not killed in the middle"
    assert not (tmp_path / "key").exists()
    write_atomically(tmp_path / "file", "newer")
    assert contents(tmp_path)["file"] == b"newer"
    key = build_once(tmp_path / "key", lambda folder: (folder / "whole").touch())
    assert sorted(os.listdir(key)) == ["checksums.json", "whole"]


WITHOUT_LOCKS = (
    "import fcntl\ndef flock(*_):\n    raise OSError(37, 'No locks available')\nfcntl.flock ="
    " flock\n"
)


@pytest.fixture
def failing(monkeypatch):
    """failing(number): flock raises an OSError with this number."""

    def start(number: int) -> None:
        def flock(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    warn_of_soft_locks.cache_clear()
    return start


def test_a_file_is_the_lock_where_the_file_system_has_none(failing, tmp_path, caplog):
    failing(errno.ENOLCK)
    with (
        acquire_lock(tmp_path / "a.lock", "busy"),
        pytest.raises(UserError, match=r"^busy; .*remove .*a\.lock\.soft$"),
    ):
        acquire_lock(tmp_path / "a.lock", "busy")
    acquire_lock(tmp_path / "a.lock", "busy").lock.release()
    (warning,) = caplog.messages
    assert os.strerror(errno.ENOLCK) in warning
    assert not list(tmp_path.glob("*.soft"))


def test_a_sweep_that_cannot_be_locked_ends_with_one_line(failing, tmp_path, capfd):
    failing(errno.EIO)
    hydra = {"sweep": {"dir": str(tmp_path)}, "job": {"chdir": None}}
    config = OmegaConf.create({"hydra": hydra, "resume": None})
    with pytest.raises(SystemExit) as end:
        begin(config)
    assert end.value.code == 2
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_sweep_on_such_a_disk_with_the_id_of_one_wandb_run_makes_a_run_for_each_job(
    small, shell, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LOCKS)
    env = {"WANDB_RUN_ID": "shared", "WANDB_RESUME": "allow"}
    env |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    words = ["-m", *small, *TINY, "logger=wandb", f"data.cache_dir={tmp_path / 'cache'}"]
    words += ["seed=1,2", "hydra.sweep.dir=sweep"]
    done = shell("train", *words, cwd=tmp_path, env=env, real=True)
    assert "file locks do not work here" in done.stdout
    sweep = tmp_path / "sweep"
    assert [job["status"] for job in ended_jobs(sweep).values()] == ["done", "done"]
    assert not list(tmp_path.rglob("*.soft"))
    parts = [path.name for path in sweep.glob("*/wandb/offline-run-*")]
    # two jobs and their comparison
    assert len({part.rpartition("-")[2] for part in parts} - {"shared"}) == 3, parts
