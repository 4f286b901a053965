"""Names of this project with lengths, an encoder's layer with a feed-forward network, a maximum."""

import torch
from torch import nn


def is_padding(lengths, size):
    return torch.arange(size, device=lengths.device).unsqueeze(0) >= lengths.unsqueeze(1)


class SelfAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.to_q = nn.Linear(size, size, bias=False)
        self.to_k = nn.Linear(size, size, bias=False)
        self.to_v = nn.Linear(size, size, bias=False)

    def forward(self, x, lengths):
        logits = torch.einsum("btd,bsd->bts", self.to_q(x), self.to_k(x)) * x.shape[-1] ** -0.5
        logits[is_padding(lengths, x.shape[1])[:, None].expand_as(logits)] = -1e9
        return torch.einsum("bts,bsd->btd", logits.softmax(-1), self.to_v(x))


class EncoderBlock(nn.Module):
    def __init__(self, size, dropout=0.2):
        super().__init__()
        self.attention = SelfAttention(size)
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.wide, self.narrow = nn.Linear(size, 3 * size), nn.Linear(3 * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, lengths):
        x = x + self.dropout(self.attention(self.first(x), lengths))
        hidden = nn.functional.gelu(self.wide(self.second(x)))
        return x + self.dropout(self.narrow(hidden))


class Classifier(nn.Module):
    def __init__(self, vectors, num_classes):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(vectors)
        self.block = EncoderBlock(vectors.shape[1])
        self.last = nn.Linear(vectors.shape[1], num_classes)

    def forward(self, tokens, mask):
        h = self.block(self.table(tokens), mask.sum(1))
        return self.last(h.masked_fill(~mask.unsqueeze(2), -torch.inf).amax(1))
