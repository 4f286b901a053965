"""Without positions or neighbors a rung is blind to word order; with them it is not."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from imdbattn.nn.beyond.attention import ClippedDistances, Distances, RotaryAttention
from imdbattn.nn.ladder import SelfAttention, WordPositions, sinusoids
from tests.models import BEYOND, RUNGS
from tests.nets import WORDS, batch, net

# Rungs that read a word together with its neighbors
NEIGHBORS = ("gru_query", "residual_rope", "residual_relative", "tuned", "convolved")
NEIGHBORS += ("log_counts", "log_counts_mean", "wide", "pretrained", "distilled")
SEES_ORDER = ("base_pe", "residual_pe", "residual_learned", "residual_pe_cls", *NEIGHBORS)


def score(model, review: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(batch(model, [review]))


@pytest.mark.parametrize(
    ("rung", "overrides"),
    [
        *((rung, ()) for rung in (*RUNGS, *BEYOND) if rung not in SEES_ORDER),
        # only its phrases depend on the order, not its words
        ("log_counts_mean", ("model.phrases.longest=1",)),
    ],
)
def test_without_positions_or_neighbors_shuffling_changes_nothing(settings, rung, overrides):
    model = net(settings, rung, *overrides)

    @given(
        st.lists(st.integers(2, WORDS + 1), min_size=1, max_size=15),
        st.randoms(use_true_random=False),
    )
    @examples(max_examples=8)
    def holds(review, random):
        shuffled = random.sample(review, len(review))
        found, expected = score(model, shuffled), score(model, review)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)

    holds()


@pytest.mark.parametrize("rung", SEES_ORDER)
def test_with_positions_or_neighbors_word_order_matters(settings, rung):
    model = net(settings, rung)
    review = list(range(3, 15))
    assert (score(model, review) - score(model, review[::-1])).abs().max() > 1e-3


def test_sinusoids_equal_the_formula_of_the_exercise():
    table = sinusoids(50, 7).double()
    for i in (0, 1, 17, 49):
        for h in range(7):
            angle = torch.tensor(i / 10000 ** ((h - h % 2) / 7), dtype=torch.float64)
            expected = angle.sin() if h % 2 == 0 else angle.cos()
            torch.testing.assert_close(table[i, h], expected, atol=1e-6, rtol=0)


def added(distances: torch.nn.Module, positions: list[int]) -> torch.Tensor:
    """What is added to the scores (H, T, T) of words at these positions."""
    query_BHTW, key_B1TW = distances(torch.tensor([positions]))
    return (query_BHTW @ key_B1TW.transpose(-2, -1))[0].detach()


@pytest.mark.parametrize("waves", [1, 2, 8])
def test_distances_add_a_sum_of_waves(waves):
    torch.manual_seed(0)
    distances, positions = Distances(3, waves), [-1, 0, 1, 2, 90, 2400]
    a_HM, b_HM = (
        torch.nn.init.normal_(part).double() for part in (distances.cos_HM, distances.sin_HM)
    )
    found = added(distances, positions)
    for i, query in enumerate(positions):
        for j, key in enumerate(positions):
            expected = torch.zeros(3, dtype=torch.float64)
            for m in range(waves):
                period = 2 * 64 ** (m / max(waves - 1, 1))
                angle = torch.tensor(2 * torch.pi * (key - query) / period, dtype=torch.float64)
                expected += a_HM[:, m] * angle.cos() + b_HM[:, m] * angle.sin()
            torch.testing.assert_close(found[:, i, j].double(), expected, atol=1e-5, rtol=0)


@given(st.lists(st.integers(-1, 40), min_size=1, max_size=9))
def test_clipped_distances_add_the_number_of_their_distance(positions):
    distances = ClippedDistances(2, reach=3)
    torch.nn.init.normal_(distances.bias_RH)
    found_HTT = added(distances, positions)
    for i, query in enumerate(positions):
        for j, key in enumerate(positions):
            row = max(-3, min(3, key - query)) + 3
            assert found_HTT[:, i, j].equal(distances.bias_RH[row].detach())


@given(
    st.integers(0, 4000),
    st.integers(0, 99),
    st.sampled_from([(10, 1), (10, 2), (9, 1), (9, 3), (1, 1)]),
)
def test_rotary_scores_depend_on_the_distance_and_not_on_the_place_in_the_review(
    further, seed, shape
):
    """With the angles of the paper; the last dimension of odd heads is not rotated."""
    torch.manual_seed(seed)
    width, heads = shape
    f = RotaryAttention(width, heads=heads).double()
    x_BTD = torch.randn(2, 5, width, dtype=torch.float64)
    at, size = torch.tensor([[-1, 0, 1, 7, 30], [0, 2, 3, 4, 5]]), width // heads
    near, far = (
        f.project(x_BTD, WordPositions(torch.ones(2, 5).bool(), at + shift))[:2]
        for shift in (0, further)
    )
    products = [q_BHTd @ k_BHTd.transpose(2, 3) for q_BHTd, k_BHTd in (near, far)]
    torch.testing.assert_close(*products, atol=1e-3, rtol=0)  # angles are float32
    plain_BHTd = SelfAttention.project(f, x_BTD, WordPositions.of(torch.ones(2, 5).bool()))[0]
    for m in range(size // 2):
        pair = torch.view_as_complex(plain_BHTd[..., 2 * m : 2 * m + 2].contiguous())
        angle_B1T = (at * 10000 ** (-2 * m / size))[:, None].double()
        turned = torch.polar(torch.ones(2, 1, 5).double(), angle_B1T)
        expected = torch.view_as_real(pair * turned)
        torch.testing.assert_close(near[0][..., 2 * m : 2 * m + 2], expected, atol=1e-4, rtol=0)
    assert near[0][..., size - size % 2 :].equal(plain_BHTd[..., size - size % 2 :])


def test_heads_are_initialized_to_attend_to_their_places():
    scores_HTT = added(Distances(6, offsets=[None, -1, 1, -2, 0]), list(range(40)))
    for head, place in enumerate([None, -1, 1, -2, 0, None]):
        for i in range(2, 39):
            weights_T = scores_HTT[head, i].softmax(0)
            if place is None:
                torch.testing.assert_close(weights_T, torch.full((40,), 1 / 40))
            else:
                assert weights_T[i + place] > 0.9
    blind_HTT = added(Distances(2, offsets=[-1], strength=0), list(range(40)))
    assert blind_HTT.eq(0).all()


def test_layers_receive_positions_and_cls_is_before_the_first_word(settings):
    received = []
    model = net(settings, "tuned", "model.net.pooling._target_=imdbattn.nn.ladder.ClsPooling")
    for layer in model.layers:
        layer.f.distances.register_forward_pre_hook(
            lambda _, inputs: received.append(inputs[0].tolist())
        )
    model(batch(model, [[3, 4, 5]])._replace(positions_BT=torch.tensor([[0, 4, 9]])))
    assert received == [[[-1, 0, 4, 9]]] * 3
