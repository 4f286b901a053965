# expected: cls-over-first-word
import math

import torch
from torch import nn


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
    def __init__(self, vectors, classes, cls=False):
        super().__init__()
        width = vectors.shape[1]
        self.embedding = nn.Embedding.from_pretrained(vectors)
        self.cls = nn.Parameter(torch.randn(1, 1, width)) if cls else None
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        x = self.embedding(tokens)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), -1, -1), x[:, 1:]], dim=1)
            mask[:, 0] = True
        for layer in self.layers:
            x = layer(x, mask)
        if self.cls is not None:
            return self.head(x[:, 0])
        words = mask[..., None].to(x.dtype)
        mean = (x * words).sum(1) / words.sum(1).clamp(min=1)
        return self.head(mean)
