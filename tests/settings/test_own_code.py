"""Custom parts train; those that a run folder names are loaded only if the user trusts them."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from imdbattn.errors import UserError
from imdbattn.launch.resumed_settings import resumed_settings
from imdbattn.runs.apply import load_predictor
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from tests.commands import label_texts
from tests.documents import code, section, words_of
from tests.world import write_files

LAYERS = """
from pathlib import Path

import lightning
from imdbattn.nn.ladder import ResidualLayer

Path(__file__).with_name("imported").touch()


class Halved(ResidualLayer):
    def forward(self, x_BTD, mask):
        return super().forward(x_BTD, mask) / 2


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
  net:
    layers: 1
    layer:
      _target_: mypkg.layers.Halved
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A user's folder, with a package, and a model that names a layer of it."""
    files = {"mypkg/__init__.py": "", "mypkg/layers.py": LAYERS, "conf/model/mine.yaml": MODEL}
    return write_files(tmp_path, files)


def test_custom_layers_and_callbacks_train_and_their_run_is_used_again_with_trust(
    folder, shell, small
):
    own = ["--config-dir=conf", "model=mine", "trainer.max_epochs=2"]
    callback = "+trainer.callbacks=[{_target_: mypkg.layers.Count, file: epochs.txt}]"
    shell("train", *own, *small, callback, "hydra.run.dir=run", cwd=folder)
    # ours are there, and the first is first
    assert (folder / "epochs.txt").read_text() == "RunState\n" * 2
    accuracy = json.loads((folder / "run" / "metrics.json").read_text())["test_accuracy"]

    assert "%" in shell("predict", "run=run", "text=good", "trust=mypkg", cwd=folder).stdout
    done = shell("evaluate", "run=run", "trust=[mypkg]", cwd=folder)
    assert f"accuracy {100 * accuracy:.2f} %" in done.stdout, done.stderr

    (folder / "run" / "metrics.json").unlink()
    shell("train", "resume=run", "trust=mypkg", cwd=folder)
    again = json.loads((folder / "run" / "metrics.json").read_text())
    assert again["test_accuracy"] == accuracy


@pytest.fixture
def foreign(folder, trained, monkeypatch) -> Iterator[Path]:
    """A stranger's run that names an installed class and says itself that it is trusted."""
    monkeypatch.syspath_prepend(folder)
    run = shutil.copytree(trained("residual_pe")[0], folder / "run")
    text = (run / "config.yaml").read_text()
    text = text.replace("imdbattn.nn.ladder.ResidualLayer", "mypkg.layers.Halved")
    assert text.count("mypkg") == 1
    (run / "config.yaml").write_text(text.replace("trust: null", "trust: [mypkg]"))
    yield run
    for name in ("mypkg", "mypkg.layers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("command", ["evaluate", "predict", "resume", "init"])
def test_a_package_that_a_run_folder_names_is_imported_only_with_trust(
    foreign, settings, composed, small, command
):
    def use(*trust: str):
        if command == "resume":
            return resumed_settings(composed(*trust), ["trust"], foreign)
        if command == "init":
            words = [*small, "model=residual_pe", f"init={foreign}", "trainer.max_epochs=1"]
            return fit(settings(*words, *trust), foreign.parent / "new")
        cfg = settings(f"run={foreign}", *trust, config=command)
        return evaluate_run(cfg) if command == "evaluate" else label_texts(cfg, ["a film"])

    imported = foreign.parent / "mypkg" / "imported"
    for trust in ([], ["trust=os"], ["trust=mypk"]):
        with pytest.raises(
            UserError, match=r"_target_=mypkg\.layers\.Halved is not trusted: add trust=mypkg"
        ):
            use(*trust)
        assert not imported.exists()
    use("trust=mypkg")
    assert imported.exists() == (command in ("evaluate", "predict"))  # init= reads the weights only


def test_a_metric_that_a_run_folder_names_needs_trust(trained, composed, tmp_path):
    run = shutil.copytree(trained("mean")[0], tmp_path / "run")
    text = (run / "config.yaml").read_text().replace("trust: null", "trust: [os]")
    (run / "config.yaml").write_text(text.replace("choose_by: accuracy", "choose_by: os.system"))
    with pytest.raises(UserError, match=r"choose_by=os\.system is not trusted: add trust=os"):
        resumed_settings(composed(), [], run)
    own = ["choose_by=os.system"]  # typed in this call
    resumed = resumed_settings(composed(*own), own, run)
    assert (resumed["choose_by"], resumed["trust"]) == ("os.system", None)


@pytest.mark.slow
def test_the_commands_of_the_template_of_the_page_run(shell, small, tmp_path):
    page = section("own_parts.md", "## Template")
    kinds = {"mypkg/__init__.py": "python", "conf/model/gated.yaml": "yaml"}
    write_files(tmp_path, {name: code(page, kind) for name, kind in kinds.items()})
    outputs = []
    for line in code(page, "sh").splitlines():
        command, *arguments = words_of(line)
        if command == "train" and "resume=runs/gated" not in arguments:
            arguments = [word.replace("seed=1,2", "seed=1") for word in arguments]
            arguments += [*small, "trainer.max_epochs=1"]
        if "resume=runs/sweep" in arguments:
            next(tmp_path.glob("runs/sweep/*/metrics.json")).unlink()
        if command == "compare":  # which needs no package
            (tmp_path / "mypkg" / "__init__.py").write_text("raise RuntimeError")
            arguments += ["out=comparison"]
        done = shell(command, *arguments, cwd=tmp_path, real="-m" in arguments)
        outputs.append(done.stdout)
    alone, _, *swept, resumed_run, evaluated, predicted, compared = outputs
    metrics = json.loads((tmp_path / "runs/gated/metrics.json").read_text())
    accuracy = f"{100 * metrics['test_accuracy']:.2f} %"
    assert accuracy in alone
    assert accuracy in evaluated
    assert "1 job: 1 done" in swept[1]
    assert "This run is already finished" in resumed_run
    assert "largest shares" in predicted
    assert "gated" in compared


@pytest.mark.slow
def test_the_metric_of_the_page_chooses_the_epoch_and_is_compared(shell, small, tmp_path):
    page = section("own_parts.md", "## A metric")
    indented = "".join(line + "\n" for line in page.splitlines() if line.startswith("    "))
    files = {"mypkg/__init__.py": "", "mypkg/metrics.py": textwrap.dedent(indented)}
    write_files(tmp_path, files)
    for line in code(page, "sh").splitlines():
        command, *arguments = words_of(line)
        if command == "train":
            arguments += [*small, "hydra.run.dir=runs/one"]
        done = shell(command, *arguments, cwd=tmp_path)
        if command == "train":
            metrics = json.loads((tmp_path / "runs/one/metrics.json").read_text())
            assert -5 <= metrics["test_saving"] <= 0
            assert -5 <= metrics["val_saving"] <= 0
        else:
            assert ("macro F1" if "macro_f1" in line else "saving") in done.stdout


KINDS = """
import torch
from torch import nn

from imdbattn.nn import NoPositions, Pooling, Score
from imdbattn.tasks.reviews.module import ReviewClassifier
from imdbattn.tasks.reviews.task import ReviewTask


class Shifted(NoPositions):
    def forward(self, x_BTD, mask):
        return x_BTD + mask.positions_BT[..., None] / 100


class Nearness(Score):
    def __init__(self, query_width, key_width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def compare(self, query, projected):
        return -self.scale * torch.cdist(query, projected)



OneInput = type("Wrong", (Pooling,), {"forward": lambda self, x_BTD: x_BTD[:, 0]})
WholeSequence = type("Wrong", (Pooling,), {"forward": lambda self, x_BTD, mask: x_BTD})


class Compiled(NoPositions):
    # as after self.forward = torch.compile(self.forward)

    def __init__(self, width):
        super().__init__()
        self.forward = self.shifted

    def shifted(self, x_BTD, mask):
        Compiled.calls += self.training
        return x_BTD

    calls = 0


def first_column(self, query, key):
    return (query @ key.transpose(-2, -1))[..., :1]


Transposed = type("Wrong", (Nearness,), {"forward": first_column})


class Typo(Pooling):
    def __init__(self, width):
        raise ValueError("a typo")


class Doubled(ReviewClassifier):
    def training_loss(self, batch):
        return 2 * super().training_loss(batch)


class DoubledTask(ReviewTask):
    module = Doubled

"""
POOLING = "model.net.pooling._target_=kinds."
KIND = {
    "score of a layer": ["model=residual", "model.net.layer.score._target_=kinds.Nearness"],
    "positions": ["model=base_pe", "model.net.positions._target_=kinds.Shifted"],
    "module": ["model=mean", "task._target_=kinds.DoubledTask"],
}


@pytest.fixture
def kinds(own_module) -> Path:
    return own_module("kinds", KINDS).parent


@pytest.mark.parametrize("name", KIND)
def test_each_kind_of_part_trains_and_is_scored_and_explained(kinds, settings, small, name):
    run = kinds / "run"
    metrics = fit(settings(*small, *KIND[name], "trainer.max_epochs=1"), run)
    scored = evaluate_run(settings(f"run={run}", "trust=kinds", config="evaluate"))
    assert scored["accuracy"] == metrics["test_accuracy"]
    cfg = settings(f"run={run}", "trust=kinds", config="predict")
    ((result,), _) = label_texts(cfg, ["a good film"])
    predictor, _ = load_predictor(cfg)
    explained = predictor.explain("a good film")
    assert explained.output == result.output
    assert sum(share for *_, share in explained.words) == pytest.approx(1)


def test_a_part_that_replaces_its_own_forward_is_trained_with_it(kinds, settings, small):
    words = ["model=mean", "model.net.positions._target_=kinds.Compiled", "trainer.max_epochs=1"]
    metrics = fit(settings(*small, *words), kinds / "run")
    assert import_module("kinds").Compiled.calls == metrics["steps"]


IN_POOLING = r"^model\.net\.pooling \(kinds\.Wrong\): "
WRONG = {
    "one input": (
        ["model=mean", POOLING + "OneInput"],
        IN_POOLING + ".*takes 2 positional arguments but 3 were given",
    ),
    "a sequence": (
        ["model=mean", POOLING + "WholeSequence"],
        IN_POOLING + r"it returns shape .* instead of \(\d+, 10\)",
    ),
    "a score": (
        ["model=base", "model.net.layer.score._target_=kinds.Transposed"],
        r"score \(kinds\.Wrong\): it returns",
    ),
    "an error of its own": (["model=mean", POOLING + "Typo"], "model=mean: a typo"),
}


@pytest.mark.parametrize(("overrides", "line"), WRONG.values(), ids=WRONG)
def test_an_error_in_a_part_gives_one_line_and_keeps_the_earlier_state(
    kinds, settings, small, overrides, line
):
    earlier = {"checkpoints/last.ckpt": "of a stopped run", "environment.json": "{}"}
    earlier["config.yaml"] = json.dumps(settings(*small).dump())
    write_files(kinds / "run", earlier)
    with pytest.raises(UserError, match=line) as error:
        fit(settings(*small, *overrides), kinds / "run")
    assert "\n" not in str(error.value)
    for name in ("checkpoints/last.ckpt", "config.yaml"):
        assert (kinds / "run" / name).read_text() == earlier[name]
