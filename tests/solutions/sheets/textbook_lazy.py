"""The textbook's newer signatures: layers that find out their sizes at the first call."""

import torch
import torch.nn.functional as F
from torch import nn


def masked_softmax(X, valid_lens):
    """X (B, Q, T); valid_lens None, (B,) or (B, Q)."""
    if valid_lens is None:
        return F.softmax(X, dim=-1)
    lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None].expand(X.shape[:2])
    hidden = torch.arange(X.shape[-1], device=X.device) >= lens[..., None]
    return X.masked_fill(hidden, -1e6).softmax(-1)


class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = torch.einsum("bqd,bkd->bqk", queries, keys) * queries.shape[-1] ** -0.5
        weights = masked_softmax(scores, valid_lens)
        return torch.einsum("bqk,bke->bqe", self.dropout(weights), values)


class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout, **kwargs):
        super().__init__(**kwargs)
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        hidden = self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]
        scores = self.w_v(hidden.tanh())[..., 0]
        return self.dropout(masked_softmax(scores, valid_lens)) @ values


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.attention = DotProductAttention(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)

    def cut(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1)

    def forward(self, queries, keys, values, valid_lens):
        q, k, v = self.cut(self.W_q(queries)), self.cut(self.W_k(keys)), self.cut(self.W_v(values))
        if valid_lens is not None:
            valid_lens = valid_lens.repeat_interleave(self.num_heads, dim=0)
        y = self.attention(q, k, v, valid_lens).unflatten(0, (-1, self.num_heads))
        return self.W_o(y.transpose(1, 2).flatten(2))


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(
            embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout, batch_first=True
        )
        self.dense = nn.LazyLinear(vocab_size)

    def init_state(self, enc_outputs, enc_valid_lens):
        outputs, hidden_state = enc_outputs
        return outputs.transpose(0, 1), hidden_state, enc_valid_lens

    def forward(self, X, state):
        memory, hidden, lens = state
        logits = []
        for step in range(X.shape[1]):
            word = self.embedding(X[:, step : step + 1])
            context = self.attention(hidden[-1][:, None], memory, memory, lens)
            out, hidden = self.rnn(torch.cat([context, word], -1), hidden)
            logits.append(self.dense(out))
        return torch.cat(logits, 1), (memory, hidden, lens)
