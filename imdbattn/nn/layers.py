"""One layer of the ladder. Each is f (self-attention) and g (Linear + ReLU) put together in its own way.

Shape suffixes: B reviews, T positions, D width.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.nn.attention import ScaledDot, SelfAttention


class PlainLayer(nn.Module):
    """x <- g(f(x)), the exercise's base layer.

    heads: attention heads, a divisor of the width. score: a scoring function of nn/attention, called with the
    query's and the key's width of one head. dropout: share of g's outputs set to zero in training. distances: called
    with the heads, what the distance between two words adds to their scores (nn/positions); None is nothing.
    """

    skip = False  # whether x itself is added to what it attends to

    def __init__(
        self,
        width: int,
        heads: int = 1,
        score: Callable[[int, int], nn.Module] = ScaledDot,
        dropout: float = 0.0,
        distances: Callable[[int], nn.Module] | None = None,
    ):
        super().__init__()
        self.f = SelfAttention(width, heads, score, distances)
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor,
        record: list[Tensor] | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT`: True on words. `record` receives the attention weights (B, H, T, T).

        positions_BT: where each word stands, which only `distances` ask for.
        """
        return self.g(self.f(x_BTD, mask_BT, record, positions_BT))


class ResidualLayer(PlainLayer):
    """x <- g(x + f(LN(x))): the raw x on the skip, LayerNorm (Ba et al. 2016) only on the way into f."""

    skip = True

    def __init__(self, width: int, *args, **kwargs):
        super().__init__(width, *args, **kwargs)
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor,
        record: list[Tensor] | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        return self.g(x_BTD + self.f(self.norm(x_BTD), mask_BT, record, positions_BT))


class Convolution(nn.Module):
    """x + ReLU(conv(x)): each word sees its neighbours, padding counts as zeros (Kim 2014, section 2, with a skip).

    kernel: words that are seen at once, an odd number. In training the neighbours are those that word dropout leaves.
    """

    def __init__(self, width: int, kernel: int = 3):
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"model.convolution.kernel={kernel} must be an odd number of at least 1")
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT`: True on words."""
        x_BDT = (x_BTD * mask_BT[..., None]).transpose(1, 2)
        return x_BTD + F.relu(self.conv(x_BDT)).transpose(1, 2)
