"""The other attentions with one matrix for all heads, parameters, einsum, and torch's interface."""

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 0.5


def masked_softmax(scores, valid_lengths):
    mask = torch.arange(scores.size(2))[None, None] >= valid_lengths.view(-1, 1, 1)
    exp = torch.exp(scores - scores.amax(-1, keepdim=True)) * ~mask
    return exp / exp.sum(-1, keepdim=True).clamp(min=1e-12)


def scaled_dot_product_attention(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class MultiHeadAttention(nn.MultiheadAttention):
    pass


class AdditiveScore(nn.Module):
    def __init__(self, query_width, key_width, hidden):
        super().__init__()
        self.both = nn.Linear(query_width + key_width, hidden)
        self.v = nn.Parameter(torch.rand(hidden))

    def forward(self, q, k):
        q = q[:, :, None].expand(-1, -1, k.shape[1], -1)
        k = k[:, None].expand(-1, q.shape[1], -1, -1)
        return torch.tanh(self.both(torch.cat([q, k], -1))) @ self.v


class BilinearScore(nn.Module):
    def __init__(self, query_width, key_width):
        super().__init__()
        self.W = nn.Parameter(torch.rand(key_width, query_width))

    def forward(self, q, k):
        return torch.einsum("btk,kd,bqd->bqt", k, self.W, q)


class DecoderAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, state, outputs, mask):
        scores = SCALE * (self.project(outputs) * state[:, None]).sum(-1)
        weights = masked_softmax(scores[:, None], mask.sum(1))
        return (weights @ outputs)[:, 0]
