"""Pictures show the numbers of their model, for every rung and any review; pages are safe to
open.
"""

import logging
import math

import numpy as np
import pytest
import torch

from imdbattn.data.corpus import prepare_reviews
from imdbattn.folders.run import Run
from imdbattn.nn.ladder import Mask, sinusoids
from imdbattn.runs.apply import load_predictor
from imdbattn.runs.fit import write_results
from imdbattn.runs.trainer import build_trainer
from imdbattn.tasks.reviews.classifier import ReviewClassifier, ReviewData
from imdbattn.tasks.task import settings_of, validate
from imdbattn.tasks.weights import predictor_of
from imdbattn.tools.explain.figures import (
    by_distance,
    dot_products,
    position_tables,
    review_attention,
    scores_by_distance,
)

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
    scale = found.cfg.model.net.dump()["positions"].get("scale")
    checkpoint = torch.load(trained(rung)[0] / "checkpoints" / "best.ckpt", weights_only=True)
    own_TD = sinusoids(512, 10) if scale else checkpoint["state_dict"]["net.positions.table.weight"]
    tables = position_tables(found.net, 512)
    shown = maps(dot_products(tables))[:count]
    assert len(tables) == count
    np.testing.assert_allclose(shown[-1], own_TD @ own_TD.T, rtol=1e-5, atol=1e-6)
    if count == 2:
        np.testing.assert_allclose(
            shown[0], sinusoids(512, 10) @ sinusoids(512, 10).T, rtol=1e-5, atol=1e-5
        )


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


@pytest.mark.parametrize(("rung", "heads"), [("residual_cls", 2), ("base", 1)])
def test_the_matrices_are_the_softmax_of_the_scores_of_the_model(reader, rung, heads):
    found = reader(rung, *(["model.net.layer.heads=2"] if heads == 2 else []))
    net, batch = found.net, found.batches([TEXT])[0, np.arange(1)]
    attended = found.explain(TEXT).attention
    with torch.no_grad():
        mask = Mask(torch.ones_like(batch.tokens_BT, dtype=torch.bool), batch.positions_BT)
        x_BTD, mask = net.pooling.prepend(net.positions(net.embedding(batch.tokens_BT), mask), mask)
        for layer, weights_HQK in zip(net.layers, attended.layers, strict=True):
            asked_BTD = layer.norm(x_BTD) if layer.skip else x_BTD
            for head, weights_QK in enumerate(weights_HQK):
                part = slice(head * 10 // heads, (head + 1) * 10 // heads)
                query_Td, key_Td = (
                    layer.f.query(asked_BTD)[0, :, part],
                    layer.f.key(asked_BTD)[0, :, part],
                )
                direct_QK = (query_Td @ key_Td.T / math.sqrt(10 // heads)).softmax(-1)
                np.testing.assert_allclose(weights_QK, direct_QK, atol=1e-5)
                np.testing.assert_allclose(weights_QK.sum(-1), 1, atol=1e-5)
            x_BTD = layer(x_BTD, mask)
    count = len(TEXT.split())
    assert (attended.cls, len(attended.keys)) == ("cls" in rung, count + ("cls" in rung))
    shown = [
        shown
        for shown in maps(review_attention(attended))
        if shown.shape == (len(attended.keys),) * 2
    ]
    for weights_QK, shown_QK in zip(np.concatenate(attended.layers), shown, strict=True):
        np.testing.assert_allclose(shown_QK, 100 * weights_QK, rtol=1e-6)


def test_a_picture_that_fails_gives_only_a_warning(trained, tmp_path, monkeypatch, caplog):
    monkeypatch.delattr("imdbattn.tools.explain.pictures.write_attention")
    run = Run(trained("base")[0])
    cfg, predictor = settings_of(run), predictor_of(settings_of(run), run.checkpoint)
    module = ReviewClassifier(
        predictor.net, validate(cfg.dump() | {"test": False, "pictures": True}), predictor.facts
    )
    with caplog.at_level(logging.WARNING):
        write_results(
            tmp_path,
            build_trainer(cfg.trainer),
            module,
            ReviewData(cfg, prepare_reviews(cfg.data)),
            {},
        )
    assert "write_attention" in caplog.text
    assert (tmp_path / "metrics.json").exists()
