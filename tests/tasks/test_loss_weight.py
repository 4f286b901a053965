"""With several processes, each review of the global batch has the same weight."""

from types import SimpleNamespace

import pytest
import torch

from imdbattn.tasks.reviews.classifier import ReviewClassifier

from ..nets import batch, net


@pytest.mark.parametrize("parts", [(1, 4), (2, 3)])
def test_the_mean_of_the_processes_losses_is_the_loss_of_the_whole_batch(settings, parts):
    """DDP takes the mean of what the processes return, also where their parts differ in size."""
    model = net(settings, "mean").eval()
    whole = batch(model, [[3, 4], [5], [6, 7], [8], [9, 3]])
    module = ReviewClassifier(model, settings("model=mean"), {"vectors": ""})

    def loss(reviews, processes: int) -> torch.Tensor:
        module._trainer = SimpleNamespace(world_size=processes)
        module._fabric = None
        return module.training_step(reviews, 0)

    first, second = parts
    assert first + second == 5
    pieces = []
    for rows in (slice(0, first), slice(first, 5)):
        fields = {
            name: value[rows]
            for name, value in whole._asdict().items()
            if isinstance(value, torch.Tensor)
        }
        pieces.append(loss(whole._replace(**fields, reviews=5), 2))
    torch.testing.assert_close(torch.stack(pieces).mean(), loss(whole, 1))
