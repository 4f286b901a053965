"""Other attention: output projection, rotary positions, distances, label queries, equal weights.

Shape suffixes: B reviews, T positions, D width, H heads, d width of one head, M = d // 2 pairs of
its dimensions, or M waves and W = 2M their cosines and sines, R distances, C classes, Q queries, K
keys; `...`: leading dimensions.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.nn.ladder import (
    Attention,
    Classifier,
    Pooling,
    ResidualLayer,
    SelfAttention,
    WordPositions,
)
from imdbattn.nn.scores import MakeScore, ScaledDot, Score

LENGTH = 8192  # Distances repeat after this number of positions


class ProjectedAttention(SelfAttention):
    """The concatenated heads times W_O, as in nn.MultiheadAttention (Vaswani et al. 2017)."""

    def __init__(self, width: int, **settings: Any):
        super().__init__(width, **settings)
        self.output = torch.nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return self.output(super().forward(x_BTD, words))


class RotaryAttention(SelfAttention):
    """Queries and keys rotated in proportion to their positions, so that q_i . k_j depends on j - i
    (Su et al. 2021).

    At position i, dimensions 2m and 2m + 1 of a head are rotated by i / 10000^(2m/d). If d is odd,
    the last dimension is not rotated.
    """

    frequency_M: Tensor

    def __init__(self, width: int, **settings: Any):
        super().__init__(width, **settings)
        size = width // self.heads
        exponent_M = 2 * torch.arange(size // 2, dtype=torch.float64) / size
        self.register_buffer("frequency_M", (10000**-exponent_M).float(), persistent=False)

    def project(self, x_BTD: Tensor, words: WordPositions) -> tuple[Tensor, ...]:
        q_BHTd, k_BHTd, v_BHTd = super().project(x_BTD, words)
        positions_BT = words.positions_BT
        return self.rotate(q_BHTd, positions_BT), self.rotate(k_BHTd, positions_BT), v_BHTd

    def rotate(self, x_BHTd: Tensor, positions_BT: Tensor) -> Tensor:
        angle_B1TM = positions_BT[:, None, :, None] * self.frequency_M
        size = 2 * len(self.frequency_M)
        cos, sin = angle_B1TM.cos(), angle_B1TM.sin()
        a, b = x_BHTd[..., 0:size:2], x_BHTd[..., 1:size:2]
        pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return torch.cat([pairs.to(x_BHTd.dtype), x_BHTd[..., size:]], -1)


class ProjectedLayer(ResidualLayer):
    """x <- g(x + f(LN(x)) W_O)."""

    attention_class = ProjectedAttention


class RotaryLayer(ResidualLayer):
    """ResidualLayer with rotary positions."""

    attention_class = RotaryAttention


class Distances(nn.Module):
    """score(i, j) + sum_m a_m cos(w_m (j - i)) + b_m sin(w_m (j - i)); each head learns a and b.

    The cos and sin of a difference are sums of products of those of i and j, so W more columns of
    query and key compute the term. Heads are initialized as a convolution (d'Ascoli et al. 2021,
    section 3).

    waves: number of sinusoids (M), whose periods are spaced geometrically from 2 to 128 words.
    offsets: head h initially attends to offsets[h % len(offsets)]: 0 is the word itself, -1 the
    previous word, None all words.
    strength: initial amplitude of each wave; 0 initializes the term to 0.
    """

    table_TW: Tensor

    def __init__(
        self,
        heads: int,
        waves: int = 8,
        offsets: Sequence[int | None] = (None, -1, 1, -2, 0),
        strength: float = 1.5,
    ):
        super().__init__()
        exponents_M = torch.arange(waves, dtype=torch.float64) / max(waves - 1, 1)
        frequency_M = math.pi / 64**exponents_M
        angle_TM = torch.arange(LENGTH, dtype=torch.float64)[:, None] * frequency_M
        table_TW = torch.cat([angle_TM.cos(), angle_TM.sin()], -1).float()
        self.register_buffer("table_TW", table_TW, persistent=False)
        first = [offsets[head % len(offsets)] for head in range(heads)]
        strength_H = torch.tensor([0.0 if offset is None else strength for offset in first])
        strength_H1 = strength_H[:, None]
        angle_HM = torch.tensor([offset or 0.0 for offset in first])[:, None] * frequency_M
        self.cos_HM = nn.Parameter(strength_H1 * angle_HM.cos().float())
        self.sin_HM = nn.Parameter(strength_H1 * angle_HM.sin().float())

    def forward(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, T) from -1 -> columns of queries (B, H, T, W) and of keys (B, 1, T, W)."""
        key_B1TW = self.table_TW[(positions_BT + 1) % LENGTH][:, None]
        cos_B1TM, sin_B1TM = key_B1TW.chunk(2, -1)
        a_H1M, b_H1M = self.cos_HM[:, None], self.sin_HM[:, None]
        query_BHTW = torch.cat(
            [a_H1M * cos_B1TM - b_H1M * sin_B1TM, a_H1M * sin_B1TM + b_H1M * cos_B1TM], -1
        )
        return query_BHTW, key_B1TW


class ClippedDistances(nn.Module):
    """score(i, j) + b[clip(j - i, -reach, reach)] with R = 2 reach + 1 learned numbers b for each
    head, initially 0.

    Raffel et al. 2020, section 2.1, with the clipped distances of Shaw et al. 2018, section 3.2.
    """

    def __init__(self, heads: int, reach: int = 16):
        super().__init__()
        self.reach = reach
        self.bias_RH = nn.Parameter(torch.zeros(2 * reach + 1, heads))

    def forward(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, T) -> the row of each query (B, H, T, T), and the unit vectors of the keys
        (1, 1, T, T).
        """
        distance_BTT = positions_BT[:, None] - positions_BT[:, :, None]
        index_B1TT = (distance_BTT.clamp(-self.reach, self.reach) + self.reach)[:, None]
        index_BHTT = index_B1TT.expand(-1, self.bias_RH.shape[1], -1, -1)
        bias_BHTR = self.bias_RH.T[:, None].expand(*index_BHTT.shape[:3], -1)
        # F.embedding returns the same, but its backward pass is slower.
        row_BHTT = bias_BHTR.gather(3, index_BHTT)
        return row_BHTT, torch.eye(positions_BT.shape[1]).to(row_BHTT)[None, None]


class LabelQueryPooling(Pooling):
    """z_c = sum_t softmax(score(q_c, x_t)) x_t with a learned query q_c for each class: (B, T, D)
    -> (B, C, D).

    Each class is a head, so the weights (B, C, 1, T) show what each label reads (Mullenbach et al.
    2018, section 2.2).
    """

    def __init__(self, width: int, classes: int, score: MakeScore = ScaledDot):
        super().__init__(width)
        self.query_CD = nn.Parameter(torch.zeros(classes, width))  # equal weights at first
        self.attention = Attention(score(width, width))

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        query_BC1D = self.query_CD[:, None].to(x_BTD.dtype).expand(len(x_BTD), -1, -1, -1)
        x_BCTD = x_BTD[:, None].expand(-1, len(self.query_CD), -1, -1)
        return self.attention(query_BC1D, x_BCTD, x_BCTD, words.key_mask_B11T).squeeze(2)


class LabelHead(nn.Linear):
    """The logit of class c is w_c . z_c + b_c: (B, C, D) -> (B, C)."""

    def forward(self, z_BCD: Tensor) -> Tensor:
        return (self.weight * z_BCD).sum(-1) + self.bias


class LabelQueryClassifier(Classifier):
    """A classifier with a LabelQueryPooling. pooling: called with the width and `classes`."""

    def __init__(
        self, embedding: nn.Module, classes: int, *, pooling: Callable[..., Pooling], **parts: Any
    ):
        super().__init__(embedding, classes, pooling=partial(pooling, classes=classes), **parts)
        self.head = LabelHead(self.head.in_features, classes)


class Uniform(Score):
    """score(q, k) = 0: the weights are always equal (Wiegreffe & Pinter 2019, section 3.2)."""

    def compare(self, query: Tensor, projected: Tensor) -> Tensor:
        # DDP needs gradients of all parameters
        return 0 * (query.sum(-1)[..., None] + projected.sum(-1)[..., None, :])
