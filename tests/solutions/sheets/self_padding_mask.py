"""Masks that are True on padding, and a model that makes its own table of vectors."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, max_len: int = 512):
        super().__init__()
        pe = torch.zeros(max_len, 1, d_model)
        pos = torch.arange(max_len, dtype=torch.float).view(-1, 1)
        inverse = 1.0 / 10000 ** (torch.arange(0, d_model, 2).float() / d_model)
        pe[:, 0, 0::2] = torch.sin(pos * inverse)
        pe[:, 0, 1::2] = torch.cos(pos * inverse)
        self.register_buffer("pe", pe)

    def forward(self, x):
        """x (T, B, D)."""
        return x + self.pe[: x.size(0)]


class SelfAttn(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.bmm(q, k.transpose(1, 2)) / q.size(-1) ** 0.5
        scores = scores.masked_fill(mask.unsqueeze(1), -1e9)
        return torch.bmm(F.softmax(scores, dim=2), v)


class PlainBlock(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.f = SelfAttn(hidden_dim)
        self.g = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x, mask):
        return F.relu(self.g(self.f(x, mask)))


class AttentionClassifier(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_layers, num_classes):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_dim)
        self.blocks = nn.ModuleList(PlainBlock(embed_dim) for _ in range(num_layers))
        self.fc = nn.Linear(embed_dim, num_classes)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        words = (~mask).unsqueeze(-1).to(x.dtype)
        return self.fc((x * words).sum(1) / words.sum(1).clamp(min=1.0))
