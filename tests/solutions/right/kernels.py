"""torch's own attention: scaled_dot_product_attention in SelfAttention, everything in float32
whatever the input is.
"""

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False).float() for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x.float()
        keys = mask | ~mask.any(1, keepdim=True)
        return F.scaled_dot_product_attention(
            self.q(x), self.k(x), self.v(x), attn_mask=keys[:, None, :]
        )


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(
        torch.stack([one[words].mean(0) for one, words in zip(x.float(), mask, strict=True)])
    )


class ResidualLayer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.f = nn.LayerNorm(width).float(), SelfAttention(width)
        self.g = nn.Sequential(nn.Linear(width, width).float(), nn.ReLU())

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return self.g(x + self.f(self.norm(x), mask))
