"""Locks where the file system has none, such as on some network disks: a file replaces each lock."""

import errno
import fcntl
import os

import pytest
from omegaconf import OmegaConf

from imdbattn import files
from imdbattn.errors import UserError
from imdbattn.files import acquired
from imdbattn.sweep.job import jobs_of
from imdbattn.sweep.sweep import SweepReport

from .processes import ROOT

WITHOUT_LOCKS = "import fcntl\ndef flock(*_):\n    raise OSError(37, 'No locks available')\nfcntl.flock = flock\n"


@pytest.fixture
def failing(monkeypatch):
    """failing(number): flock raises an OSError with this number."""

    def start(number: int) -> None:
        def flock(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    files.warn_of_soft_locks.cache_clear()
    return start


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_is_the_lock_where_the_file_system_has_none(failing, tmp_path, caplog, number):
    failing(number)
    with acquired(tmp_path / "a.lock", "busy"), pytest.raises(UserError, match=r"^busy; .*remove .*a\.lock\.soft$"):
        acquired(tmp_path / "a.lock", "busy")
    acquired(tmp_path / "a.lock", "busy").lock.release()
    (warning,) = caplog.messages
    assert os.strerror(number) in warning
    assert not list(tmp_path.glob("*.soft"))


def test_a_sweep_that_cannot_be_locked_ends_with_one_line(failing, tmp_path, capfd):
    failing(errno.EIO)
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}, "job": {"chdir": None}}, "resume": None})
    with pytest.raises(SystemExit) as end:
        SweepReport().on_multirun_start(config)
    assert end.value.code == 2
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_sweep_on_such_a_disk_with_the_id_of_one_wandb_run_makes_a_run_for_each_job(small, shell, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LOCKS)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "WANDB_RUN_ID": "shared", "WANDB_RESUME": "allow"}
    words = ["model=mean", "trainer.max_epochs=1", "logger=wandb", f"data.cache_dir={tmp_path / 'cache'}"]
    done = shell("train", "-m", *small, *words, "seed=1,2", "hydra.sweep.dir=sweep", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "file locks do not work here" in done.stdout
    sweep = tmp_path / "sweep"
    assert [job["status"] for job in jobs_of(sweep).values()] == ["done", "done"]
    assert not list(tmp_path.rglob("*.soft"))
    parts = [path.name for path in sweep.glob("*/wandb/offline-run-*")]
    assert len({part.rpartition("-")[2] for part in parts} - {"shared"}) == 3, parts  # two jobs and their comparison
