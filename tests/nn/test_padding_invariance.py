"""A review scores the same alone, in any batch and at any padding, an empty one included."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from imdbattn.data.ragged import map_per_token
from tests.models import BEYOND, RUNGS
from tests.nets import WORDS, batch, net

REVIEWS = st.lists(
    st.lists(st.integers(1, WORDS + 1), max_size=12),
    min_size=1,
    max_size=4,
)
VARIANTS = [
    *((rung, ()) for rung in (*RUNGS, *BEYOND)),
    ("residual_pe_cls", ("model.net.layer.heads=5",)),
    (
        "residual_pe",
        ("model.net.layer.score._target_=imdbattn.nn.scores.Additive", "model.net.width=6"),
    ),
    ("tuned", ("model.net.layers=2", "model.net.pooling._target_=imdbattn.nn.ladder.ClsPooling")),
]


def scores(model, reviews: list[list[int]], order: list[int], padding: int = 0) -> torch.Tensor:
    with torch.no_grad():
        return model(batch(model, reviews, order, padding))


@pytest.mark.parametrize(
    ("rung", "overrides"), VARIANTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_review_scores_the_same_alone_and_in_any_batch(settings, rung, overrides):
    model = net(settings, rung, *overrides).double()

    @given(REVIEWS, st.randoms(use_true_random=False), st.integers(0, 9))
    @examples(max_examples=6)
    def holds(reviews, random, padding):
        alone = torch.cat([scores(model, reviews, [row]) for row in range(len(reviews))])
        order = random.sample(range(len(reviews)), len(reviews))
        torch.testing.assert_close(
            scores(model, reviews, order, padding), alone[order], atol=1e-9, rtol=1e-9
        )

    holds()


@pytest.mark.parametrize("rung", [*RUNGS, *BEYOND])
def test_the_content_of_the_padding_is_never_read(settings, rung):
    model = net(settings, rung)
    clean = batch(model, torch.randint(3, WORDS, (2, 9)).tolist())._replace(
        lengths_B=torch.tensor([3, 5])
    )
    padding_BT = torch.arange(9) >= clean.lengths_B[:, None]

    def noisy(x: torch.Tensor) -> torch.Tensor:
        mask = padding_BT.view(*padding_BT.shape, *[1] * (x.ndim - 2))
        return torch.where(mask, torch.randint(3, WORDS, x.shape), x)

    with torch.no_grad():
        torch.testing.assert_close(model(clean), model(map_per_token(clean, noisy)))


EMPTY, UNKNOWN, ORDINARY = [], [1, 1, 1], [5, 6, 7, 8]
BATCHES = {"empty": [EMPTY], "unknown": [UNKNOWN], "mixed": [EMPTY, ORDINARY, UNKNOWN]}


@pytest.mark.parametrize(
    ("rung", "overrides"), VARIANTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_empty_or_unknown_review_gives_finite_logits_and_gradients(settings, rung, overrides):
    model = net(settings, rung, *overrides).train()
    for name, reviews in BATCHES.items():
        model.zero_grad()
        logits = model(read := batch(model, reviews, word_dropout=0.5))
        F.cross_entropy(logits, read.labels_B).backward()
        assert logits.isfinite().all(), name
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None), name


def test_pad_is_zero_and_never_trained_and_unk_is_learned(settings):
    for overrides in ((), ("model.embedding.trainable=true",)):
        embedding = net(settings, "mean", *overrides).train().embedding
        x = embedding(torch.tensor([[0, 1, 3]]))
        assert x[0, 0].eq(0).all()
        x.sum().backward()
        assert embedding.unk_D.grad.eq(1).all()
        assert embedding.vectors_VD.grad is None
        torch.testing.assert_close(x[0, 1], embedding.unk_D)
