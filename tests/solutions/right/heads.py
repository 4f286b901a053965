"""A module for each head, a bilinear module, and a score by the dot product."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))

    def forward(self, query, key, value, mask):
        scores = self.query(query) @ self.key(key).transpose(-2, -1) * self.key.out_features**-0.5
        return scores.masked_fill(~mask[:, None], -1e9).softmax(-1) @ self.value(value)


class MultiHeadAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(width, width // heads) for _ in range(heads)])
        self.project, self.dropout = nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, query, key, value, mask):
        return self.dropout(
            self.project(torch.cat([head(query, key, value, mask) for head in self.heads], -1))
        )


class BilinearScore(nn.Module):
    def __init__(self, query_width, key_width):
        super().__init__()
        self.form = nn.Bilinear(query_width, key_width, 1, bias=False)

    def forward(self, q, k):
        q = q[:, :, None].expand(-1, -1, k.shape[1], -1)
        return self.form(
            q.contiguous(), k[:, None].expand(-1, q.shape[1], -1, -1).contiguous()
        ).squeeze(-1)


class DecoderAttention(nn.Module):
    def __init__(self, width):
        super().__init__()

    def forward(self, state, outputs, mask):
        scores = (outputs @ state[..., None])[..., 0].masked_fill(~mask, -1e9)
        return (scores.softmax(-1)[..., None] * outputs).sum(1)
