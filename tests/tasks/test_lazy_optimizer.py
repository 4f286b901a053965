"""Vectors of words are updated as by torch's SparseAdam: others than a batch's do not change."""

import pytest
import torch

from imdbattn.tasks.learner import parameter_groups
from imdbattn.tasks.optim import LazyAdamW
from tests.nets import net

ROWS, WIDTH = 12, 4


def gradients(steps: int, seed: int = 0) -> list[torch.Tensor]:
    """Of tables of which each step uses a third of the rows, and no number of the first column."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.arange(WIDTH) == 0
    used = [(torch.rand(ROWS, 1, generator=draw) < 0.33) & ~first for _ in range(steps)]
    return [torch.randn(ROWS, WIDTH, generator=draw) * rows for rows in used]


def trained(optimizer, parameter, steps, sparse=False, decay=0.0) -> torch.Tensor:
    for gradient in steps:
        parameter.data[gradient.any(1)] *= 1 - decay
        parameter.grad = gradient.to_sparse(1) if sparse else gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("fused", [True, False])
def test_a_table_moves_as_sparse_adam_moves_it(fused):
    start = torch.randn(ROWS, WIDTH)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    groups = [
        {"params": [torch.nn.Parameter(torch.ones(3))]},
        {"params": [ours], "lazy": True, "lr": 0.01},
    ]
    steps = gradients(20)
    found = trained(LazyAdamW(groups, weight_decay=0.5, fused=fused), ours, steps)
    expected = trained(torch.optim.SparseAdam([theirs], lr=0.01), theirs, steps, True, decay=0.005)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert (found - start).abs().max() > 0.01


def test_rows_chosen_by_a_mask_move_like_gathered_rows_bit_for_bit(monkeypatch):
    """Other devices take the mask: the number of rows is not known without waiting for them."""
    tables = []
    for gathered in (True, False):
        draw = torch.Generator().manual_seed(1)
        table = torch.nn.Parameter(torch.randn(300, 50, generator=draw))
        optimizer = LazyAdamW(
            [{"params": [table], "lazy": True}], lr=0.01, weight_decay=0.1, fused=True
        )
        monkeypatch.setattr(torch.Tensor, "is_cpu", gathered)
        for _ in range(5):
            used = (torch.rand(300, 1, generator=draw) < 0.3).float()
            table.grad = torch.randn(300, 50, generator=draw) * used
            optimizer.step()
        tables.append(
            [table.detach(), *(optimizer.state[table][name] for name in ("exp_avg", "exp_avg_sq"))]
        )
    assert all(map(torch.equal, *tables))


def test_only_tables_of_words_are_updated_lazily(settings):
    for rung, tables in (("wide", 1), ("tuned_mean", 1), ("residual", 0)):
        model = net(settings, rung)
        groups = parameter_groups(model, 0.5)
        lazy = [len(group["params"]) for group in groups if group.get("lazy")]
        assert lazy == [tables] * bool(tables)
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
        assert all(group["lr"] == 0.5 for group in groups if group.get("lazy"))
