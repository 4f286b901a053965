"""Batches have every review once, are within the budget, and are drawn anew in each epoch."""

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from imdbattn.data.corpus import load_reviews
from imdbattn.data.padded_lengths import FewShapesPlans, best_lengths
from imdbattn.data.phrases import with_words_before
from imdbattn.data.plans import BatchPlan, TrainPlans, eval_plans
from imdbattn.data.ragged import Batch, BatchMaker, BatchOptions, kept_indices, ragged_from_lists
from imdbattn.errors import UserError
from imdbattn.launch.resumed_settings import resumed_settings
from imdbattn.runs.fit import fit
from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewData
from imdbattn.tasks.task import training_settings
from tests.nets import batch_of

LENGTHS = st.lists(st.integers(0, 80), min_size=4, max_size=120).map(np.array)
REVIEWS = st.lists(st.lists(st.integers(3, 99), max_size=30), min_size=1, max_size=8)


class SmallPools(TrainPlans):
    """Pools so small that the lengths of a test fill several."""

    pool = 32


def plan(lengths, epoch=0, kind=SmallPools, budget=200, seed=1, count=None):
    sampler = kind(lengths, budget, seed, count=count)
    sampler.set_epoch(epoch)
    return sampler, list(sampler)


@given(LENGTHS, st.integers(0, 20), st.integers(1, 400))
def test_every_review_is_in_one_of_the_announced_number_of_batches(lengths, epoch, budget):
    sampler, batches = plan(lengths, epoch, budget=budget)
    assert sorted(np.concatenate([index for _, index in batches])) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    for _, index in batches:
        assert len(index) == 1 or max(lengths[index].max(), 1) * len(index) <= budget


@given(st.lists(st.integers(0, 80), min_size=1).map(np.array), st.integers(1, 400))
def test_each_item_is_scored_by_one_of_the_processes(lengths, budget):
    for ranks in (1, 2, 3):
        plans = [eval_plans(lengths, budget, rank, ranks) for rank in range(ranks)]
        scored = [index for of_rank in plans for _, index in of_rank]
        assert sorted(np.concatenate(scored)) == list(range(len(lengths)))


@pytest.mark.parametrize("kind", [SmallPools, FewShapesPlans])
@given(LENGTHS, st.integers(0, 20), st.floats(0, 1))
@example(np.array([80, 1, 1, 1]), 0, 1.0)
@example(np.array([10] * 10), 1, 0.5)
def test_a_given_number_of_batches_is_that_of_every_epoch(kind, lengths, epoch, share):
    fewest = len(plan(lengths, kind=kind, budget=400)[0])
    count = fewest + round(share * (len(lengths) - fewest))
    sampler, batches = plan(lengths, epoch, kind, count=count)
    assert sorted(np.concatenate([index for _, index in batches])) == list(range(len(lengths)))
    assert len(batches) == len(sampler) == count


def test_composition_order_and_random_numbers_of_the_batches_are_random():
    """In order of length, a net would learn one length after the other."""
    lengths = np.random.default_rng(0).integers(1, 80, 2000)
    epochs = [plan(lengths, epoch)[1] for epoch in range(3)]
    for batches in epochs:
        longest = [lengths[index].max() for _, index in batches]
        assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2
    together = [
        {frozenset(index.tolist()) for _, index in batches if len(index) > 1} for batches in epochs
    ]
    assert all(len(one & other) < len(one) / 20 for one, other in itertools.pairwise(together))
    sampler, _ = plan(lengths)
    sampler.pool = 1  # lengths in a random order need more batches than were announced
    assert len(list(sampler)) == len(sampler)
    seeds = [seed for batches in epochs for seed, _ in batches]
    assert len(set(seeds)) == len(seeds)
    few = np.repeat([20, 40, 80], 300)
    epochs = [plan(few, epoch, FewShapesPlans)[1] for epoch in range(2)]
    orders = [[few[index].max() for _, index in batches] for batches in epochs]
    assert orders[0] != orders[1]


@given(LENGTHS, st.integers(1, 6), st.integers(1, 400))
def test_batches_of_few_lengths_have_few_shapes_in_the_same_order_for_each_seed(
    lengths, count, budget
):
    widths = best_lengths(np.maximum(lengths, 1), count)
    rounded = np.array(widths)[np.searchsorted(widths, lengths)]
    shapes = []
    for seed in (1, 2):
        sampler, batches = plan(rounded, 3, FewShapesPlans, budget, seed)
        assert sorted(np.concatenate([index for _, index in batches])) == list(range(len(lengths)))
        assert len(batches) == len(sampler)
        shapes.append([(len(index), rounded[index].max()) for _, index in batches])
    assert shapes[0] == shapes[1]
    full = {(max(budget // width, 1), width) for width in widths}
    assert len([shape for shape in shapes[0] if shape not in full]) <= 1  # the rest
    scored = [(len(index), rounded[index].max()) for _, index in eval_plans(rounded, budget)]
    assert len([shape for shape in scored if shape not in full]) <= 1


def head_and_tail(length: int, max_tokens: int | None, start_share: float) -> list[int]:
    """Indices of the tokens that remain of a review of `length` tokens, to compare with."""
    if max_tokens is None or length <= max_tokens:
        return list(range(length))
    head = round(max_tokens * start_share)
    return [*range(head), *range(length - max_tokens + head, length)]


def test_dropped_words_are_drawn_for_each_word_review_and_seed():
    def kept(seed: int) -> torch.Tensor:
        whole = ragged_from_lists([list(range(3, 103))] * 400)
        batch = batch_of(whole, word_dropout=0.3, seed=seed)
        return torch.zeros(400, 100).scatter(1, batch.positions_BT, 1.0)

    one, other = kept(1), kept(2)
    assert torch.equal(one, kept(1))
    # Two draws agree on a word with probability 0.7 * 0.7 + 0.3 * 0.3.
    for first, second in ((one, other), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1])):
        assert (first == second).float().mean().item() == pytest.approx(0.58, abs=0.02)
    torch.testing.assert_close(one.mean(0), torch.full((100,), 0.7), atol=0.1, rtol=0)


@given(REVIEWS, st.floats(0, 0.95), st.integers(0, 99))
@example([[3, 4, 5]], 0.9, 0)
def test_word_dropout_removes_its_share_and_keeps_the_order(reviews, share, seed):
    batch = batch_of(ragged_from_lists(reviews), word_dropout=share, seed=seed)
    for row, review in enumerate(reviews):
        length = int(batch.lengths_B[row])
        assert length >= min(1, len(review))
        assert abs(length - len(review) * (1 - share)) <= 0.51 or length == 1
        positions = batch.positions_BT[row, :length].tolist()
        assert positions == sorted(set(positions))
        assert batch.tokens_BT[row, :length].tolist() == [review[place] for place in positions]


@given(
    REVIEWS,
    st.none() | st.integers(1, 40),
    st.sampled_from([0.0, 1.0]) | st.floats(0, 1),
    st.sampled_from([0.0, 0.3, 0.8]),
    st.integers(0, 4),
    st.integers(1, 16),
)
@example([[*range(3, 13)]], 6, 0.5, 0.0, 2, 4)
def test_a_batch_has_the_head_and_tail_of_each_review_and_the_words_before_each(
    reviews, max_tokens, start_share, share, before, multiple
):
    """Also for a word after the gap of a truncated review; the first word has none before it."""
    order = np.arange(len(reviews))[::-1]
    options = {"max_tokens": max_tokens, "start_share": start_share}
    options |= {"word_dropout": share, "pad_to": multiple}
    phrases = with_words_before(ragged_from_lists(reviews), before + 1)
    batch = batch_of(phrases, order, seed=7, **options)
    plain = batch_of(ragged_from_lists(reviews), order, seed=7, **options)
    assert all(getattr(batch, name).equal(getattr(plain, name)) for name in plain._fields[:-1])
    assert batch.before_BTW.shape == (*batch.tokens_BT.shape, before)
    for row, review in enumerate(reviews[::-1]):
        length = int(batch.lengths_B[row])
        places = head_and_tail(len(review), max_tokens, start_share)
        assert kept_indices(len(review), BatchOptions(**options | {"word_dropout": 0})) == places
        read = [places[position] for position in batch.positions_BT[row, :length]]
        assert share or read == places
        assert batch.tokens_BT[row, :length].tolist() == [review[place] for place in read]
        assert batch.tokens_BT[row, length:].eq(0).all()
        expected = [
            [review[place - back] if place >= back else 0 for back in range(1, before + 1)]
            for place in read
        ]
        assert batch.before_BTW[row, :length].tolist() == expected
        assert batch.before_BTW[row, length:].eq(0).all()


@given(
    st.lists(st.lists(st.integers(3, 99), max_size=30), min_size=2, max_size=12),
    st.integers(1, 11),
    st.sampled_from([0.0, 0.4]),
    st.integers(0, 2),
)
def test_batches_made_together_equal_those_made_alone(reviews, first, share, before):
    split = with_words_before(ragged_from_lists(reviews), before + 1)
    order = np.random.default_rng(0).permutation(len(reviews))
    plans = [BatchPlan(5, order[:first]), BatchPlan(9, order[first:])]
    plans = [plan for plan in plans if len(plan.items_B)]
    for widths in ((), (16, 30)):
        options = {"max_tokens": 20, "word_dropout": share, "pad_to": 4, "padded_lengths": widths}
        maker = BatchMaker(split, BatchOptions(**options), 0, 2)
        for plan, together in zip(plans, maker.make(plans), strict=True):
            (alone,) = maker.make([plan])
            for one, other in zip(alone, together, strict=True):
                assert one.equal(other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_ranks_together_have_the_batch_of_one_process(ranks):
    reviews = with_words_before(ragged_from_lists([[3] * length for length in range(1, 60)]), 3)
    plans = [BatchPlan(7, np.arange(10, 30))]
    cut = BatchOptions(max_tokens=40, start_share=0.75, word_dropout=0.5)
    (whole,) = BatchMaker(reviews, cut).make(plans)
    parts = [BatchMaker(reviews, cut, rank, ranks).make(plans)[0] for rank in range(ranks)]
    assert all(part.global_count == whole.global_count == 20 for part in parts)
    for rank, part in enumerate(parts):
        assert part.positions_BT.tolist() == whole.positions_BT[rank::ranks].tolist()
        assert part.before_BTW.tolist() == whole.before_BTW[rank::ranks].tolist()


def test_the_size_of_a_batch_is_decided_once_and_recorded(settings, small, tmp_path):
    words = [*small, "data.max_tokens=5", "model=mean", "trainer.max_epochs=1"]
    cfg = settings(*words, "data.batch_tokens=null")
    metrics = fit(cfg, tmp_path)
    recorded = OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml"))
    assert recorded["data"]["batch_tokens"] == 512
    corpus = load_reviews(cfg.data)
    data = ReviewData(training_settings(recorded), corpus)
    assert metrics["steps"] == len(data.train_dataloader())
    many = replace(corpus, splits={"train": ragged_from_lists([[3] * 9] * 100_000)})
    assert ReviewData(cfg, many).batch_tokens == 1024, "tokens beyond data.max_tokens do not count"
    for typed in ("data.batch_tokens=null", "data.batch_tokens=512"):
        assert resumed_settings(cfg.dump(), [typed], tmp_path) == recorded
    other = settings(*words, "data.batch_tokens=1024")
    with pytest.raises(UserError, match=r"data\.batch_tokens=512, not 1024"):
        resumed_settings(other.dump(), ["data.batch_tokens=1024"], tmp_path)


@pytest.fixture
def seen(monkeypatch) -> dict[int, list[Batch]]:
    """The training batches of each epoch."""
    batches, loss = defaultdict(list), ReviewClassifier.training_loss

    def training_loss(self, batch):
        batches[self.trainer.current_epoch].append(batch)
        return loss(self, batch)

    monkeypatch.setattr(ReviewClassifier, "training_loss", training_loss)
    return batches


@pytest.mark.parametrize("overfit", ["3", "0.5", "1.0"])
def test_overfit_batches_repeats_that_number_or_share_of_the_batches(
    settings, small, tmp_path, seen, overfit
):
    words = [*small, "model=mean", "trainer.max_epochs=2", "data.eval_batch_tokens=32"]
    cfg = settings(*words, f"trainer.overfit_batches={overfit}")
    fit(cfg, tmp_path)
    count = len(ReviewData(cfg, load_reviews(cfg.data)).train_dataloader())
    first, second = ([batch.items_B.tolist() for batch in batches] for batches in seen.values())
    assert len(first) == (3 if overfit == "3" else int(float(overfit) * count)) > 1
    assert first == second


def test_the_first_epochs_read_the_tokens_of_the_curriculum_in_as_many_batches(
    settings, small, tmp_path, seen
):
    words = [*small, "model=mean", "data.max_tokens=9", "data.batch_tokens=60", "logger=csv"]
    words += ["data.curriculum=[2,4,20]", "trainer.max_epochs=4", "data.word_dropout=0"]
    cfg = settings(*words)
    fit(cfg, tmp_path)
    data = ReviewData(cfg, load_reviews(cfg.data))
    reviews = data.corpus.splits["train"]
    for batches, tokens in zip(seen.values(), (2, 4, 9, 9), strict=True):
        assert len(batches) == len(seen[3])
        read_N = torch.cat([batch.lengths_B for batch in batches])
        items_N = torch.cat([batch.items_B for batch in batches])
        assert read_N[items_N.argsort()].equal(reviews.lengths.clamp(max=tokens))
    read = {batch.tokens_BT.shape[1] for batch in data.val_dataloader()}
    assert max(read) == 9, "evaluation reads data.max_tokens"
