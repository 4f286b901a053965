"""With several processes, each review has the same weight, in a step and in an epoch's numbers."""

from types import SimpleNamespace

import pytest
import torch

from imdbattn.data.ragged import Batch
from imdbattn.tasks.reviews.module import ReviewClassifier
from tests.nets import batch, net

REVIEWS = [[3, 4], [5], [6, 7], [8], [9, 3]]


def part_of(whole: Batch, rows: slice) -> Batch:
    """The part of one process of a batch, which knows the size of the whole."""
    fields = {
        name: value[rows]
        for name, value in whole._asdict().items()
        if isinstance(value, torch.Tensor)
    }
    return whole._replace(**fields, global_count=len(REVIEWS))


def step(module: ReviewClassifier, reviews: Batch, processes: int) -> torch.Tensor:
    module.trainer = SimpleNamespace(
        world_size=processes, strategy=SimpleNamespace(reduce=lambda own, reduce_op: own)
    )
    return module.training_step(reviews, 0)


@pytest.mark.parametrize("parts", [(1, 4), (2, 3)])
def test_the_mean_of_the_processes_losses_is_the_loss_of_the_whole_batch(settings, parts):
    """DDP takes the mean of what the processes return, also where their parts differ in size."""
    model = net(settings, "mean").eval()
    whole = batch(model, REVIEWS)
    module = ReviewClassifier(model, settings("model=mean"), {"vectors": ""})
    first, second = parts
    assert first + second == len(REVIEWS)
    pieces = [part_of(whole, slice(0, first)), part_of(whole, slice(first, None))]
    losses = torch.stack([step(module, piece, 2) for piece in pieces])
    torch.testing.assert_close(losses.mean(), step(module, whole, 1))


def test_loss_and_accuracy_of_an_epoch_are_those_of_the_reviews_of_all_processes(settings):
    model = net(settings, "mean").eval()
    whole = batch(model, REVIEWS)._replace(labels_B=torch.tensor([0, 1, 0, 1, 1]))
    one, first, second = (
        ReviewClassifier(model, settings("model=mean"), {"vectors": ""}) for _ in range(3)
    )
    step(one, whole, 1)
    step(first, part_of(whole, slice(0, 1)), 2)
    step(second, part_of(whole, slice(1, None)), 2)
    others = torch.stack(second.epoch_sums).sum(0)
    first.trainer.strategy.reduce = lambda own, reduce_op: own + others
    torch.testing.assert_close(first.epoch_means(), one.epoch_means())
