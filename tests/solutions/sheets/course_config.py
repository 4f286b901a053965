"""Causal attention whose settings are a dictionary, as in GPT's code."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, cfg: dict):
        super().__init__()
        self.heads, dim = cfg["n_heads"], cfg["emb_dim"]
        self.qkv = nn.Linear(dim, 3 * dim, bias=cfg.get("qkv_bias", False))
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(cfg["drop_rate"])

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        later = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, float("-inf"))
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
