"""Promise 3: an empty review, or one of unknown words only, gives finite logits and finite gradients."""

import pytest
import torch
import torch.nn.functional as F

from imdbattn.settings.keys import BEYOND, RUNGS

from .nets import batch, net

EMPTY, UNKNOWN, ORDINARY = [], [1, 1, 1], [5, 6, 7, 8]
BATCHES = {"empty": [EMPTY], "unknown": [UNKNOWN], "mixed": [EMPTY, ORDINARY, UNKNOWN]}


@pytest.mark.parametrize("rung", [*RUNGS, *BEYOND])
@pytest.mark.parametrize("score", ["ScaledDot", "Additive"])
def test_finite_logits_and_gradients(settings, rung, score):
    model = net(settings, rung, f"model.layer.score._target_=imdbattn.nn.scores.{score}").train()
    for name, reviews in BATCHES.items():
        model.zero_grad()
        logits = model(read := batch(model, reviews, word_dropout=0.5))
        F.cross_entropy(logits, read.labels_B).backward()
        assert logits.isfinite().all(), name
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None), name


def test_an_empty_review_does_not_change_the_gradients_of_the_others(settings):
    def gradients(reviews):
        model = net(settings, "residual_pe").train()
        model(batch(model, reviews))[0].sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    for alone, beside in zip(gradients([ORDINARY]), gradients([ORDINARY, EMPTY]), strict=True):
        torch.testing.assert_close(alone, beside, atol=1e-5, rtol=1e-4)


def test_pad_is_zero_and_never_trained_and_unk_is_learned(settings):
    for overrides in ((), ("model.embedding.trainable=true",)):
        embedding = net(settings, "mean", *overrides).train().embedding
        x = embedding(torch.tensor([[0, 1, 3]]))
        assert x[0, 0].eq(0).all()
        x.sum().backward()
        assert embedding.unk_D.grad.eq(1).all()
        assert embedding.vectors_VD.grad is None
        torch.testing.assert_close(x[0, 1], embedding.unk_D)
