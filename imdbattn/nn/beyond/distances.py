"""A term of the attention scores that depends on the distance between two words.

Shape suffixes: B reviews, T positions, H heads, M waves, W = 2M their cosines and sines, R distances.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Distances(nn.Module):
    """score(i, j) + sum_m a_m cos(w_m (j - i)) + b_m sin(w_m (j - i)) with a and b learned for each head.

    cos and sin of a difference are products of those of i and j, so the term is a product of W more columns of query
    and key, not a T x T table (as in rotary positions: Su et al. 2021, section 3.2). Words and distances have separate
    terms (Ke et al. 2021, section 3.1). Heads are initialized as a convolution (d'Ascoli et al. 2021, section 3).

    waves: M, number of sinusoids; their periods are spaced geometrically from 2 to 128 words.
    places: head h initially attends to places[h % len(places)]: 0 is the word itself, -1 the previous, None all words.
    strength: initial amplitude of each wave; 0 initializes the term to 0.
    length: positions of the table, after which it repeats.
    """

    table_TW: Tensor

    def __init__(
        self,
        heads: int,
        waves: int = 8,
        places: Sequence[int | None] = (None, -1, 1, -2, 0),
        strength: float = 1.5,
        length: int = 8192,
    ):
        super().__init__()
        exponents_M = torch.arange(waves, dtype=torch.float64) / max(waves - 1, 1)
        frequency_M = math.pi / 64**exponents_M
        angle_TM = torch.arange(length, dtype=torch.float64)[:, None] * frequency_M
        table_TW = torch.cat([angle_TM.cos(), angle_TM.sin()], -1).float()
        self.register_buffer("table_TW", table_TW, persistent=False)
        first = [places[head % len(places)] for head in range(heads)]
        place_H1 = torch.tensor([place or 0 for place in first], dtype=torch.float64)[:, None]
        strength_H1 = torch.tensor([0.0 if place is None else strength for place in first])[:, None]
        angle_HM = place_H1 * frequency_M
        self.cos_HM = nn.Parameter(strength_H1 * angle_HM.cos().float())
        self.sin_HM = nn.Parameter(strength_H1 * angle_HM.sin().float())

    def forward(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, T), at least -1 -> columns of queries (B, H, T, W) and of keys (B, 1, T, W)."""
        key_B1TW = self.table_TW[(positions_BT + 1) % len(self.table_TW)][:, None]
        cos_B1TM, sin_B1TM = key_B1TW.chunk(2, -1)
        a_H1M, b_H1M = self.cos_HM[:, None], self.sin_HM[:, None]
        query_BHTW = torch.cat([a_H1M * cos_B1TM - b_H1M * sin_B1TM, a_H1M * sin_B1TM + b_H1M * cos_B1TM], -1)
        return query_BHTW, key_B1TW


class ClippedDistances(nn.Module):
    """score(i, j) + b[clip(j - i, -reach, reach)] with R = 2 reach + 1 numbers b learned for each head, initially 0.

    A number for each distance and head as in Raffel et al. 2020, section 2.1, with the clipped distances of Shaw et al.
    2018, section 3.2, instead of intervals that become longer. Larger distances share the number of `reach`.
    """

    def __init__(self, heads: int, reach: int = 16):
        super().__init__()
        self.reach = reach
        self.bias_RH = nn.Parameter(torch.zeros(2 * reach + 1, heads))

    def forward(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, T) -> the row of each query (B, H, T, T), and the unit vectors of the keys (1, 1, T, T)."""
        distance_BTT = positions_BT[:, None] - positions_BT[:, :, None]
        place_B1TT = (distance_BTT.clamp(-self.reach, self.reach) + self.reach)[:, None]
        place_BHTT = place_B1TT.expand(-1, self.bias_RH.shape[1], -1, -1)
        bias_BHTR = self.bias_RH.T[:, None].expand(*place_BHTT.shape[:3], -1)
        row_BHTT = bias_BHTR.gather(3, place_BHTT)  # F.embedding, the same, has a slower backward pass
        return row_BHTT, torch.eye(positions_BT.shape[1]).to(row_BHTT)[None, None]
