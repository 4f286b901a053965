"""Pictures show the numbers of their model."""

import math

import numpy as np
import pytest
import torch

from imdbattn.nn.ladder import sinusoids
from imdbattn.report.run_figures import (
    by_distance,
    dot_products,
    position_tables,
    scores_by_distance,
)
from imdbattn.runs.apply import load_predictor
from imdbattn.runs.fit import fit
from tests.resuming import saved


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
    scale = found.settings.model.net.dump()["positions"].get("scale")
    weights = saved(trained(rung)[0], "best")["state_dict"]
    own_TD = sinusoids(512, 10) if scale else weights["net.positions.table.weight"]
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
    panels = by_distance(scores_by_distance(net)).axes
    assert [axes.get_title() for axes in panels] == ["layer 1", "layer 2", "layer 3"]
    for axes, layer in zip(panels, net.layers, strict=True):
        part = layer.f.distances
        for head, line in enumerate(axes.get_lines()):
            assert line.get_label() == f"head {head + 1}"
            apart_R, shown_R = line.get_data()
            assert apart_R.tolist() == list(range(-20, 21))
            angle_RM = torch.tensor(apart_R)[:, None] * math.pi / 64 ** (torch.arange(8) / 7)
            added_R = angle_RM.cos() @ part.cos_HM[head] + angle_RM.sin() @ part.sin_HM[head]
            np.testing.assert_allclose(shown_R, added_R.detach(), atol=1e-4)
    assert scores_by_distance(reader("base").net) == {}


def test_a_picture_that_fails_gives_only_a_warning(settings, small, tmp_path, monkeypatch, caplog):
    monkeypatch.delattr("imdbattn.runs.pictures.write_attention")
    fit(settings(*small, "model=base", "trainer.max_epochs=1", "pictures=true"), tmp_path)
    assert "write_attention" in caplog.text
    assert (tmp_path / "metrics.json").exists()
