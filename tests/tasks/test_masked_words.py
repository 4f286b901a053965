"""Pretraining on masked words: what is predicted, from what, and what a classifier takes over."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imdbattn.data.corpus import load_reviews
from imdbattn.data.ragged import ragged_from_lists
from imdbattn.data.tokenizer import FIRST_WORD
from imdbattn.errors import UserError
from imdbattn.nn.beyond.masked_words import MaskedWords
from imdbattn.tasks.masked_words.module import MaskedWordModule, evaluation_mask
from imdbattn.tasks.reviews.module import ReviewClassifier
from imdbattn.tasks.weights import from_initial
from tests.nets import WORDS, batch_of, net
from tests.resuming import saved

PLAIN = ("model.phrases=null",)
GUESSED = torch.arange(2, 2 + WORDS, 2)  # every other word may be masked


def masked_words(settings, *overrides: str) -> MaskedWords:
    encoder = net(settings, "pretrained", *PLAIN, *overrides)
    return MaskedWords(encoder, GUESSED, torch.ones_like(GUESSED), 2 + WORDS).eval()


REVIEWS = st.lists(
    st.lists(st.integers(2, WORDS + 1), min_size=1, max_size=9), min_size=1, max_size=5
)


def test_a_masked_word_is_hidden_but_its_neighbors_are_not(settings):
    """Another word in its place changes the target alone; another neighbor, the prediction."""
    model = masked_words(settings)

    @given(REVIEWS, st.data())
    def holds(reviews, data):
        batch = batch_of(ragged_from_lists(reviews))
        masked = torch.zeros_like(batch.tokens_BT, dtype=torch.bool)
        masked[0, 0] = True
        batch.tokens_BT[0, 0] = GUESSED[0]
        with torch.no_grad():
            before, word = model(batch, masked, masked.flatten().nonzero()[:, 0])
            batch.tokens_BT[0, 0] = GUESSED[-1]
            after, other = model(batch, masked, masked.flatten().nonzero()[:, 0])
        assert (word.item(), other.item()) == (0, len(GUESSED) - 1)
        torch.testing.assert_close(before, after, atol=0, rtol=0)
        if batch.lengths_B[0] > 1:
            batch.tokens_BT[0, 1] = 2 + (batch.tokens_BT[0, 1] - 2 + 1) % WORDS
            with torch.no_grad():
                moved, _ = model(batch, masked, masked.flatten().nonzero()[:, 0])
            assert (moved - before).abs().max() > 1e-6

    holds()


def test_a_masked_word_is_predicted_from_its_own_place_after_cls(settings):
    pooling = "model.net.pooling._target_=imdbattn.nn.ladder.ClsPooling"
    model, batch = (
        masked_words(settings, pooling, "model.net.layers=0"),
        batch_of(ragged_from_lists([[2, 4, 6]])),
    )
    masked = torch.tensor([[True, False, False]])
    before, _ = model(batch, masked, torch.tensor([0]))
    with torch.no_grad():
        model.encoder.pooling.cls_D += 1
    after, _ = model(batch, masked, torch.tensor([0]))
    torch.testing.assert_close(before, after, atol=0, rtol=0)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True), st.integers(1, 40))
def test_the_masks_of_a_review_in_evaluation_depend_only_on_the_review(rows, length):
    """Whatever batch it is in, at whatever padding: the loss is the same at each evaluation."""
    positions = torch.arange(length).expand(len(rows), -1)
    together = evaluation_mask(torch.tensor(rows), positions, 0.15)
    for place, row in enumerate(rows):
        alone = evaluation_mask(torch.tensor([row]), positions[:1], 0.15)[0]
        assert together[place].equal(alone)


@pytest.fixture(scope="module")
def pretrained(trained):
    return trained("pretrained", "task=masked_words", "trainer.max_epochs=2")


def test_only_validation_is_scored(pretrained):
    folder, metrics = pretrained
    assert metrics["items"] == "masked words"
    assert not [
        key
        for key in metrics
        if key.startswith("test_") and key not in ("test_set", "test_fingerprint")
    ]
    said = pq.read_table(folder / "validation_predictions.parquet").to_pydict()
    assert sum(said["masked"]) == metrics["val_count"]
    assert np.isclose(sum(said["losses"]) / sum(said["masked"]), metrics["val_loss"], rtol=1e-5)


def test_the_classifier_starts_from_its_encoder(pretrained, settings, small):
    folder, _ = pretrained
    weights = saved(folder, "best")["state_dict"]
    assert weights["net.guessed_G"].min() >= FIRST_WORD  # <unk> is no word to predict
    cfg = settings(*small, "model=pretrained", f"init={folder}")
    corpus = load_reviews(cfg.data)
    own = from_initial(ReviewClassifier, cfg, corpus, None).net.state_dict()
    parts = ("embedding.", "resize.", "context.mixer.", "layers.")
    shared = [name for name in own if name.startswith(parts)]
    assert len(shared) > 10
    for name in shared:
        torch.testing.assert_close(own[name], weights[f"net.encoder.{name}"], atol=0, rtol=0)
    fresh = ReviewClassifier.new(settings(*small, "model=pretrained", "init=null"), corpus)
    random = fresh.net.state_dict()
    assert any(not torch.equal(own[name], random[name]) for name in shared)
    positions = "model.net.positions._target_=imdbattn.nn.ladder.SinusoidalPositions"
    other = settings(*small, "model=pretrained", f"init={folder}", positions)
    with pytest.raises(UserError, match=r"has model\.net\.positions\.\S*=.* the same encoder"):
        from_initial(ReviewClassifier, other, corpus, None)


def test_the_command_that_it_prints_starts_from_it(shell, small):
    done = shell("train", *small, "task=masked_words", "trainer.max_epochs=1")
    assert "\n  python -m imdbattn.train model=pretrained init=runs/" in done.stdout + done.stderr


def test_a_fixed_number_of_places_gives_the_losses_of_the_masked_words(settings):
    """A recorded step predicts as many words whatever is masked."""
    model = masked_words(settings)
    module = MaskedWordModule(model, settings("model=pretrained", "task=masked_words"), {})
    batch = batch_of(ragged_from_lists([[2, 4, 3, 6, 8], [4, 2], [3]]))
    masked = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]]).bool()
    exact, fixed = (module.predict(batch, masked, most=most) for most in (None, 9))
    assert len(exact[0]) == int(exact[3].sum()) == 3
    assert len(fixed[0]) == 9
    for found, expected in zip(fixed, exact, strict=True):
        torch.testing.assert_close(found[fixed[3]], expected)
        assert not fixed[0][~fixed[3]].any()
