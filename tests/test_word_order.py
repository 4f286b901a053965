"""Promise 2: without positions or neighbours a rung is blind to word order; with them it is not."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from imdbattn.data.ragged import ragged
from imdbattn.nn.positions import Learned, Sinusoidal, sinusoids
from imdbattn.settings import BEYOND, RUNGS

from .conftest import POSITIONAL
from .nets import WORDS, net

# Rungs that read a word with those beside it
NEIGHBOURS = ("convolved", "bigrams", "log_counts", "log_counts_mean", "wide", "pretrained")
SEES_ORDER = (*POSITIONAL, *NEIGHBOURS)


def score(model, review: list[int]) -> torch.Tensor:
    batch = ragged([review]).batch(torch.tensor([0]))
    with torch.no_grad():
        return model(batch.tokens_BT, batch.lengths_B, batch.positions_BT)


@pytest.mark.parametrize(
    ("rung", "overrides"),
    [
        *((rung, ()) for rung in (*RUNGS, *BEYOND) if rung not in SEES_ORDER),
        ("log_counts_mean", ("model.phrases.longest=1",)),  # its phrases alone tell the order, not its words
    ],
)
def test_without_positions_or_neighbours_shuffling_changes_nothing(settings, rung, overrides):
    model = net(settings, rung, *overrides)

    @given(st.lists(st.integers(3, WORDS + 2), min_size=1, max_size=15), st.randoms(use_true_random=False))
    @examples(max_examples=25, deadline=None)
    def holds(review, random):
        shuffled = random.sample(review, len(review))
        torch.testing.assert_close(score(model, shuffled), score(model, review), atol=1e-5, rtol=1e-4)

    holds()


@pytest.mark.parametrize("rung", SEES_ORDER)
def test_with_positions_or_neighbours_order_counts(settings, rung):
    model = net(settings, rung)
    review = list(range(3, 15))
    assert (score(model, review) - score(model, review[::-1])).abs().max() > 1e-3


def test_sinusoids_are_the_exercises_formula():
    table = sinusoids(50, 7).double()
    for i in (0, 1, 17, 49):
        for h in range(7):
            angle = torch.tensor(i / 10000 ** ((h if h % 2 == 0 else h - 1) / 7), dtype=torch.float64)
            expected = angle.sin() if h % 2 == 0 else angle.cos()
            torch.testing.assert_close(table[i, h], expected, atol=1e-6, rtol=0)


def test_kept_words_keep_their_positions_when_others_are_dropped():
    reviews = ragged([list(range(3, 43)), list(range(3, 23))])
    batch = reviews.batch(torch.tensor([0, 1]), word_dropout=0.5)
    assert batch.lengths_B.tolist() == [20, 10]
    for row in range(2):
        length = batch.lengths_B[row]
        tokens, positions = batch.tokens_BT[row, :length], batch.positions_BT[row, :length]
        assert (tokens == positions + 3).all()
        assert (positions.diff() > 0).all()


def test_positions_behind_the_table():
    x, far = torch.zeros(1, 1, 4), torch.tensor([[10**7]])
    assert Sinusoidal(4)(x, far).isfinite().all()
    with pytest.raises(ValueError, match="a review of 3 tokens, but only 2 positions were learned"):
        Learned(4, 2)(torch.zeros(1, 3, 4), torch.arange(3)[None])
    with pytest.raises(ValueError, match=r"data\.max_tokens"):
        Learned(4, None)
