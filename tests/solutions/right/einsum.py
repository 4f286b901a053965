"""nn.Parameter and einsum, a softmax written out, torch.where."""

import torch
from torch import einsum, nn


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.W = nn.Parameter(torch.randn(3, width, width) / width**0.5)
        self.b_q = nn.Parameter(torch.zeros(width))

    def forward(self, x, mask):
        q, k, v = einsum("btd,nde->nbte", x, self.W)
        scores = einsum("bid,bjd->bij", q + self.b_q, k) / self.W.shape[-1] ** 0.5
        highest = scores.amax(2, keepdim=True)
        weights = torch.where(mask[:, None], (scores - highest).exp(), torch.zeros(()))
        return einsum("bij,bjd->bid", weights / weights.sum(2, keepdim=True).clamp(min=1e-30), v)


def masked_mean(x, mask):
    share = mask.to(x) / mask.sum(1, keepdim=True).clamp(min=1)
    return einsum("bt,btd->bd", share, x)


def positional_encoding(length, width):
    row = torch.arange(length, dtype=torch.float64)
    table = torch.empty(length, width, dtype=torch.float64)
    for h in range(width):
        angle = row / 10000 ** ((h - h % 2) / width)
        table[:, h] = torch.cos(angle) if h % 2 else torch.sin(angle)
    return table.float()


class ResidualLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.f = SelfAttention(width)
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x, mask):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        normed = (x - mean) / (variance + 1e-5).sqrt() * self.gain + self.bias
        return ((x + self.f(normed, mask)) @ self.weight).clamp(min=0)
