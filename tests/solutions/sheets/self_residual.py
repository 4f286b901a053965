"""The self-attention sheet: lengths are given, and the vectors are a matrix."""

import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class SingleHeadAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dim = dim

    def forward(self, x, lengths):
        inside = torch.arange(x.size(1), device=x.device)[None] < lengths[:, None]
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(self.dim)
        scores = scores.masked_fill(~inside[:, None], -1e9)
        return scores.softmax(-1) @ self.v(x)


class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = SingleHeadAttention(dim)
        self.g = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())

    def forward(self, x, lengths):
        return self.g(x + self.attention(self.norm(x), lengths))


class SentimentModel(nn.Module):
    def __init__(self, embeddings, num_classes=2, num_layers=2):
        super().__init__()
        dim = embeddings.shape[1]
        self.embedding = nn.Embedding.from_pretrained(embeddings)
        self.position = PositionalEncoding(dim)
        self.layers = nn.ModuleList([ResidualBlock(dim) for _ in range(num_layers)])
        self.out = nn.Linear(dim, num_classes)

    def forward(self, x, lengths):
        h = self.position(self.embedding(x))
        for layer in self.layers:
            h = layer(h, lengths)
        inside = (torch.arange(x.size(1), device=x.device)[None] < lengths[:, None])[..., None]
        return self.out((h * inside).sum(1) / inside.sum(1).clamp(min=1))
