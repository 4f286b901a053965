"""One Linear for Q, K and V, an additive mask of -inf, and no NaN afterwards."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, float("-inf"))
        # A review without words attends to its first position.
        bias[:, 0] = torch.where(mask.any(1), bias[:, 0], torch.zeros_like(bias[:, 0]))
        scores = torch.bmm(q, k.mT) * k.size(-1) ** -0.5 + bias.unsqueeze(1)
        return torch.bmm(F.softmax(scores, 2), v)


def masked_mean(x, mask):
    total = x.masked_fill(~mask.unsqueeze(-1), 0.0).sum(dim=1)
    return total / torch.clamp(mask.sum(dim=1, keepdim=True), min=1)


class PlainLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attend, self.linear = SelfAttention(width), nn.Linear(width, width)

    def forward(self, x, mask):
        return F.relu(self.linear(self.attend(x, mask)))


class Classifier(nn.Module):
    """Without positions and CLS."""

    def __init__(self, vectors, classes):
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.layers = nn.ModuleList([PlainLayer(vectors.size(1)), PlainLayer(vectors.size(1))])
        self.out = nn.Linear(vectors.size(1), classes)

    def forward(self, tokens, lengths):
        x, mask = (
            self.vectors[tokens],
            torch.arange(tokens.size(1)).expand_as(tokens) < lengths.unsqueeze(1),
        )
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(masked_mean(x, mask))
