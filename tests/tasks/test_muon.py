"""The matrices of layers are trained by Muon, as torch's, and all other parameters by AdamW."""

import pytest
import torch
from torch import nn

from imdbattn.tasks.learner import parameter_groups
from imdbattn.tasks.optim import LazyAdamW, Muon
from tests.nets import net


def matrices(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=draw) / 5) for shape in shapes]


def gradients(parameters: list[nn.Parameter], step: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return [torch.randn(parameter.shape, generator=draw) for parameter in parameters]


def train(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: int) -> None:
    for step in range(steps):
        for parameter, gradient in zip(parameters, gradients(parameters, step), strict=True):
            parameter.grad = gradient
        optimizer.step()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9")
def test_matrices_move_as_torch_moves_them():
    shapes = (20, 20), (20, 20), (30, 10), (10, 30)
    ours, theirs = matrices(*shapes), matrices(*shapes)
    options = {"weight_decay": 0.1, "momentum": 0.9}
    train(Muon([{"params": ours, "matrices": True}], matrix_lr=0.02, **options), ours, 10)
    train(torch.optim.Muon(theirs, lr=0.02, **options), theirs, 10)
    for own, their, start in zip(ours, theirs, matrices(*shapes), strict=True):
        moved = (own - start).norm()
        assert (own - their).norm() < 0.02 * moved  # torch rounds to bfloat16
        assert moved > 0.1


def test_parameters_that_are_no_matrices_of_layers_move_as_by_adamw(settings):
    """Vectors, norms, biases, the last Linear and the rows of trained vectors."""
    model = "model.embedding.trainable=true"
    ours, theirs = (net(settings, "residual_learned", model) for _ in range(2))
    for network, kind in ((ours, Muon), (theirs, LazyAdamW)):
        groups = parameter_groups(network, 0.01, with_matrices=kind is Muon)
        train(kind(groups, lr=0.003), [*network.parameters()], 3)
    others = dict(theirs.named_parameters())
    equal = {name for name, p in ours.named_parameters() if torch.equal(p, others[name])}
    parts = "f.query", "f.key", "f.value", "g.0"
    assert {*others} - equal == {
        f"layers.{layer}.{part}.weight" for layer in range(3) for part in parts
    }
    assert {"head.weight", "head.bias", "embedding.offset_RD", "positions.table.weight"} <= equal
