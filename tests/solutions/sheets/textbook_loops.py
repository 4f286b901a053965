"""The textbook's parts with loops, and a Linear for each head."""

import math

import torch
from torch import nn


def masked_softmax(X, valid_lens):
    B, Q, K = X.shape
    rows = []
    for b in range(B):
        for q in range(Q):
            n = K
            if valid_lens is not None:
                n = int(valid_lens[b, q]) if valid_lens.dim() == 2 else int(valid_lens[b])
            row = torch.zeros(K)
            if n > 0:
                row[:n] = torch.softmax(X[b, q, :n], 0)
            rows.append(row)
    return torch.stack(rows).view(B, Q, K)


class DotProductAttention(nn.Module):
    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        out = []
        scores = torch.stack(
            [q @ k.T / math.sqrt(q.shape[-1]) for q, k in zip(queries, keys, strict=False)]
        )
        weights = self.dropout(masked_softmax(scores, valid_lens))
        for w, v in zip(weights, values, strict=False):
            out.append(w @ v)
        return torch.stack(out)


class AdditiveAttention(nn.Module):
    def __init__(self, key_size, query_size, num_hiddens, dropout):
        super().__init__()
        self.W_k = nn.Linear(key_size, num_hiddens)
        self.W_q = nn.Linear(query_size, num_hiddens)
        self.w_v = nn.Linear(num_hiddens, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        cols = []
        for i in range(queries.shape[1]):
            h = torch.tanh(self.W_q(queries[:, i : i + 1]) + self.W_k(keys))
            cols.append(self.w_v(h).squeeze(2))
        scores = torch.stack(cols, dim=1)
        return self.dropout(masked_softmax(scores, valid_lens)).bmm(values)


class MultiHeadAttention(nn.Module):
    """A Linear for each head."""

    def __init__(self, key_size, query_size, value_size, num_hiddens, num_heads, dropout):
        super().__init__()
        d = num_hiddens // num_heads
        self.qs = nn.ModuleList([nn.Linear(query_size, d, bias=False) for _ in range(num_heads)])
        self.ks = nn.ModuleList([nn.Linear(key_size, d, bias=False) for _ in range(num_heads)])
        self.vs = nn.ModuleList([nn.Linear(value_size, d, bias=False) for _ in range(num_heads)])
        self.attention = DotProductAttention(dropout)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=False)

    def forward(self, queries, keys, values, valid_lens):
        heads = []
        for q, k, v in zip(self.qs, self.ks, self.vs, strict=False):
            heads.append(self.attention(q(queries), k(keys), v(values), valid_lens))
        return self.W_o(torch.cat(heads, dim=-1))


class PositionalEncoding(nn.Module):
    def __init__(self, num_hiddens, dropout, max_len=1000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        P = torch.zeros(max_len, num_hiddens)
        for pos in range(max_len):
            for i in range(0, num_hiddens, 2):
                P[pos, i] = math.sin(pos / 10000 ** (i / num_hiddens))
                if i + 1 < num_hiddens:
                    P[pos, i + 1] = math.cos(pos / 10000 ** (i / num_hiddens))
        self.register_buffer("P", P.unsqueeze(0))

    def forward(self, X):
        return self.dropout(X + self.P[:, : X.size(1)])
