"""Other attention weights: permuted ones, and an adversary whose output stays the same."""

import pytest
import torch

from imdbattn.faithfulness.counterfactual import adversary, permute, replaced

from .nets import batch, net

REVIEWS = [[5, 9, 12, 30], [7, 8], [], [40, 41, 42, 43, 44, 45]]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_permuting_equal_weights_changes_nothing(settings):
    model = net(settings, "learned_query")
    torch.nn.init.zeros_(model.pooling.query_D)
    distance_B, largest_B = permute(model, batch(model, REVIEWS), 9, seeded())
    torch.testing.assert_close(distance_B, torch.zeros_like(distance_B), atol=1e-5, rtol=0)
    torch.testing.assert_close(largest_B, torch.tensor([1 / 4, 1 / 2, 1, 1 / 6]))


@pytest.mark.parametrize("rung", ["learned_query", "residual_pe_cls"])
def test_results_do_not_depend_on_the_batch(settings, rung):
    model = net(settings, rung).double()
    for function, options in ((permute, (5,)), (adversary, (0.05, 3, 2))):
        together = function(model, batch(model, REVIEWS, padding=3), *options, seeded())
        for row in range(len(REVIEWS)):
            one = batch(model, REVIEWS, [row])
            for alone_B, all_B in zip(function(model, one, *options, seeded()), together, strict=True):
                torch.testing.assert_close(alone_B, all_B[[row]], atol=1e-7, rtol=1e-5)
    assert permute(model, batch(model, REVIEWS), 9, seeded())[0].max() > 1e-3


def test_the_adversary_keeps_the_output_and_the_network(settings):
    model = net(settings, "residual_pe_cls")
    reviews = batch(model, REVIEWS)
    before = model(reviews)
    divergence_B, distance_B = adversary(model, reviews, 0.05, 10, 2, seeded())
    assert (distance_B <= 0.05).all()
    assert (divergence_B >= 0).all()
    assert divergence_B.max() > 0.01
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ZeroDivisionError), replaced(model, lambda number, value: value / 0 if number < 0 else 1 / 0):
        model(reviews)
    assert torch.equal(model(reviews), before)


def test_a_network_without_attention_has_no_results(settings):
    model = net(settings, "mean")
    assert permute(model, batch(model, REVIEWS), 3, seeded()) is None
    assert adversary(model, batch(model, REVIEWS), 0.05, 3, 1, seeded()) is None
