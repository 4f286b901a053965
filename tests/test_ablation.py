"""Heads and layers whose output is replaced by its mean."""

import torch

from imdbattn.faithfulness.ablation import ablate, mean_outputs, units

from .nets import batch, net

REVIEWS = [[5, 9, 12, 30], [7, 8], [40, 41, 42, 43, 44, 45]]


def test_replacing_a_constant_output_changes_nothing(settings):
    model = net(settings, "residual_pe_cls", "model.layer.heads=2", "model.layers=2")
    torch.nn.init.zeros_(model.layers[1].f.value.weight[5:])  # the second head returns its bias
    reviews = batch(model, REVIEWS, padding=2)
    means = mean_outputs(model, [batch(model, REVIEWS, [0, 1]), batch(model, REVIEWS, [2], padding=3)])
    with torch.no_grad():
        logits = model(reviews)
        torch.testing.assert_close(ablate(model, reviews, "layer 2, head 2", means), logits)
        torch.testing.assert_close(ablate(model, reviews, "all but layer 2, head 1", means), logits)
        others = ablate(model, reviews, "all but layer 2", means)
        torch.testing.assert_close(others, ablate(model, reviews, "layer 1", means))
        assert (others - logits).abs().max() > 1e-3
        assert (others - ablate(model, reviews, "layer 2", means)).abs().max() > 1e-3
        assert torch.equal(model(reviews), logits)


def test_a_network_without_layers_has_no_units(settings):
    assert units(net(settings, "learned_query")) == {}
    assert list(units(net(settings, "residual", "model.layers=1"))) == ["layer 1"]
