"""A task from outside the package needs no edit of the package."""

import json
import shutil
from pathlib import Path

import pytest

from ..processes import ROOT

CONF = Path(__file__).with_name("own_conf")
TAGGING = (f"--config-dir={CONF}", "task=tagging", "data=strings", "model=tagger", "logger=csv")
OWN = {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def tagged(shell, tmp_path_factory):
    """A folder with a run of the task."""
    folder = tmp_path_factory.mktemp("tagging")
    done = shell("train", *TAGGING, "hydra.run.dir=runs/1", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_task_of_ones_own_trains_and_is_scored(tagged):
    metrics = json.loads((tagged / "runs" / "1" / "metrics.json").read_text())
    assert metrics["test_accuracy"] > 0.9
    assert metrics["items"] == "tagged strings"
    assert (tagged / "runs" / "1" / "pictures" / "learning_curves.png").exists()


def test_a_task_of_ones_own_resumes(tagged, shell, tmp_path):
    shutil.copytree(tagged / "runs" / "1", tmp_path / "run")
    before = json.loads((tmp_path / "run" / "metrics.json").read_text())
    (tmp_path / "run" / "metrics.json").unlink()
    done = shell("train", "resume=run", "trust=tests", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert after["test_accuracy"] == before["test_accuracy"]


def test_a_task_of_ones_own_predicts(tagged, shell):
    done = shell("predict", "run=runs/1", "text=ahbf", "trust=tests", cwd=tagged)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 1 0 1 ")


def test_a_task_of_ones_own_is_not_imported_without_trust(tagged, shell):
    done = shell("predict", "run=runs/1", "text=ahbf", cwd=tagged)
    assert done.returncode == 2
    assert "_target_=tests.tasks.own_tagging.Tag" in done.stderr


def test_a_task_of_ones_own_is_compared(tagged, shell):
    done = shell("compare", "runs=runs", cwd=tagged)
    assert done.returncode == 0, done.stderr
    table = json.loads((tagged / "runs" / "comparison" / "comparison.json").read_text())
    assert (table["items"], table["rungs"][0]["seeds"]) == ("tagged strings", [1])
