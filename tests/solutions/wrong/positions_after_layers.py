# expected: positions-after-layers
import math

import torch
from torch import nn


def positional_encoding(length, width):
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])
        weights = scores.masked_fill(~mask[:, None, :], -1e9).softmax(-1)
        return self.g(weights @ self.value(x))


class Classifier(nn.Module):
    def __init__(self, vectors, classes, positions=None):
        super().__init__()
        width = vectors.shape[1]
        self.embedding = nn.Embedding.from_pretrained(vectors)
        self.positions = positions
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        x = self.embedding(tokens)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        for layer in self.layers:
            x = layer(x, mask)
        if self.positions == "sinusoidal":
            x = x + positional_encoding(*x.shape[1:])
        words = mask[..., None].to(x.dtype)
        mean = (x * words).sum(1) / words.sum(1).clamp(min=1)
        return self.head(mean)
