"""A CLS vector in classes with names of their own, and masks that docstrings describe."""

import math

import torch
from torch import nn


class PosEnc(nn.Module):
    def __init__(self, d_model, max_len=100):
        super().__init__()
        rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        angle = torch.arange(max_len)[:, None] * rate
        self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))

    def forward(self, x):
        return x + self.pe[: x.shape[1]]


class Attend(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        """mask: (B, T), 1 for words and 0 for padding"""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        return self.proj(scores.masked_fill(mask[:, None] == 0, -1e9).softmax(-1) @ v)


class EncoderLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.attention, self.fc = nn.LayerNorm(dim), Attend(dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        return torch.relu(self.fc(x + self.attention(self.norm(x), mask)))


class Sentiment(nn.Module):
    def __init__(self, embeddings, num_classes=2, num_layers=2):
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(embeddings)
        self.cls = nn.Parameter(torch.randn(1, 1, embeddings.shape[1]))
        self.pos = PosEnc(embeddings.shape[1])
        self.layers = nn.ModuleList(EncoderLayer(embeddings.shape[1]) for _ in range(num_layers))
        self.head = nn.Linear(embeddings.shape[1], num_classes)

    def forward(self, x, lengths):
        x = self.pos(torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], dim=1))
        mask = (torch.arange(x.shape[1])[None] < (lengths + 1)[:, None]).long()
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x[:, 0])
