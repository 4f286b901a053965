"""Tensors that are constants: an identity as output projection, zeros as queries; positions are
added in place.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Identity(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("weight", torch.eye(width))
        self.register_buffer("bias", torch.zeros(width))


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)
        self.attention.out_proj = Identity(width)

    def forward(self, x, mask):
        empty = ~mask.any(1, keepdim=True)
        y, _ = self.attention(x, x, x, key_padding_mask=~(mask | empty))
        return y * ~empty[..., None]


class ResidualLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.f, self.g = (
            nn.LayerNorm(width),
            SelfAttention(width),
            nn.Linear(width, width),
        )

    def forward(self, x, mask):
        return F.relu(self.g(x + self.f(self.norm(x), mask)))


def masked_mean(x, mask):
    weights = torch.where(mask, 0.0, -1e9)[:, None].to(x.dtype)
    mean = F.scaled_dot_product_attention(
        torch.zeros_like(x[:, :1]), torch.zeros_like(x), x, attn_mask=weights
    )
    return mean[:, 0] * mask.any(1, keepdim=True)


def positional_encoding(length, width):
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


class Classifier(nn.Module):
    def __init__(self, vectors, classes, positions=None, cls=False):
        super().__init__()
        width = vectors.shape[1]
        self.vectors, self.with_positions = (
            nn.Embedding.from_pretrained(vectors.float()),
            positions == "sinusoidal",
        )
        self.layers = nn.ModuleList(ResidualLayer(width) for _ in range(6))
        self.cls = nn.Parameter(torch.randn(width)) if cls else None
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        x, mask = self.vectors(tokens), torch.arange(tokens.shape[1]) < lengths[:, None]
        if self.with_positions:
            x += positional_encoding(x.shape[1], x.shape[2])
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), 1, -1), x], 1)
            mask = F.pad(mask, (1, 0), value=True)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x[:, 0] if self.cls is not None else masked_mean(x, mask))
