"""What tells the word order: nothing, sinusoids, or a learned table. Each adds to x0, the embedded words.

Shape suffixes: B reviews, T positions, D width.
"""

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
