"""The projections of the heads are in a list of their own for queries, keys and values."""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        queries, keys, values = (
            nn.ModuleList(nn.Linear(dim, dim // n_heads) for _ in range(n_heads)) for _ in range(3)
        )
        self.queries, self.keys, self.values = queries, keys, values
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask):
        heads = []
        for q, k, v in zip(self.queries, self.keys, self.values, strict=True):
            scores = q(x) @ k(x).mT * k.out_features**-0.5
            heads.append(scores.masked_fill(~mask[:, None], -1e9).softmax(-1) @ v(x))
        return self.out(torch.cat(heads, -1))
