"""A task from outside the package needs no edit of the package."""

import json
import shutil
from pathlib import Path

import pytest

CONF = Path(__file__).with_name("own_conf")
TAGGING = (f"--config-dir={CONF}", "task=tagging", "data=strings", "model=tagger", "logger=csv")


@pytest.fixture(scope="module")
def tagged(shell, tmp_path_factory):
    """A folder with a run of the task."""
    folder = tmp_path_factory.mktemp("tagging")
    shell("train", *TAGGING, "hydra.run.dir=runs/1", cwd=folder)
    return folder


def test_a_task_of_ones_own_trains_and_is_scored(tagged):
    metrics = json.loads((tagged / "runs" / "1" / "metrics.json").read_text())
    assert metrics["test_accuracy"] > 0.9
    assert metrics["items"] == "tagged strings"
    assert (tagged / "runs" / "1" / "pictures" / "learning_curves.png").exists()


@pytest.mark.slow
def test_a_task_of_ones_own_resumes(tagged, shell, tmp_path):
    metrics = shutil.copytree(tagged / "runs" / "1", tmp_path / "run") / "metrics.json"
    before = json.loads(metrics.read_text())["test_accuracy"]
    metrics.unlink()
    shell("train", "resume=run", "trust=tests", cwd=tmp_path)
    assert json.loads(metrics.read_text())["test_accuracy"] == before


def test_a_task_of_ones_own_predicts_with_trust(tagged, shell):
    words = ["run=runs/1", "text=ahbf"]
    refused = shell("predict", *words, cwd=tagged, status=2)
    assert "_target_=tests.tasks.own_tagging.Tag" in refused.stderr
    assert shell("predict", *words, "trust=tests", cwd=tagged).stdout.startswith("0 1 0 1 ")


def test_a_task_of_ones_own_is_compared(tagged, shell):
    shell("compare", "runs=runs", cwd=tagged)
    table = json.loads((tagged / "runs" / "comparison" / "comparison.json").read_text())
    assert (table["items"], table["variants"][0]["seeds"]) == ("tagged strings", [1])
