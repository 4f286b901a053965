"""Pictures show the numbers of their model, for every rung and any review; pages are safe to open."""

import logging
import math
import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from imdbattn.data.corpus import prepare
from imdbattn.explain.figures import (
    attention_png,
    by_distance,
    dot_products,
    learning_curves,
    png,
    position_tables,
    review_attention,
    scores_by_distance,
)
from imdbattn.explain.prediction import AttentionWeights, entropy
from imdbattn.explain.show import DETAILED, page, write_attention
from imdbattn.nn.ladder import Words, sinusoids
from imdbattn.run_folder import open_run, read_curves
from imdbattn.runs.predict import load_predictor
from imdbattn.settings.keys import as_dict
from imdbattn.tasks import pictures, reviews
from imdbattn.tasks.pictures import short_review
from imdbattn.tasks.reviews import TASK

from .commands import label_texts

TEXT = "The film was n't a great story , and it was a dull plot ."


@pytest.fixture(scope="session")
def reader(trained, settings):
    """reader("base", overrides...): the model of a rung trained on the small world."""

    def load(rung: str, *overrides: str):
        folder, _ = trained(rung, *overrides)
        return load_predictor(settings(f"run={folder}", config="predict"))[0]

    return load


def maps(figure) -> list[np.ndarray]:
    """The arrays of a figure's heat maps, in order."""
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


@pytest.mark.parametrize(("rung", "count"), [("residual_learned", 2), ("residual_pe_cls", 1)])
def test_the_heat_map_is_pe_times_pe_of_the_trained_model(trained, reader, rung, count):
    found = reader(rung)
    scale = as_dict(found.cfg.model)["positions"].get("scale")
    checkpoint = torch.load(trained(rung)[0] / "checkpoints" / "best.ckpt", weights_only=True)
    own_TD = scale * sinusoids(512, 10) if scale else checkpoint["state_dict"]["net.positions.table.weight"]
    tables = position_tables(found.net, 512)
    shown = maps(dot_products(tables))[:count]
    assert len(tables) == count
    np.testing.assert_allclose(shown[-1], own_TD @ own_TD.T, rtol=1e-5, atol=1e-6)
    if count == 2:
        np.testing.assert_allclose(shown[0], sinusoids(512, 10) @ sinusoids(512, 10).T, rtol=1e-5, atol=1e-5)


def test_lines_show_what_the_trained_model_adds_for_a_distance(reader):
    net = reader("tuned").net
    panels = by_distance(scores_by_distance(net, reach=4)).axes
    assert [axes.get_title() for axes in panels] == ["layer 1", "layer 2", "layer 3"]
    for axes, layer in zip(panels, net.layers, strict=True):
        part = layer.f.distances
        for head, line in enumerate(axes.get_lines()):
            assert line.get_label() == f"head {head + 1}"
            apart_R, shown_R = line.get_data()
            assert apart_R.tolist() == list(range(-4, 5))
            angle_RM = torch.tensor(apart_R)[:, None] * math.pi / 64 ** (torch.arange(8) / 7)
            added_R = angle_RM.cos() @ part.cos_HM[head] + angle_RM.sin() @ part.sin_HM[head]
            np.testing.assert_allclose(shown_R, added_R.detach(), atol=1e-4)
    assert scores_by_distance(reader("base").net) == {}


@pytest.mark.parametrize(("rung", "heads"), [("residual_cls", 2), ("residual_pe_cls", 1), ("base", 1)])
def test_the_matrices_are_the_softmax_of_the_scores_of_the_model(reader, rung, heads):
    found = reader(rung, *(["model.layer.heads=2"] if heads == 2 else []))
    net, batch = found.net, found.batches([TEXT])[0, np.arange(1)]
    attended = found.explain(TEXT).attention
    with torch.no_grad():
        words = Words(torch.ones_like(batch.tokens_BT, dtype=torch.bool), batch.positions_BT)
        x_BTD, words = net.pooling.prepend(net.positions(net.embedding(batch.tokens_BT), words), words)
        for layer, weights_HQK in zip(net.layers, attended.layers, strict=True):
            asked_BTD = layer.norm(x_BTD) if layer.skip else x_BTD
            for head, weights_QK in enumerate(weights_HQK):
                part = slice(head * 10 // heads, (head + 1) * 10 // heads)
                query_Td, key_Td = layer.f.query(asked_BTD)[0, :, part], layer.f.key(asked_BTD)[0, :, part]
                direct_QK = (query_Td @ key_Td.T / math.sqrt(10 // heads)).softmax(-1)
                np.testing.assert_allclose(weights_QK, direct_QK, atol=1e-5)
                np.testing.assert_allclose(weights_QK.sum(-1), 1, atol=1e-5)
            x_BTD = layer(x_BTD, words)
    count = len(TEXT.split())
    assert (attended.cls, len(attended.keys)) == ("cls" in rung, count + ("cls" in rung))
    shown = [shown for shown in maps(review_attention(attended)) if shown.shape == (len(attended.keys),) * 2]
    for weights_QK, shown_QK in zip(np.concatenate(attended.layers), shown, strict=True):
        np.testing.assert_allclose(shown_QK, 100 * weights_QK, rtol=1e-6)


def test_the_weights_are_those_of_the_cls_query_or_of_the_mean_query(reader):
    cls = reader("residual_cls", "model.layer.heads=2").explain(TEXT).attention
    mean = reader("base").explain(TEXT).attention
    np.testing.assert_allclose(cls.received()["layer 3, <cls>"], cls.layers[2][:, 0].mean(0))
    np.testing.assert_allclose(mean.received()["layer 1, mean query"], mean.layers[0].mean((0, 1)), rtol=1e-5)


@pytest.mark.parametrize("rung", ["learned_query", "text_query"])
def test_a_query_that_pools_shows_its_weights(reader, rung):
    found = reader(rung).explain(TEXT)
    assert list(found.attention.received()) == ["pooling"]
    np.testing.assert_allclose(found.attention.pooling, [share for *_, share in found.words], rtol=1e-5)
    assert maps(review_attention(found.attention))[0].shape == (1, len(found.words))


@given(keys=st.integers(1, 300), seed=st.integers(0, 99))
def test_entropy_is_log_of_the_number_of_keys_when_all_are_equal_and_never_more(keys, seed):
    uniform = np.full((2, keys, keys), 1 / keys)
    (nats, *_) = AttentionWeights(["w"] * keys, [uniform]).entropies().values()
    assert math.exp(nats) == pytest.approx(keys)
    assert entropy(np.eye(keys)).max() == 0
    drawn = np.random.default_rng(seed).dirichlet(np.full(keys, 0.3))
    assert -1e-9 <= entropy(drawn) <= math.log(keys) + 1e-9


ANY = {"empty": "", "short": TEXT, "unknown": "zzz", "long": "dull " * 600}
DRAWN = ("mean", "learned_query", "text_query", "residual_cls", "base")


@pytest.mark.parametrize(
    ("rung", "text"),
    [
        pytest.param(rung, text, id=f"{rung}-{kind}", marks=() if quick else pytest.mark.slow)
        for rung in DRAWN
        for kind, text in ANY.items()
        for quick in [rung == "residual_cls" or (rung, kind) == ("base", "short")]
    ],
)
def test_every_rung_and_review_has_its_page(reader, rung, text, tmp_path):
    write_attention(reader(rung).explain(text), tmp_path / "new" / "one")
    content = (tmp_path / "new" / "one" / "attention.html").read_text()
    assert (tmp_path / "new" / "one" / "attention.png").exists() == (rung != "mean")
    assert ("data:image/png" in content) == (rung != "mean")
    if rung != "mean":
        read = min(max(len(text.split()), 1), 512) + rung.endswith("cls")
        assert f"maximum: log {read}<" in content


def test_a_long_review_is_shortened_and_the_title_says_so():
    attended = AttentionWeights(["<cls>", *"abcdefghij"], [np.full((1, 11, 11), 1 / 11)], cls=True)
    figure = review_attention(attended, words=4)
    assert figure.get_suptitle() == "Attention to the first 4 of 10 words"
    assert maps(figure)[1].shape == (5, 5)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["<cls>", *"abcd"]
    assert review_attention(attended, words=10).get_suptitle() == "Attention to 10 words"


def test_any_word_can_be_on_an_axis():
    words = ["$x_$", "$\\frac", "\x96", "日本", "😀", "\ud800", "<b>", "a" * 99]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png(review_attention(AttentionWeights(words, [np.full((1, 8, 8), 0.125)]))).startswith(b"\x89PNG")


def test_a_page_of_many_reviews_shows_the_first_ones_in_full(trained, settings):
    folder, _ = trained("learned_query")
    found, _ = label_texts(settings(f"run={folder}", "explain=true", config="predict"), ["good film"] * (DETAILED + 2))
    assert [one.attention is not None for one in found] == [True] * DETAILED + [False] * 2
    made = page(found, map(attention_png, found))
    assert made.count("<img") == DETAILED
    assert f"for the first {DETAILED} reviews" in made


@pytest.mark.parametrize("epochs", [1, 2, 8])
def test_learning_curves_have_whole_epochs_and_name_their_lines(epochs, tmp_path):
    lines = "".join(f"{epoch},{epoch},0.5,,0.5,\n{epoch},{epoch},,0.25,,0.5\n" for epoch in range(epochs))
    (tmp_path / "metrics.csv").write_text(f"epoch,step,train/accuracy,val/accuracy,train/loss,val/loss\n{lines}")
    figure = learning_curves(read_curves(tmp_path / "metrics.csv"), "single symbols", "whole strings")
    ticks = {tick for axes in figure.axes for tick in axes.get_xticks()}
    assert all(tick == round(tick) for tick in ticks)
    assert set(range(1, epochs + 1)) & ticks
    training, validation = figure.axes[1].get_lines()
    assert training.get_ydata().tolist() == [50.0] * epochs
    assert validation.get_ydata().tolist() == [25.0] * epochs
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == ["single symbols", "whole strings"]


@pytest.fixture
def finished(trained):
    """finished("base"): what fit has at its end: settings, corpus, module, folder."""

    def run(rung: str, **changes):
        folder, _ = trained(rung)
        cfg, checkpoint = open_run(str(folder))
        corpus = prepare(cfg.data)
        return TASK.load(cfg, checkpoint, corpus), corpus, OmegaConf.merge(cfg, changes)

    return run


@pytest.mark.parametrize(
    ("rung", "expected"),
    [
        ("mean", {"attention.html"}),
        pytest.param("base", {"attention.html", "attention.png"}, marks=pytest.mark.slow),
        pytest.param("residual_pe_cls", {"attention.html", "attention.png", "positions.png"}, marks=pytest.mark.slow),
        pytest.param("residual_learned", {"attention.html", "attention.png", "positions.png"}, marks=pytest.mark.slow),
        pytest.param("tuned", {"attention.html", "attention.png", "distances.png"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_draws_the_pictures_that_its_rung_has(finished, rung, expected, tmp_path, caplog):
    TASK.draw(*finished(rung), tmp_path)
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == expected
    assert not caplog.records


@pytest.mark.parametrize("test", [True, False])
def test_a_run_shows_the_shortest_review_of_thirty_words(finished, test, tmp_path, monkeypatch):
    module, corpus, cfg = finished("base", test=test)
    shown = []
    monkeypatch.setattr(reviews, "write_attention", lambda found, folder: shown.append(found))
    TASK.draw(module, corpus, cfg, tmp_path)
    split = "test" if test else "validation"
    assert shown[0].text in pq.read_table(corpus.texts(split))["text"].to_pylist()
    assert len(shown[0].words) == min(length for length in corpus.splits[split].lengths.tolist() if length >= 30)
    monkeypatch.setattr(pictures, "WORDS", 1000)
    assert len(short_review(corpus, "test").split()) >= corpus.splits["test"].lengths.max() - 1


def test_a_picture_that_fails_gives_only_a_warning(finished, tmp_path, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr(reviews, "write_attention", broken)
    with caplog.at_level(logging.WARNING):
        TASK.draw(*finished("base"), tmp_path)
    assert "no ink" in caplog.text
