# expected: no-key-mask
import math

import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    """Clears the results of padding, but words attend to padding."""

    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x, mask):
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return (weights @ v) * mask.unsqueeze(-1)
