"""The Python API gives the results of the commands, and refuses wrong input in one line."""

import json
import logging
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import imdbattn
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.settings.keys import conf_dir
from tests.commands import label_texts, run_process
from tests.processes import ROOT
from tests.resuming import differences, saved
from tests.world import BAD, FILLER, GOOD

TEXTS = ["the film was great and lovely .", "a dull bad story", "", "the actor was fine"]


@pytest.fixture
def model(trained) -> imdbattn.Model:
    return imdbattn.load(trained("residual_pe")[0])


@pytest.fixture
def writer(folder_of) -> imdbattn.Model:
    """An encoder-decoder."""
    return imdbattn.load(folder_of("seq2seq_attention"))


def files_in(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.name != ".lock"}


def test_import_and_comparison_load_no_torch():
    code = """if True:
        import sys, imdbattn
        names = {"load", "compare", "train", "Model", "ReviewClassifier", "UserError"}
        assert names <= set(dir(imdbattn))
        assert imdbattn.__version__ and imdbattn.UserError
        print(*sys.modules, sep=",")
        imdbattn.compare
        print(*sys.modules, sep=",")"""
    done = run_process(["-c", code], ROOT, os.environ)
    first, second = (set(line.split(",")) for line in done.stdout.splitlines())
    assert not {"torch", "lightning", "hydra", "pydantic", "numpy", "wandb", "pandas"} & first
    assert not {"torch", "lightning", "wandb", "datasets"} & second


def test_a_run_is_loaded_from_its_folder_or_a_checkpoint_in_it(trained, tmp_path, monkeypatch):
    folder = shutil.copytree(trained("residual_pe")[0], tmp_path / "home" / "run")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    best = [*imdbattn.load(folder).predict(TEXTS)]
    for path in ("~/run", "home/run", str(folder).encode(), folder / "checkpoints/best.ckpt"):
        model = imdbattn.load(path)
        assert (model.folder, model.labels) == (folder, ["neg", "pos"])
        assert [*model.predict(TEXTS)] == best
    assert model.settings["model"]["name"] == "residual_pe"
    loaded = imdbattn.load(folder / "checkpoints" / "last.ckpt").net.state_dict()
    for name, weight in saved(folder)["state_dict"].items():
        assert torch.equal(loaded[name.removeprefix("net.")], weight)


def test_a_checkpoint_becomes_a_lightning_module(trained):
    folder, _ = trained("residual_pe")
    file = folder / "checkpoints/best.ckpt"
    classifier = imdbattn.ReviewClassifier.load_from_checkpoint(file, map_location="cpu")
    loaded = imdbattn.load(folder).net.state_dict()
    for name, weight in classifier.net.state_dict().items():
        assert torch.equal(weight, loaded[name])


def test_predictions_equal_those_of_the_command(model, settings):
    expected, _ = label_texts(settings(f"run={model.folder}", config="predict"), TEXTS)
    found = model.predict(TEXTS)
    assert [*found] == expected
    assert found.labels.tolist() == [reading.output for reading in expected]
    np.testing.assert_allclose(found.probabilities.sum(1), 1)
    for one, row in zip(found, found.probabilities, strict=True):
        assert one.probability == row.max() == one.probabilities[one.label]
        assert model.labels[row.argmax()] == one.label
    frame = found.to_frame()
    assert frame["label"].tolist() == found.labels.tolist()
    assert frame["probability_pos"].tolist() == found.probabilities[:, 1].tolist()


def test_predict_takes_text_in_any_container(model):
    first, second = model.predict(TEXTS[:2])
    assert [*model.predict(TEXTS[0])] == [first]  # not its letters
    frame = pd.DataFrame({"review": TEXTS[:2]}, index=[7, 3])
    for texts in (tuple(TEXTS[:2]), frame["review"], np.array(TEXTS[:2]), iter(TEXTS[:2])):
        assert [*model.predict(texts)] == [first, second]
    empty = model.predict([])
    assert (len(empty), empty.labels.tolist()) == (0, [])
    assert empty.to_frame().empty


def test_a_model_of_a_run_and_one_of_an_export_can_be_pickled(model, tmp_path):
    model.export(tmp_path / "export")
    for each in (model, imdbattn.load(tmp_path / "export")):
        copy = pickle.loads(pickle.dumps(each))
        assert (
            copy.predict(GOOD).probabilities.tolist() == each.predict(GOOD).probabilities.tolist()
        )


def test_what_is_no_text_is_named(model):
    for texts, row, item in (([None], 0, "None"), (pd.Series([TEXTS[0], np.nan]), 1, "nan")):
        with pytest.raises(
            imdbattn.UserError, match=rf"text {row} \(counted from 0\) is {item} instead"
        ):
            model.predict(texts)
    for texts in ({"text": TEXTS}, pd.DataFrame({"text": TEXTS})):  # whose items are names
        with pytest.raises(imdbattn.UserError, match="give a text, or texts in a list"):
            model.predict(texts)


def test_an_encoder_decoder_generates_sequences(writer, settings):
    texts = ["ABC", "ZDKA"]
    options = {"beams": 3, "length_penalty": 0.0}
    words = [f"{name}={value}" for name, value in options.items()]
    expected, _ = label_texts(settings(f"run={writer.folder}", *words, config="predict"), texts)
    found = writer.predict(texts, **options)
    assert found.labels.tolist() == [one.output for one in expected]
    assert found.probabilities[:, 0].tolist() == [one.probability for one in expected]
    explanation = writer.explain("ABC")
    assert explanation.words == ["A", "B", "C"]
    assert explanation.weights.shape == (len(explanation.prediction.row_names), 3)
    assert "<img" in explanation._repr_html_()
    assert 0 <= writer.evaluate().accuracy <= 1


def test_evaluate_gives_the_numbers_of_the_command_and_writes_nothing(trained, settings, world):
    folder, recorded = trained("residual_pe")
    model = imdbattn.load(folder)
    before, predictions = files_in(folder), [*model.predict(TEXTS)]
    metrics = model.evaluate()
    assert (metrics.accuracy, metrics["loss"]) == (recorded["test_accuracy"], recorded["test_loss"])
    assert model.evaluate(split="validation").accuracy == recorded["val_accuracy"]
    half = model.evaluate(precision="bf16-true")
    file = model.evaluate(world / "reviews.csv")
    assert files_in(folder) == before
    assert [*model.predict(TEXTS)] == predictions  # its weights have not changed
    assert half.loss != metrics.loss
    words = [f"run={folder}", f"data.path={world}/reviews.csv"]
    assert dict(file) == evaluate_run(settings(*words, config="evaluate"))
    assert f"<td>{metrics.accuracy:.4f}</td>" in metrics._repr_html_()


def test_evaluate_takes_texts_and_labels(model):
    texts = pd.Series([" ".join((*FILLER, *words)) for words in (GOOD, BAD)] * 20)
    named = model.evaluate(texts, ["pos", "neg"] * 20)
    assert dict(model.evaluate(texts, np.array([1, 0] * 20)))["accuracy"] == named.accuracy
    right = np.mean(model.predict(texts).labels == np.array(["pos", "neg"] * 20))
    assert named.accuracy == pytest.approx(right)
    assert (named.count, named.test_set) == (40, "40 given texts")
    assert model.evaluate("a great film", "pos").count == 1
    for data, labels in ((["a great film"], None), (None, ["pos"]), (["good", "bad"], ["pos"])):
        with pytest.raises(imdbattn.UserError, match="texts and a label for each"):
            model.evaluate(data, labels)
    with pytest.raises(imdbattn.UserError, match=r"texts and a label .* is a file or folder"):
        model.evaluate(f"{model.folder}/metrics.csv", ["pos"])  # it would be one text


def test_training_equals_that_of_the_command_and_leaves_the_process_unchanged(
    small, settings, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    overrides = (*small, "model=mean", "trainer.max_epochs=2")
    fit(settings(*overrides), tmp_path / "expected")

    def state() -> list:
        process = [list(sys.argv), os.getcwd(), *map(signal.getsignal, range(1, 20))]
        process += [torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()]
        process += [torch.utils.deterministic.fill_uninitialized_memory, random.getstate()]
        process += [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()]
        names = ("imdbattn", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
        return [*process, *warnings.filters, *(logging.getLogger(name).level for name in names)]

    torch.backends.mkldnn.matmul.fp32_precision = "none"  # as in a new process
    torch.set_num_threads(2)  # small has threads=1
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    warnings.resetwarnings()
    logging.getLogger("lightning.fabric").setLevel(logging.INFO)
    before = state()
    runs = [imdbattn.train(*overrides) for _ in range(2)]
    assert state() == before
    # which Lightning calls on a GPU; an error if oneDNN's setting was changed
    torch.get_float32_matmul_precision()
    for run in runs:
        assert differences(tmp_path / "expected", run.folder) == []
    assert runs[0].folder != runs[1].folder
    assert runs[1].folder == Path("runs/latest").resolve()
    assert dict(runs[0].metrics) == json.loads((runs[0].folder / "metrics.json").read_text())
    model = runs[0].model
    before = state()
    assert model.evaluate().accuracy == runs[0].metrics.test_accuracy
    assert state() == before
    torch.set_num_threads(1)
    again = imdbattn.train(config={**runs[0].model.settings, "seed": 2}, folder="second")
    assert (again.metrics.seed, again.folder) == (2, tmp_path / "second")


def test_training_runs_inside_a_program_that_uses_hydra_and_outside_the_main_thread(
    small, tmp_path
):
    runs: list = []
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        own = GlobalHydra.instance().hydra
        arguments = (*small, "model=mean", "trainer.max_epochs=1")
        thread = threading.Thread(
            target=lambda: runs.append(imdbattn.train(*arguments, folder=tmp_path / "run"))
        )
        thread.start()
        thread.join()
        assert GlobalHydra.instance().hydra is own
    assert runs[0].metrics.epochs == 1
    with pytest.raises(imdbattn.UserError, match="give resume= or folder=, not both"):
        imdbattn.train(f"resume={tmp_path}/run", folder=tmp_path / "other")
