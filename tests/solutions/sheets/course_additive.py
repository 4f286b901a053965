"""Course style: an additive mask, and torch's conventions of multi-head attention."""

import torch
from torch import Tensor, nn


def scaled_dot_product_attention(query, key, value, mask):
    """mask is added to the scores: 0 on words, -inf on padding."""
    scores = query @ key.mT * key.shape[-1] ** -0.5
    return torch.softmax(scores + mask, dim=-1) @ value


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.h = num_heads
        self.in_proj = nn.ModuleList(nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask=None, need_weights=True
    ):
        """query (T, B, D), as torch has it without batch_first; the mask is True on padding."""
        given = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (
            f(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for f, x in zip(self.in_proj, given, strict=True)
        )
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], -1e9)
        weights = self.drop(scores.softmax(-1))
        y = self.out_proj((weights @ v).transpose(1, 2).flatten(2)).transpose(0, 1)
        return (y, weights.mean(1)) if need_weights else (y, None)


class CausalAttention(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        future = torch.triu(torch.ones(max_len, max_len, dtype=torch.bool), diagonal=1)
        self.register_buffer("future", future)

    def forward(self, x):
        T = x.shape[1]
        scores = self.query(x) @ self.key(x).transpose(1, 2) * x.shape[-1] ** -0.5
        scores = scores.masked_fill(self.future[:T, :T], float("-inf"))
        return scores.softmax(-1) @ self.value(x)
