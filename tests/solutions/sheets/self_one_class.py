"""A whole layer in one class, and positions of either order of axes."""

import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000, batch_first=True):
        super().__init__()
        self.batch_first = batch_first
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        if self.batch_first:
            return x + self.pe[: x.size(1)].unsqueeze(0)
        return x + self.pe[: x.size(0)].unsqueeze(1)


def masked_mean(x, lengths):
    idx = torch.arange(x.size(1), device=x.device)[None, :, None]
    keep = (idx < lengths[:, None, None]).float()
    return (x * keep).sum(1) / keep.sum(1).clamp_min(1)


class AttnLayer(nn.Module):
    """Everything in one class, with residual and norm."""

    def __init__(self, hidden_size):
        super().__init__()
        self.ln = nn.LayerNorm(hidden_size)
        self.q = nn.Linear(hidden_size, hidden_size)
        self.k = nn.Linear(hidden_size, hidden_size)
        self.v = nn.Linear(hidden_size, hidden_size)
        self.g = nn.Linear(hidden_size, hidden_size)
        self.act = nn.ReLU()

    def forward(self, x, lengths):
        h = self.ln(x)
        s = self.q(h).bmm(self.k(h).transpose(1, 2)) / math.sqrt(h.size(2))
        pad = torch.arange(x.size(1))[None, :] >= lengths[:, None]
        s = s.masked_fill(pad.unsqueeze(1), torch.finfo(s.dtype).min)
        return self.act(self.g(x + s.softmax(2).bmm(self.v(h))))


class Net(nn.Module):
    def __init__(self, embedding_matrix, num_layers, output_dim):
        super().__init__()
        dim = embedding_matrix.shape[1]
        self.embed = nn.Embedding.from_pretrained(embedding_matrix)
        self.pos = PositionalEncoding(dim)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            self.layers.append(AttnLayer(dim))
        self.out = nn.Linear(dim, output_dim)

    def forward(self, x, lengths):
        x = self.pos(self.embed(x))
        for layer in self.layers:
            x = layer(x, lengths)
        return self.out(masked_mean(x, lengths))
