"""Random numbers, masks, and the comparison of numbers."""

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same in both default types."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(
        torch.get_default_dtype()
    )


def same(first: Tensor, second: Tensor, tolerance: float = 1e-3) -> bool:
    """Returns whether numbers differ by at most the tolerance times the largest. NaN equals NaN."""
    if first.shape != second.shape:
        return False
    if not second.numel():
        return True
    largest = float(second.detach().nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(first.to(second), second, 0, tolerance * largest, equal_nan=True)


def mask(*lengths: int, size: int | None = None) -> Tensor:
    """(B, T) bool, True on the words."""
    return torch.arange(size or max(lengths)) < torch.tensor(lengths)[:, None]
