"""Any Lightning Logger can be named, and receives curves, settings and results."""

import json
import re
from importlib import metadata

import pytest

from imdbattn.errors import UserError
from imdbattn.runs.fit import fit
from imdbattn.tracking.loggers import Tracker, logged_results

OWN = """
import json
from lightning.pytorch.loggers import Logger

class Lines(Logger):
    name = version = "lines"

    def __init__(self, file):
        super().__init__()
        self.file = file

    def write(self, **values):
        with open(self.file, "a") as file:
            file.write(json.dumps(values, default=str) + "\\n")

    def log_hyperparams(self, params):
        self.write(settings=params)

    def log_metrics(self, metrics, step=None):
        self.write(step=step, **metrics)
"""


ADDED = """
from imdbattn.tracking.loggers import RunLogger

class Tables(RunLogger, Lines):
    def publish_comparison(self, comparison, folder, group):
        self.write(compared=comparison["count"], folder=folder.name, group=group)
"""


def train(settings, small, folder, *overrides) -> dict:
    words = [word for word in small if not word.startswith("logger")]
    return fit(settings(*words, "model=mean", "trainer.max_epochs=2", *overrides), folder)


@pytest.fixture
def own(own_module):
    """Overrides of a logger that writes lines, and its file."""
    own_module("mylog", OWN)
    target = "{_target_: mylog.Lines, file: '{run}/{name}.jsonl'}"
    return "logger=csv", f"+logger.lines={target}"


def test_a_logger_of_ones_own_receives_curves_settings_and_results(
    settings, small, own, tmp_path, monkeypatch
):
    monkeypatch.setenv("SOME_API_KEY", "a secret of the environment")
    metrics = train(settings, small, tmp_path / "run", *own)
    lines = [json.loads(line) for line in (tmp_path / "run" / "mean-s1.jsonl").open()]
    assert lines[0]["settings"]["model.name"] == "mean"
    assert sum("val/accuracy" in line for line in lines) == 2
    assert sum("test/accuracy" in line for line in lines) == 1
    assert lines[-1] == {"step": metrics["steps"], **logged_results(metrics)}
    assert (tmp_path / "run" / "metrics.csv").exists()


def test_a_logger_of_ones_own_receives_the_comparison_of_a_sweep(
    settings, own_module, small, tmp_path
):
    own_module("mylog", OWN + ADDED)
    target = "{_target_: mylog.Tables, file: '{run}/{name}.jsonl'}"
    cfg = settings(*small, f"+logger.tables={target}")
    (tmp_path / "comparison").mkdir()
    Tracker(cfg.logger).publish_comparison({"count": 3}, tmp_path / "comparison", "a-sweep")
    written = json.loads((tmp_path / "comparison" / "a-sweep.jsonl").read_text())
    assert written == {"compared": 3, "folder": "comparison", "group": "a-sweep"}


def test_an_unknown_package_is_one_line_before_data_are_read(
    settings, small, tmp_path, monkeypatch
):
    def missing(name: str) -> str:
        asked.append(name)
        raise metadata.PackageNotFoundError

    asked: list[str] = []
    monkeypatch.setattr(metadata, "version", missing)
    # Without the extra, SwanLab writes runs that it cannot show.
    for package in ("mlflow", "swanlab[dashboard]", "tensorboard"):
        name = package.removesuffix("[dashboard]")
        line = re.escape(f"logger={name} needs a package: pip install '{package}'")
        with pytest.raises(UserError, match=f"{line}$"):
            train(settings, small, tmp_path / "run", f"logger={name}", "data.path=missing")
    assert asked == ["mlflow", "swanlab", "tensorboard"]


@pytest.mark.parametrize("package", ["scikit-learn", "typing-extensions", "lightning>=2"])
def test_an_installed_package_that_a_logger_needs_is_found_by_its_name(settings, package):
    logger = f"{{_target_: lightning.pytorch.loggers.CSVLogger, save_dir: x, needs: '{package}'}}"
    assert Tracker(settings(f"+logger.own={logger}").logger).to_start


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("logger.wandb.mode=sometimes", r"^logger\.wandb: mode=sometimes must be 'online', "),
        ("+logger.lines.folder=x", r"^logger\.lines: got an unexpected .*'folder'"),
    ],
)
def test_a_wrong_argument_of_a_logger_is_one_line_before_data_are_read(
    settings, small, tmp_path, own, word, message
):
    with pytest.raises(UserError, match=message):
        train(settings, small, tmp_path / "run", own[1], word, "data.path=missing")


def test_mlflow_has_curves_settings_and_results(settings, small, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    metrics = train(settings, small, tmp_path / "run", "logger=mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(ids)
    assert (run.info.run_name, run.info.status) == ("mean-s1", "FINISHED")
    assert len(client.get_metric_history(run.info.run_id, "val/accuracy")) == 2
    assert run.data.metrics["test/accuracy"] == pytest.approx(metrics["test_accuracy"])
    assert run.data.params["model.name"] == "mean"


def test_tensorboard_has_curves_and_results(settings, small, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = train(settings, small, tmp_path / "run", "logger=tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert len(events.Scalars("val/accuracy")) == 2
    assert events.Scalars("best/val_accuracy")[0].value == pytest.approx(metrics["val_accuracy"])
