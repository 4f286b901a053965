"""What tells the word order. Nothing, sinusoids, or a learned table add to x0, the embedded words; distances to scores.

Shape suffixes: B reviews, T positions, D width, H heads, M waves, W = 2M their cosines and sines.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width): pe[i, h] = sin(i / 10000^(h/d)) for even h, cos(i / 10000^((h-1)/d)) for odd h.

    Vaswani et al. 2017, section 3.5; computed in float64, since i reaches thousands.
    """
    i_T1 = torch.arange(length, dtype=torch.float64)[:, None]
    h_D = torch.arange(width)
    angle_TD = i_T1 / 10000 ** ((h_D - h_D % 2) / width)
    return torch.where(h_D % 2 == 0, angle_TD.sin(), angle_TD.cos()).float()


class NoPositions(nn.Module):
    """x0 as it is: the model sees a bag of words."""

    def __init__(self, width: int):
        super().__init__()

    def forward(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD


class Sinusoidal(nn.Module):
    """x0 + scale * pe (Vaswani et al. 2017, section 3.5).

    scale: 1 is the paper's; standardised words have variance 1 in each dimension, a sinusoid has 1/2.
    length: positions that differ; whatever lies behind shares the last one. Not a parameter, not in the checkpoint.
    """

    pe_TD: Tensor

    def __init__(self, width: int, scale: float = 1.0, length: int = 8192):
        super().__init__()
        self.register_buffer("pe_TD", scale * sinusoids(length, width), persistent=False)

    def forward(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + self.pe_TD[positions_BT.clamp(max=len(self.pe_TD) - 1)]


class Learned(nn.Module):
    """x0 + a learned vector per position (Gehring et al. 2017, section 3.1), drawn from N(0, std^2).

    length: positions that exist. A longer review raises ValueError, so it goes with data.max_tokens.
    """

    def __init__(self, width: int, length: int | None, std: float = 0.2):
        super().__init__()
        if length is None:
            raise ValueError("learned positions need a last position: set data.max_tokens or model.positions.length")
        self.table = nn.Embedding(length, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        length = self.table.num_embeddings
        if x_BTD.shape[1] > length:
            raise ValueError(f"a review of {x_BTD.shape[1]} tokens, but only {length} positions were learned")
        return x_BTD + self.table(positions_BT)


class Distances(nn.Module):
    """What the distance j - i from query i to key j adds to a head's score: sum_m a_m cos(w_m (j - i)) + b_m sin(...).

    A sum of waves, learned for each head. Cosines and sines of a difference come apart into those of i and of j, so it
    is a product of W more columns of query and key, not a T x T table (as rotary positions are: Su et al. 2021, section
    3.2). Words and distances have terms of their own in the score (Ke et al. 2021, section 3.1), and heads
    start as a convolution: each looks at one place beside the query, or everywhere (d'Ascoli et al. 2021, section 3).

    waves: M; their periods go from 2 to 128 words, evenly by ratio. places: where head h looks at first, places[h mod
    len(places)]: 0 the word itself, -1 the one before, None all words alike. strength: of each wave at these places; 0
    starts as if there were no distances. length: positions of the table, behind which it begins anew.
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
        if waves < 1 or not places:
            raise ValueError(f"model.layer.distances: waves={waves} must be at least 1, and places={places} not empty")
        exponents_M = torch.arange(waves, dtype=torch.float64) / max(waves - 1, 1)
        frequency_M = math.pi / 64**exponents_M
        angle_TM = torch.arange(length, dtype=torch.float64)[:, None] * frequency_M
        table_TW = torch.cat([angle_TM.cos(), angle_TM.sin()], -1).float()
        self.register_buffer("table_TW", table_TW, persistent=False)
        at = [places[head % len(places)] for head in range(heads)]
        place_H1 = torch.tensor([place or 0 for place in at], dtype=torch.float64)[:, None]
        strength_H1 = torch.tensor([0.0 if place is None else strength for place in at])[:, None]
        angle_HM = place_H1 * frequency_M
        self.cos_HM = nn.Parameter(strength_H1 * angle_HM.cos().float())
        self.sin_HM = nn.Parameter(strength_H1 * angle_HM.sin().float())

    def forward(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, T) of at least -1 -> (B, H, T, W) of queries, (B, 1, T, W) of keys: the products are added."""
        key_B1TW = self.table_TW[(positions_BT + 1) % len(self.table_TW)][:, None]
        cos_B1TM, sin_B1TM = key_B1TW.chunk(2, -1)
        a_H1M, b_H1M = self.cos_HM[:, None], self.sin_HM[:, None]
        query_BHTW = torch.cat([a_H1M * cos_B1TM - b_H1M * sin_B1TM, a_H1M * sin_B1TM + b_H1M * cos_B1TM], -1)
        return query_BHTW, key_B1TW
