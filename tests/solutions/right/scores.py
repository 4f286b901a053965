"""The other attentions: multi-head, additive and bilinear scores, and the step of a decoder."""

import math

import torch
from torch import nn


def masked_softmax(scores, valid_lengths):
    words = torch.arange(scores.shape[-1]) < valid_lengths[:, None, None]
    return scores.masked_fill(~words, -1e9).softmax(dim=-1)


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = torch.softmax(scores, dim=-1)
    return weights @ v, weights


class MultiHeadAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, query, key, value, mask):
        q, k, v = (
            self.split(self.W_q(query)),
            self.split(self.W_k(key)),
            self.split(self.W_v(value)),
        )
        y, _ = scaled_dot_product_attention(q, k, v, mask[:, None, None])
        return self.W_o(y.transpose(1, 2).reshape(query.shape))


class AdditiveScore(nn.Module):
    def __init__(self, query_width, key_width, hidden):
        super().__init__()
        self.W = nn.Linear(query_width, hidden, bias=False)
        self.U = nn.Linear(key_width, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)

    def forward(self, q, k):
        hidden = self.W(q).unsqueeze(2) + self.U(k).unsqueeze(1)
        return self.v(torch.tanh(hidden)).squeeze(-1)


class BilinearScore(nn.Module):
    def __init__(self, query_width, key_width):
        super().__init__()
        self.W = nn.Linear(query_width, key_width, bias=False)

    def forward(self, q, k):
        return self.W(q) @ k.transpose(1, 2)


class DecoderAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = AdditiveScore(width, width, width)

    def forward(self, state, outputs, mask):
        scores = self.score(state[:, None], outputs).squeeze(1)
        weights = scores.masked_fill(~mask, -1e9).softmax(dim=1)
        return torch.bmm(weights[:, None], outputs).squeeze(1), weights
