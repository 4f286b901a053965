"""A config that is a dict, and classes of which a layer and a model consist."""

import torch
from torch import nn


class EmbeddingLayer(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)

    def forward(self, tokens):
        return self.table(tokens)


class ResidualConnection(nn.Module):
    def forward(self, x, sublayer):
        return x + sublayer(x)


class NormedAttention(nn.Module):
    def __init__(self, attention, d_model):
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, mask):
        return self.attention(self.norm(x), mask)


class SelfAttention(nn.Module):
    def __init__(self, d_hid):
        super().__init__()
        self.w = nn.ParameterList([torch.randn(d_hid, d_hid) / 4 for _ in range(3)])

    def forward(self, x, mask):
        q, k, v = (x @ w for w in self.w)
        s = q @ k.mT / k.shape[-1] ** 0.5
        return s.masked_fill(~mask[:, None], -1e9).softmax(-1) @ v


class EncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg["d_model"]
        self.attention = NormedAttention(SelfAttention(d), d)
        self.residual = ResidualConnection()
        self.feed = nn.Sequential(nn.Linear(d, d), nn.ReLU())

    def forward(self, x, mask):
        return self.feed(self.residual(x, lambda y: self.attention(y, mask)))


class MeanLayer(nn.Module):
    def forward(self, x, mask):
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class ReviewModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = EmbeddingLayer(cfg["vocab_size"], cfg["d_model"])
        self.layers = nn.ModuleList([EncoderLayer(cfg) for _ in range(cfg["num_layers"])])
        self.mean = MeanLayer()
        self.head = nn.Linear(cfg["d_model"], cfg["num_classes"])

    def forward(self, tokens, lengths):
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.mean(x, mask))
