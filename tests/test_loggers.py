"""W&B never stops a run, without key, network or terminal; the results are always in the run folder."""

import json
import os

import pytest

from imdbattn.runs.fit import fit
from imdbattn.tracking import wandb_run


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A user without a W&B account."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    return monkeypatch


def test_it_is_online_only_with_a_key_and_a_server(nobody):
    nobody.setattr(wandb_run, "http_status", lambda *_: 404)
    assert wandb_run.wandb_mode("online", 10) == "offline"
    nobody.setenv("WANDB_API_KEY", "k" * 40)
    assert wandb_run.wandb_mode(None, 10) == "online"
    nobody.setenv("WANDB_MODE", "disabled")
    assert wandb_run.wandb_mode(None, 10) == "disabled"


def test_a_key_without_a_network_goes_offline(nobody, caplog):
    nobody.setenv("WANDB_API_KEY", "k" * 40)
    nobody.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert wandb_run.wandb_mode(None, 10) == "offline"
    assert "does not answer" in caplog.text


def test_a_run_without_an_account_leaves_an_offline_run_and_all_results(nobody, shell, small, tmp_path):
    arguments = [*small, "logger=wandb", "model=mean", "trainer.max_epochs=1"]
    done = shell("train", *arguments, cwd=tmp_path, env={"WANDB_MODE": None})
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.rglob("metrics.json")
    assert list(metrics.parent.glob("wandb/offline-run-*/run-*.wandb"))


def test_wandb_that_fails_does_not_stop_training(settings, small, tmp_path, monkeypatch, caplog):
    import wandb

    def init(**_):
        raise wandb.errors.CommError("server\nin flames")

    monkeypatch.setattr(wandb, "init", init)
    metrics = fit(settings(*small, "logger=wandb", "model=mean", "trainer.max_epochs=1"), tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert "server in flames" in caplog.text


@pytest.mark.parametrize("logger", ["csv", "none", "tensorboard", "wandb"])
def test_metrics_csv_is_always_written(settings, small, tmp_path, logger):
    if logger == "tensorboard":
        pytest.importorskip("tensorboard")
    fit(settings(*small, f"logger={logger}", "model=mean", "trainer.max_epochs=1"), tmp_path)
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0]
    assert "val/accuracy" in header
    assert "train/tokens_per_s" in header
