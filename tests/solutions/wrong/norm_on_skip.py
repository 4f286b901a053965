# expected: norm-on-skip
import math

from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])
        return scores.masked_fill(~mask[:, None, :], -1e9).softmax(-1) @ self.value(x)


class ResidualLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width)
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x, mask):
        x = self.norm(x)
        x = x + self.attention(x, mask)
        return self.g(x)
