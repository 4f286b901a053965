"""Other attention weights: permuted ones, and an adversary whose output stays the same."""

import pytest
import torch

from imdbattn.explain.watch import watch
from imdbattn.faithfulness.counterfactual import adversary, permute, replaced
from imdbattn.faithfulness.erasure import take

from .nets import batch, net

REVIEWS = [[5, 9, 12, 30], [7, 8], [], [40, 41, 42, 43, 44, 45]]


def test_permuting_equal_weights_changes_nothing(settings):
    model = net(settings, "learned_query")
    torch.nn.init.zeros_(model.pooling.query_D)
    distance_B = permute(model, batch(model, REVIEWS), 9, 1)
    torch.testing.assert_close(distance_B, torch.zeros_like(distance_B), atol=1e-5, rtol=0)


def test_two_words_keep_or_exchange_their_weights(settings):
    model = net(settings, "learned_query")
    reviews = batch(model, [[3 + number, 40 + number] for number in range(20)])
    with watch(model) as weights, torch.no_grad():
        before_BC = model(reviews).double().softmax(1)
    with replaced(model, lambda number, value: weights[0].flip(-1) @ value), torch.no_grad():
        swapped_B = (model(reviews).double().softmax(1) - before_BC).abs().sum(1) / 2
    distance_B = permute(model, reviews, 9, 1)
    moved_B = distance_B > 1e-6
    assert 0 < moved_B.sum() < 20
    torch.testing.assert_close(distance_B[moved_B], swapped_B[moved_B], atol=1e-6, rtol=0)  # the median, not a mean


def test_cls_keeps_its_weight(settings):
    model = net(settings, "residual_pe_cls")
    assert permute(model, batch(model, [[5], [7]]), 9, 1).max() < 1e-6


@pytest.mark.parametrize("rung", ["learned_query", "residual_pe_cls"])
def test_results_do_not_depend_on_the_batch(settings, rung):
    model = net(settings, rung).double()
    for measure in (lambda one: [permute(model, one, 5, 1)], lambda one: adversary(model, one, 0.05, 3, 2, 1)):
        together = measure(batch(model, REVIEWS, padding=3))
        for row in range(len(REVIEWS)):
            for alone_B, all_B in zip(measure(batch(model, REVIEWS, [row])), together, strict=True):
                torch.testing.assert_close(alone_B, all_B[[row]], atol=1e-7, rtol=1e-5)
    assert permute(model, batch(model, REVIEWS), 9, 1).max() > 1e-3


def test_the_adversary_keeps_the_output_and_the_network(settings):
    model = net(settings, "residual_pe_cls")
    reviews = batch(model, REVIEWS)
    before = model(reviews)
    divergence_B, distance_B = adversary(model, reviews, 0.05, 10, 2, 1)
    assert (distance_B <= 0.05).all()
    assert (divergence_B >= 0).all()
    assert divergence_B.max() > 0.01
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ZeroDivisionError), replaced(model, lambda number, value: value / 0 if number < 0 else 1 / 0):
        model(reviews)
    assert torch.equal(model(reviews), before)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.01, 0.05])
def test_the_adversary_finds_what_an_exhaustive_search_finds_on_three_words(settings, epsilon):
    steps = range(201)
    grid_GK = torch.tensor([(i, j, 200 - i - j) for i in steps for j in steps[: 201 - i]]) / 200
    for seed in range(3):
        model = net(settings, "learned_query", seed=seed, classes=2)
        reviews = batch(model, [[3 + (seed * 37 + row * 7 + word * 11) % 60 for word in range(3)] for row in range(6)])
        divergence_B, distance_B = adversary(model, reviews, epsilon, 60, 12, 1)
        assert (distance_B <= epsilon).all()
        for row in range(len(divergence_B)):
            same = take(reviews, torch.full((len(grid_GK),), row))
            with torch.no_grad(), replaced(model, lambda number, value: grid_GK[:, None, None] @ value):
                outputs_GC = model(same).double().softmax(1)
            with torch.no_grad(), watch(model.pooling) as weights:
                (output_C,) = model(take(reviews, torch.tensor([row]))).double().softmax(1)
            feasible_G = (outputs_GC - output_C).abs().sum(1) / 2 <= epsilon
            old_K = weights[0][0, 0, 0].double()
            middle_GK = (old_K + grid_GK) / 2
            # The entropy of the mean minus the mean of the entropies.
            divergence_G = torch.special.entr(middle_GK).sum(1)
            divergence_G -= (torch.special.entr(grid_GK).sum(1) + torch.special.entr(old_K).sum()) / 2
            best = divergence_G[feasible_G].max().item() if feasible_G.any() else 0
            assert best - 0.01 <= divergence_B[row].item() <= best + 0.02, (seed, row)  # the grid is coarser
