"""One learned query for each class (label attention: Mullenbach et al. 2018, section 2.2).

Shape suffixes: B reviews, T positions, D width, C classes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.nn.ladder import Attention, Classifier, Pooling, Words
from imdbattn.nn.scores import MakeScore, ScaledDot


class LabelQueryPooling(Pooling):
    """z_c = sum_t softmax(score(q_c, x_t)) x_t with a learned query q_c for each class: (B, T, D) -> (B, C, D).

    Each class is a head of its attention, so the weights (B, C, 1, T) show the words that each label reads.
    """

    def __init__(self, width: int, classes: int, score: MakeScore = ScaledDot):
        super().__init__(width)
        self.query_CD = nn.Parameter(torch.zeros(classes, width))  # starts as the mean
        self.attention = Attention(score(width, width))

    def forward(self, x_BTD: Tensor, words: Words | Tensor | None = None) -> Tensor:
        mask_B11T = Words.of(x_BTD, words).mask_BT[:, None, None]
        query_BC1D = self.query_CD[:, None].to(x_BTD.dtype).expand(len(x_BTD), -1, -1, -1)
        x_BCTD = x_BTD[:, None].expand(-1, len(self.query_CD), -1, -1)
        return self.attention(query_BC1D, x_BCTD, x_BCTD, mask_B11T).squeeze(2)


class LabelHead(nn.Linear):
    """The logit of class c is w_c . z_c + b_c: (B, C, D) -> (B, C)."""

    def forward(self, z_BCD: Tensor) -> Tensor:
        return (self.weight * z_BCD).sum(-1) + self.bias


class LabelQueryClassifier(Classifier):
    """A classifier with a LabelQueryPooling. pooling: called with the width and the number of classes.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> from imdbattn.nn import NoPositions, ResidualLayer
    >>> from imdbattn.nn.beyond import LabelQueryClassifier, LabelQueryPooling
    >>> embedding = torch.nn.Embedding(100, 16)
    >>> embedding.width = 16
    >>> parts = {"positions": NoPositions, "layer": ResidualLayer, "pooling": LabelQueryPooling, "layers": 0}
    >>> tokens_BT, positions_BT, lengths_B = torch.tensor([[3, 60, 5]]), torch.arange(3)[None], torch.tensor([3])
    >>> batch = SimpleNamespace(tokens_BT=tokens_BT, positions_BT=positions_BT, lengths_B=lengths_B)
    >>> LabelQueryClassifier(embedding, classes=2, **parts)(batch).shape
    torch.Size([1, 2])
    """

    def __init__(self, embedding: nn.Module, classes: int, *, pooling: Callable[..., Pooling], **parts: Any):
        super().__init__(embedding, classes, pooling=partial(pooling, classes=classes), **parts)
        self.head = LabelHead(self.head.in_features, classes)
