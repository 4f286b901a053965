"""Three Linears, masked_fill, and all parts."""

import math

import torch
from torch import nn


def padding_mask(lengths, size):
    return torch.arange(size, device=lengths.device) < lengths[:, None]


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        scores = scores.masked_fill(~mask[:, None, :], -1e9)
        return torch.softmax(scores, dim=-1) @ self.value(x)


def masked_mean(x, mask):
    words = mask[..., None].to(x.dtype)
    return (x * words).sum(1) / words.sum(1).clamp(min=1)


def positional_encoding(length, width):
    table = torch.zeros(length, width)
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()
    return table


class PlainLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.f = SelfAttention(width)
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x, mask):
        return self.g(self.f(x, mask))


class ResidualLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.f = SelfAttention(width)
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x, mask):
        return self.g(x + self.f(self.norm(x), mask))


class Classifier(nn.Module):
    def __init__(self, vectors, classes, positions=None, cls=False):
        super().__init__()
        width = vectors.shape[1]
        self.embedding = nn.Embedding.from_pretrained(vectors)
        self.positions = positions
        self.cls = nn.Parameter(torch.randn(width)) if cls else None
        self.layers = nn.ModuleList(ResidualLayer(width) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        x = self.embedding(tokens)
        mask = padding_mask(lengths, tokens.shape[1])
        if self.positions == "sinusoidal":
            x = x + positional_encoding(x.shape[1], x.shape[2]).to(x.device)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)
            mask = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
        for layer in self.layers:
            x = layer(x, mask)
        pooled = masked_mean(x, mask) if self.cls is None else x[:, 0]
        return self.head(pooled)


@torch.no_grad()
def test_accuracy(model, train_loader, test_loader):
    model.eval()
    correct = total = 0
    for tokens, lengths, labels in test_loader:
        correct += (model(tokens, lengths).argmax(1) == labels).sum().item()
        total += len(labels)
    return correct / total
