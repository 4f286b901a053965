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
from imdbattn.runs.fit import fit
from tests.nets import WIDTH, net


def maps(figure) -> list[np.ndarray]:
    """The arrays of a figure's heat maps, in order."""
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


@pytest.mark.parametrize("rung", ["residual_learned", "residual_pe_cls"])
def test_the_heat_map_is_pe_times_pe_of_the_model(settings, rung):
    model = net(settings, rung)
    expected = [sinusoids(512, WIDTH)]
    if rung == "residual_learned":  # the sinusoids stand beside its own
        expected.append(model.positions.table.weight.detach())
    shown = maps(dot_products(position_tables(model, 512)))
    for products_TT, pe_TD in zip(shown, expected, strict=True):
        np.testing.assert_allclose(products_TT, pe_TD @ pe_TD.T, rtol=1e-5, atol=1e-5)


def test_lines_show_what_the_model_adds_for_a_distance(settings):
    model = net(settings, "tuned")
    panels = by_distance(scores_by_distance(model)).axes
    assert [axes.get_title() for axes in panels] == ["layer 1", "layer 2", "layer 3"]
    for axes, layer in zip(panels, model.layers, strict=True):
        part = layer.f.distances
        for head, line in enumerate(axes.get_lines()):
            assert line.get_label() == f"head {head + 1}"
            apart_R, shown_R = line.get_data()
            assert apart_R.tolist() == list(range(-20, 21))
            angle_RM = torch.tensor(apart_R)[:, None] * math.pi / 64 ** (torch.arange(8) / 7)
            added_R = angle_RM.cos() @ part.cos_HM[head] + angle_RM.sin() @ part.sin_HM[head]
            np.testing.assert_allclose(shown_R, added_R.detach(), atol=1e-4)
    assert scores_by_distance(net(settings, "base")) == {}


def test_a_picture_that_fails_gives_only_a_warning(settings, small, tmp_path, monkeypatch, caplog):
    monkeypatch.delattr("imdbattn.runs.pictures.write_attention")
    fit(settings(*small, "model=base", "trainer.max_epochs=1", "pictures=true"), tmp_path)
    assert "write_attention" in caplog.text
    assert (tmp_path / "metrics.json").exists()
