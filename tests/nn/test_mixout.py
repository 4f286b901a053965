"""With mixout some words of a review use GloVe's vector in training, all occurrences alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imdbattn.nn.beyond.tuned_vectors import TunedEmbedding

WORDS, WIDTH = 400, 3
GLOVE = torch.randn(2 + WORDS, WIDTH, generator=torch.Generator().manual_seed(0))
GLOVE[:2] = 0


def embedding(mixout: float, seed: int = 0) -> TunedEmbedding:
    """For words of which all but the last are trained."""
    torch.manual_seed(seed)
    made = TunedEmbedding(
        GLOVE, torch.zeros(WIDTH), torch.ones(WIDTH), torch.arange(2, 1 + WORDS), mixout
    )
    with torch.no_grad():
        made.offset_RD[1:] = 100.0
        made.unk_D.fill_(7.0)
    return made


def tuned(x_BTD: torch.Tensor, tokens_BT: torch.Tensor) -> torch.Tensor:
    """(B, T) bool: which words were read with their offset; all others must be GloVe's."""
    offset_BTD = x_BTD - GLOVE[tokens_BT]
    read_BT = offset_BTD[..., 0] > 50
    torch.testing.assert_close(
        offset_BTD, 100.0 * read_BT[..., None].expand_as(offset_BTD), atol=1e-4, rtol=0
    )
    return read_BT


@given(mixout=st.floats(0.05, 0.95), seed=st.integers(0, 2**32 - 1))
def test_all_occurrences_of_a_word_in_a_review_use_the_same_vector(mixout, seed):
    words = torch.arange(2, 1 + WORDS)
    tokens_BT = torch.cat([words, words.flip(0)]).expand(5, -1)
    read_BT = tuned(embedding(mixout, seed).train()(tokens_BT), tokens_BT)
    assert torch.equal(read_BT[:, : len(words)], read_BT[:, len(words) :].flip(1))


@pytest.mark.parametrize("mixout", [0.1, 0.5, 0.9])
def test_a_share_of_the_words_uses_glove_and_is_drawn_for_each_review(mixout):
    tokens_BT = torch.arange(2, 1 + WORDS).expand(50, -1)
    part = embedding(mixout).train()
    first, second = (tuned(part(tokens_BT), tokens_BT) for _ in range(2))
    for read_BT in (first, second):
        assert read_BT.float().mean().item() == pytest.approx(1 - mixout, abs=0.03)
        assert read_BT.float().mean(0).std() < 0.15, "a word is left out in all reviews or in none"
        # Of two words both are read as often as if each were drawn alone, over reviews and words.
        both = (read_BT[:, :-1] & read_BT[:, 1:]).float().mean().item()
        assert both == pytest.approx((1 - mixout) ** 2, abs=0.05)
    assert (first != second).any(), "each batch draws anew"
    assert len({tuple(row.tolist()) for row in first}) > 35, "reviews share a draw"


def test_padding_unknown_words_and_untrained_words_are_not_changed():
    x_BTD = embedding(0.5).train()(torch.tensor([[0, 1, 1 + WORDS]]).expand(20, -1))
    assert x_BTD[:, 0].eq(0).all()
    assert x_BTD[:, 1].eq(7).all()
    assert torch.equal(x_BTD[:, 2], GLOVE[1 + WORDS].expand(20, -1))
