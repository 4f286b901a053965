# expected: softmax-over-queries
import math

import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x, mask):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~mask.unsqueeze(1), -1e9)
        return torch.bmm(self.softmax(scores), v)
