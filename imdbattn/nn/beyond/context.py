"""Additions to the words, before their positions: the phrases that end at a word, and a convolution.

Shape suffixes: B reviews, T positions, D width, O phrases that end at a word.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.nn.beyond.phrases import Phrases
from imdbattn.nn.ladder import Words


class Context(nn.Module):
    """Adds a linear map of the log-count ratios of the phrases to the words, then applies the convolution.

    phrases: None to omit them. convolution: called with the width; None to omit it.
    """

    def __init__(
        self, width: int, phrases: Phrases | None = None, convolution: Callable[[int], nn.Module] | None = None
    ):
        super().__init__()
        self.phrases = phrases
        if phrases is not None:
            self.ratios = nn.Linear(phrases.longest * phrases.columns, width, bias=False)
        self.convolution = convolution(width) if convolution else None

    def forward(self, x_BTD: Tensor, words: Words, batch: Any) -> Tensor:
        """(B, T, D) -> (B, T, D). batch: tokens_BT, and for phrases before_BTW and fold_B (data/ragged.Batch)."""
        if self.phrases is not None:
            phrases_BTO = self.phrases(batch.tokens_BT * words.mask_BT, batch.before_BTW)
            x_BTD = x_BTD + self.ratios(self.phrases.ratios(phrases_BTO, batch.fold_B))
        return x_BTD if self.convolution is None else self.convolution(x_BTD, words)


class Convolution(nn.Module):
    """x + ReLU(conv(x)), with zeros for padding (Kim 2014, section 2, with a skip connection).

    kernel: number of words, odd. With word dropout, neighbors are the nearest words that were not dropped.
    """

    def __init__(self, width: int, kernel: int = 3):
        super().__init__()
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2)

    def forward(self, x_BTD: Tensor, words: Words | Tensor | None = None) -> Tensor:
        x_BDT = (x_BTD * Words.of(x_BTD, words).mask_BT[..., None]).transpose(1, 2)
        return x_BTD + F.relu(self.conv(x_BDT)).transpose(1, 2)
