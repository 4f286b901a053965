"""The usual solution of the exercise, correct but not optimized: the baseline of the benchmarks.

A DataLoader over a list of reviews in random order, padded to the longest of the batch; words become vectors in
`collate`; attention is matrix products and a softmax; three layers, float32, a training loop by hand. Reviews are lists
of ids, so this side needs no tokenizer.

Shape suffixes: B reviews, T positions, D width, C classes, V words.
"""

import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.data import DataLoader


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V, one head, with the scores as a tensor (B, T, T)."""

    def __init__(self, width: int):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        scores_BTT = self.query(x_BTD) @ self.key(x_BTD).transpose(1, 2) / math.sqrt(x_BTD.shape[-1])
        scores_BTT = scores_BTT.masked_fill(~mask_BT[:, None], -1e9)
        return scores_BTT.softmax(-1) @ self.value(x_BTD)


class ResidualLayer(nn.Module):
    """x <- ReLU(Linear(x + attention(LayerNorm(x))))."""

    def __init__(self, width: int):
        super().__init__()
        self.attention, self.norm, self.linear = SelfAttention(width), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return self.linear(x_BTD + self.attention(self.norm(x_BTD), mask_BT)).relu()


class TextbookNet(nn.Module):
    """residual_pe on embedded words. `words_VD`: None, or vectors to train; then x_BTD are ids (B, T)."""

    def __init__(self, width: int, classes: int, scale: float, longest: int, words_VD: Tensor | None = None):
        super().__init__()
        self.words = None if words_VD is None else nn.Embedding.from_pretrained(words_VD.clone(), freeze=False)
        angle_TD = torch.arange(longest)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("pe_TD", scale * torch.stack([angle_TD.sin(), angle_TD.cos()], -1).flatten(1))
        self.layers = nn.ModuleList(ResidualLayer(width) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        if self.words is not None:
            x_BTD = self.words(x_BTD)
        x_BTD = x_BTD + self.pe_TD[: x_BTD.shape[1]]
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_BT)
        mask_BT1 = mask_BT[..., None]
        return self.head((x_BTD * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1))


def collate(vectors_VD: Tensor | None, limit: int | None, fixed: bool = False) -> Callable:
    """A collate function: (ids, label) pairs -> x (B, T, D), or (B, T) without vectors; mask (B, T); labels (B,).

    limit: maximum words of a review. fixed: pad every batch to the limit, as Keras' pad_sequences does.
    """

    def pad(reviews: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
        texts = [torch.tensor(ids[:limit], dtype=torch.long) for ids, _ in reviews]
        longest = limit if fixed and limit else max(1, max(len(text) for text in texts))
        x = torch.zeros(len(texts), longest, *(() if vectors_VD is None else vectors_VD.shape[1:]))
        x = x.long() if vectors_VD is None else x
        mask_BT = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, text in enumerate(texts):
            x[row, : len(text)] = text if vectors_VD is None else vectors_VD[text]
            mask_BT[row, : len(text)] = True
        return x, mask_BT, torch.tensor([label for _, label in reviews])

    return pad


def train(
    net: nn.Module,
    reviews: list,
    collate_fn: Callable,
    batch: int,
    lr: float = 0.003,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
) -> float:
    """One epoch; returns its seconds. dtype: for autocast; None is float32."""
    loader = DataLoader(reviews, batch_size=batch, shuffle=True, collate_fn=collate_fn)
    optimizer, criterion = torch.optim.Adam(net.parameters(), lr=lr), nn.CrossEntropyLoss()
    net.train()
    start = time.perf_counter()
    for tensors in loader:
        x, mask_BT, labels_B = (tensor.to(device) for tensor in tensors)
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None):
            loss = criterion(net(x, mask_BT), labels_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss.item()  # waits for a GPU
    return time.perf_counter() - start


@torch.no_grad()
def score(net: nn.Module, reviews: list, collate_fn: Callable, batch: int) -> float:
    """Counts correct predictions; returns the seconds."""
    loader = DataLoader(reviews, batch_size=batch, collate_fn=collate_fn)
    net.eval()
    right, start = 0, time.perf_counter()
    for x, mask_BT, labels_B in loader:
        right += (net(x, mask_BT).argmax(1) == labels_B).sum().item()
    return time.perf_counter() - start
