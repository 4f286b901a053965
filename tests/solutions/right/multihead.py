"""nn.MultiheadAttention with one head, and a classifier whose CLS and positions are always there,
used or not.
"""

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 1, batch_first=True)

    def forward(self, x, mask):
        padding = ~mask & mask.any(dim=1, keepdim=True)
        return self.inner(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class ResidualLayer(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), SelfAttention(width)
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, x, mask):
        skip = x
        x = self.attention(self.norm(x), mask)
        return self.g(skip + x)


class Positions(nn.Module):
    def __init__(self, width, length=100):
        super().__init__()
        angle = torch.outer(
            torch.arange(length), torch.exp(-math.log(10000) * torch.arange(0, width, 2) / width)
        )
        self.register_buffer("table", torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class Classifier(nn.Module):
    def __init__(self, vectors, classes, positions=None, cls=False, layers=2):
        super().__init__()
        width = vectors.shape[-1]
        self.vectors = nn.Parameter(vectors, requires_grad=False)
        self.add_positions = Positions(width) if positions else nn.Identity()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.use_cls = cls
        self.layers = nn.ModuleList([ResidualLayer(width) for _ in range(layers)])
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        x = self.add_positions(self.vectors[tokens])
        if self.use_cls:
            x, lengths = torch.cat([self.cls_token.repeat(x.shape[0], 1, 1), x], 1), lengths + 1
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        for layer in self.layers:
            x = layer(x, mask)
        if self.use_cls:
            return self.head(self.dropout(x[:, 0, :]))
        weights = mask.to(x.dtype) / lengths.clamp(min=1)[:, None]
        return self.head(self.dropout(torch.bmm(weights[:, None], x).squeeze(1)))
