"""A convolution over neighbouring words.

Shape suffixes: B reviews, T positions, D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.nn.ladder import Words


class Convolution(nn.Module):
    """x + ReLU(conv(x)), with zeros for padding (Kim 2014, section 2, with a skip connection).

    kernel: number of words, odd. With word dropout, neighbours are the nearest words that were not dropped.
    """

    def __init__(self, width: int, kernel: int = 3):
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"model.convolution.kernel={kernel} must be an odd number of at least 1")
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2)

    def forward(self, x_BTD: Tensor, words: Words) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x_BDT = (x_BTD * words.mask_BT[..., None]).transpose(1, 2)
        return x_BTD + F.relu(self.conv(x_BDT)).transpose(1, 2)
