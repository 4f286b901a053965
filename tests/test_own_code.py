"""Users' own layers and callbacks train; those that a run folder names are loaded only where the user trusts them."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from imdbattn.errors import UserError
from imdbattn.picture import draw
from imdbattn.runs.fit import fit
from imdbattn.runs.resume import resumed
from imdbattn.runs.score import load_predictor, score_run
from imdbattn.sweep.job import jobs_of

from .commands import label_texts

LAYERS = """
from pathlib import Path

import lightning
from imdbattn.nn.ladder import ResidualLayer

Path(__file__).with_name("imported").touch()


class Halved(ResidualLayer):
    def forward(self, x_BTD, words):
        return super().forward(x_BTD, words) / 2


class Count(lightning.Callback):
    def __init__(self, file):
        self.file = Path(file)

    def on_train_epoch_end(self, trainer, module):
        with self.file.open("a") as file:
            file.write(type(trainer.callbacks[0]).__name__ + "\\n")
"""
MODEL = """# @package _global_
defaults:
  - residual
  - _self_
model:
  name: mine
  layers: 1
  layer:
    _target_: mypkg.layers.Halved
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A user's folder, with a package, and a model that names a layer of it."""
    for name, content in {"mypkg/__init__.py": "", "mypkg/layers.py": LAYERS, "conf/model/mine.yaml": MODEL}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_own_layers_and_callbacks_train_and_a_run_with_them_is_used_again_with_trust(folder, shell, small):
    own = ["--config-dir=conf", "model=mine", "trainer.max_epochs=2"]
    callback = "+trainer.callbacks=[{_target_: mypkg.layers.Count, file: epochs.txt}]"
    done = shell("train", *own, *small, callback, "hydra.run.dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "epochs.txt").read_text() == "ResumeCheckpoint\n" * 2  # ours are there, and the first is first
    metrics = json.loads((folder / "run" / "metrics.json").read_text())

    (folder / "mypkg" / "imported").unlink()
    refused = shell("predict", "run=run", "text=good", cwd=folder)
    assert refused.returncode == 2
    assert "run/config.yaml: trainer.callbacks.0._target_=mypkg.layers.Count is outside imdbattn" in refused.stderr
    assert "add trust=mypkg" in refused.stderr
    assert not (folder / "mypkg" / "imported").exists()
    assert "%" in shell("predict", "run=run", "text=good", "trust=mypkg", cwd=folder).stdout
    done = shell("evaluate", "run=run", "trust=[mypkg]", cwd=folder)
    assert f"accuracy {100 * metrics['test_accuracy']:.2f} %" in done.stdout, done.stderr

    (folder / "run" / "metrics.json").unlink()
    assert "add trust=mypkg" in shell("train", "resume=run", cwd=folder).stderr
    done = shell("train", "resume=run", "trust=mypkg", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "run" / "metrics.json").read_text())["test_accuracy"] == metrics["test_accuracy"]


def test_own_layers_are_swept_and_the_same_sweep_resumes_without_trust(folder, shell, small):
    own = ["-m", "--config-dir=conf", "model=mine", "seed=1", "trainer.max_epochs=1", *small]
    done = shell("train", *own, "hydra.sweep.dir=sweep", cwd=folder)
    assert done.returncode == 0, done.stderr
    next(folder.glob("sweep/*/metrics.json")).unlink()
    done = shell("train", *own, "resume=sweep", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "resumes from its last checkpoint" in done.stdout
    assert [job["status"] for job in jobs_of(folder / "sweep").values()] == ["done"]


@pytest.fixture
def foreign(folder, trained, monkeypatch) -> Iterator[Path]:
    """A stranger's run that names a class of a package which is installed here, and says itself that it is trusted."""
    monkeypatch.syspath_prepend(folder)
    run = shutil.copytree(trained("residual_pe")[0], folder / "run")
    text = (run / "config.yaml").read_text().replace("imdbattn.nn.ladder.ResidualLayer", "mypkg.layers.Halved")
    assert text.count("mypkg") == 1
    (run / "config.yaml").write_text(text.replace("trust: null", "trust: [mypkg]"))
    yield run
    for name in ("mypkg", "mypkg.layers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("command", ["evaluate", "predict", "picture", "resume", "init"])
def test_a_package_that_a_run_folder_names_is_imported_only_with_trust(foreign, settings, composed, small, command):
    def use(*trust: str):
        if command == "resume":
            return resumed(composed(*trust), ["trust"], foreign)
        if command == "init":
            return fit(settings(*small, "model=residual_pe", f"init={foreign}", *trust), foreign.parent / "new")
        if command == "picture":
            return draw(composed(f"run={foreign}", *trust, "picture=attention", f"row={10**9}", config="picture"))
        cfg = settings(f"run={foreign}", *trust, config=command)
        return score_run(cfg) if command == "evaluate" else label_texts(cfg, ["a film"])

    imported = foreign.parent / "mypkg" / "imported"
    for trust in ([], ["trust=os"], ["trust=mypk"]):
        with pytest.raises(UserError, match=r"_target_=mypkg\.layers\.Halved is outside imdbattn: add trust=mypkg"):
            use(*trust)
        assert not imported.exists()
    if later := {"picture": "row=1000000000 is not among", "init": "is a run of task=reviews"}.get(command):
        with pytest.raises(UserError, match=later):  # which comes after the settings were read
            use("trust=mypkg")
    else:
        use("trust=mypkg")
        assert imported.exists() == (command != "resume")


def test_what_a_run_folder_says_of_trust_counts_for_nothing(foreign, composed):
    assert resumed(composed("trust=[mypkg,other]"), [], foreign)["trust"] == ["mypkg", "other"]
    with pytest.raises(UserError, match="trust=5 must be the name of a package"):
        resumed(composed("trust=5"), ["trust"], foreign)


def test_lightnings_own_callbacks_in_a_run_folder_need_trust_too(trained, composed, tmp_path):
    """They write files wherever their arguments say."""
    run = shutil.copytree(trained("mean")[0], tmp_path / "run")
    callback = f"  callbacks: [{{_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: {tmp_path}}}]\n"
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("trainer:\n", f"trainer:\n{callback}"))
    with pytest.raises(UserError, match=r"trainer\.callbacks\.0\._target_=lightning.* add trust=lightning"):
        resumed(composed(), [], run)


@pytest.mark.parametrize("layer", [torch.nn.Linear(10, 10), type("Silent", (torch.nn.Module,), {"skip": True})()])
def test_a_layer_that_records_no_attention_cannot_be_explained(trained, settings, layer):
    folder, _ = trained("base")
    predictor, _ = load_predictor(settings(f"run={folder}", config="predict"))
    predictor.module.net.layers[0] = layer
    layer.forward = lambda x_BTD, words: x_BTD
    assert predictor.label(["a film"])[0].output in ("neg", "pos")
    with pytest.raises(UserError, match="model=base: a layer has no attribute `skip`, or a part does not append"):
        predictor.explain("a film")
