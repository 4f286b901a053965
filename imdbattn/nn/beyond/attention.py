"""Self-attention with the output projection of several heads, and with rotary positions.

Shape suffixes: B reviews, T positions, D width, H heads, d width of one head, M = d // 2 pairs of its dimensions.
"""

from typing import Any

import torch
from torch import Tensor

from imdbattn.nn.ladder import ResidualLayer, SelfAttention, Words


class ProjectedAttention(SelfAttention):
    """The concatenated outputs of the heads times W_O, as in nn.MultiheadAttention (Vaswani et al. 2017, 3.2.2)."""

    def __init__(self, width: int, **settings: Any):
        super().__init__(width, **settings)
        self.output = torch.nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, words: Words | Tensor | None = None) -> Tensor:
        return self.output(super().forward(x_BTD, words))


class RotaryAttention(SelfAttention):
    """Queries and keys rotated in proportion to their positions, so that q_i . k_j depends on j - i (Su et al. 2021).

    Dimensions 2m and 2m + 1 of a head are rotated by i / 10000^(2m/d) at position i (section 3.2.2), the last dimension
    of an odd number is not.
    """

    frequency_M: Tensor

    def __init__(self, width: int, **settings: Any):
        super().__init__(width, **settings)
        size = width // self.heads
        exponent_M = 2 * torch.arange(size // 2, dtype=torch.float64) / size
        self.register_buffer("frequency_M", (10000**-exponent_M).float(), persistent=False)

    def project(self, x_BTD: Tensor, words: Words) -> tuple[Tensor, ...]:
        q_BHTd, k_BHTd, v_BHTd = super().project(x_BTD, words)
        return self.rotate(q_BHTd, words.positions_BT), self.rotate(k_BHTd, words.positions_BT), v_BHTd

    def rotate(self, x_BHTd: Tensor, positions_BT: Tensor) -> Tensor:
        """Rotates each pair of dimensions (2m, 2m + 1) by its angle."""
        angle_B1TM = positions_BT[:, None, :, None] * self.frequency_M
        cos, sin, size = angle_B1TM.cos(), angle_B1TM.sin(), 2 * len(self.frequency_M)
        a, b = x_BHTd[..., 0:size:2], x_BHTd[..., 1:size:2]
        pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return torch.cat([pairs.to(x_BHTd.dtype), x_BHTd[..., size:]], -1)


class ProjectedLayer(ResidualLayer):
    """x <- g(x + f(LN(x)) W_O)."""

    attention = ProjectedAttention


class RotaryLayer(ResidualLayer):
    """ResidualLayer with rotary positions."""

    attention = RotaryAttention
