"""Vectors times sqrt(d), positions after a projection to the width of the layers, nan-free mean."""

import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len):
        super().__init__()
        rows = torch.arange(max_len)[:, None].double()
        columns = torch.arange(d_model // 2)[None].double()
        angles = rows / torch.pow(torch.tensor(10000.0).double(), 2 * columns / d_model)
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.table = nn.Parameter(table.to(torch.get_default_dtype()), requires_grad=False)

    def forward(self, x):
        _, length, _ = x.shape
        return self.table[None, :length] + x


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.wq = nn.Linear(d, d, bias=False)
        self.wk = nn.Linear(d, d, bias=False)
        self.wv = nn.Linear(d, d, bias=False)
        self.ln = nn.LayerNorm(d)
        self.lin = nn.Linear(d, d)

    def attend(self, x, mask):
        s = torch.matmul(self.wq(x), self.wk(x).mT) / math.sqrt(x.shape[-1])
        s = s + (1.0 - mask.to(x.dtype))[:, None, :] * -1e9
        return torch.matmul(torch.softmax(s, dim=-1), self.wv(x))

    def forward(self, x, mask):
        return torch.relu(self.lin(x + self.attend(self.ln(x), mask)))


class Net(nn.Module):
    def __init__(self, embedding_matrix, hidden_size, n_classes, n_layers=2):
        super().__init__()
        self.emb = nn.Embedding.from_pretrained(embedding_matrix, freeze=True)
        self.proj = nn.Linear(embedding_matrix.shape[1], hidden_size)
        self.pos = PositionalEncoding(hidden_size, 1000)
        self.layers = nn.ModuleList([Layer(hidden_size) for _ in range(n_layers)])
        self.head = nn.Linear(hidden_size, n_classes)
        self.hidden_size = hidden_size

    def forward(self, x, mask):
        h = self.pos(self.proj(self.emb(x)) * math.sqrt(self.hidden_size))
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(
            torch.where(mask[..., None], h, 0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        )
