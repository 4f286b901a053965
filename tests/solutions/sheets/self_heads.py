"""Several heads in the layers, and masks that are True on padding."""

import math

from torch import nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, dim, num_heads=2, dropout=0.1):
        super().__init__()
        self.h, self.dk = num_heads, dim // num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, pad_mask):
        B, T, D = x.shape
        q = self.wq(x).view(B, T, self.h, self.dk).transpose(1, 2)
        k = self.wk(x).view(B, T, self.h, self.dk).transpose(1, 2)
        v = self.wv(x).view(B, T, self.h, self.dk).transpose(1, 2)
        s = q @ k.transpose(-2, -1) / math.sqrt(self.dk)
        s = s.masked_fill(pad_mask[:, None, None, :], -1e9)
        a = self.drop(s.softmax(-1))
        return self.wo((a @ v).transpose(1, 2).reshape(B, T, D))


class TransformerBlock(nn.Module):
    def __init__(self, dim, num_heads=2):
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.mhsa = MultiHeadSelfAttention(dim, num_heads)
        self.ff = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())

    def forward(self, x, pad_mask):
        return self.ff(x + self.mhsa(self.ln(x), pad_mask))


class SentimentTransformer(nn.Module):
    def __init__(self, vocab_size, d_model, num_heads, num_layers, num_classes):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model, padding_idx=0)
        self.blocks = nn.ModuleList(
            [TransformerBlock(d_model, num_heads) for _ in range(num_layers)]
        )
        self.out = nn.Linear(d_model, num_classes)

    def forward(self, tokens, pad_mask):
        x = self.emb(tokens)
        for b in self.blocks:
            x = b(x, pad_mask)
        keep = (~pad_mask).unsqueeze(-1)
        return self.out((x * keep).sum(1) / keep.sum(1).clamp(min=1))
