"""Older names, and an LSTM as the decoder."""

import math

import torch
from torch import nn


def masked_softmax(X, valid_length):
    if valid_length is None:
        return torch.softmax(X, -1)
    if valid_length.ndim == 1:
        valid_length = valid_length.reshape(-1, 1).repeat(1, X.shape[1])
    steps = torch.arange(X.shape[-1]).to(X.device)
    mask = steps.reshape(1, 1, -1) < valid_length.unsqueeze(-1)
    exps = torch.exp(X - X.max(-1, keepdim=True).values) * mask
    return exps / exps.sum(-1, keepdim=True).clamp(min=1e-12)


class DotProductAttention(nn.Module):
    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, valid_length=None):
        scores = torch.bmm(query, key.permute(0, 2, 1)) / math.sqrt(query.shape[-1])
        return torch.bmm(self.dropout(masked_softmax(scores, valid_length)), value)


class MLPAttention(nn.Module):
    def __init__(self, units, ipt_dim, dropout, **kwargs):
        super().__init__(**kwargs)
        self.W_k = nn.Linear(ipt_dim, units, bias=False)
        self.W_q = nn.Linear(ipt_dim, units, bias=False)
        self.v = nn.Linear(units, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, valid_length):
        query, key = self.W_q(query), self.W_k(key)
        features = query.unsqueeze(2) + key.unsqueeze(1)
        scores = self.v(torch.tanh(features)).squeeze(-1)
        weights = self.dropout(masked_softmax(scores, valid_length))
        return torch.bmm(weights, value)


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs):
        super().__init__(**kwargs)
        self.attention_cell = MLPAttention(num_hiddens, num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.LSTM(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs, enc_valid_len, *args):
        outputs, hidden_state = enc_outputs
        return (outputs.permute(1, 0, 2), hidden_state, enc_valid_len)

    def forward(self, X, state):
        enc_outputs, hidden_state, enc_valid_len = state
        X = self.embedding(X).permute(1, 0, 2)
        outputs = []
        for x in X:
            query = hidden_state[0][-1].unsqueeze(1)
            context = self.attention_cell(query, enc_outputs, enc_outputs, enc_valid_len)
            x = torch.cat((context, x.unsqueeze(1)), dim=-1)
            out, hidden_state = self.rnn(x.transpose(0, 1), hidden_state)
            outputs.append(out)
        outputs = self.dense(torch.cat(outputs, dim=0))
        return outputs.transpose(0, 1), [enc_outputs, hidden_state, enc_valid_len]
