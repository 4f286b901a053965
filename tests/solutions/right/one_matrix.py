"""One Linear for q, k and v of all heads, which alternate, and one for the key and the query of a
score.
"""

import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None):
        qkv = self.qkv(x).reshape(len(x), x.shape[1], self.heads, 3 * self.size).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None] == 0, -9e15)
        return self.out((scores.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(x.shape))


class AdditiveScore(nn.Module):
    def __init__(self, query_width, key_width, hidden):
        super().__init__()
        self.attention, self.v = nn.Linear(key_width + query_width, hidden), nn.Linear(hidden, 1)

    def forward(self, q, k):
        q = q[:, :, None].expand(-1, -1, k.shape[1], -1)
        k = k[:, None].expand(-1, q.shape[1], -1, -1)
        return self.v(torch.tanh(self.attention(torch.cat([k, q], -1)))).squeeze(3)


class DecoderAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.W, self.U, self.v = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
        )

    def forward(self, state, outputs, mask):
        scores = self.v(torch.tanh(self.W(state[:, None]) + self.U(outputs))).squeeze(2)
        weights = nn.functional.softmax(scores.masked_fill(mask == 0, -1e4), dim=-1)
        return torch.bmm(weights[:, None], outputs)[:, 0], weights
