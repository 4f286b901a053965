"""How the vectors of a review become one: `prepend` may put something in front of the layers, `forward` reads them.

Shape suffixes: B reviews, T positions, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from imdbattn.nn.attention import Attention, ScaledDot


class MeanPooling(nn.Module):
    """Mean over the words, padding left out."""

    def __init__(self, width: int):
        super().__init__()

    def prepend(self, x_BTD: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """What the layers see, and its padding mask: here the words as they are."""
        return x_BTD, mask_BT

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, record: list[Tensor] | None = None) -> Tensor:
        """(B, T, D) -> (B, D); `record` receives the weight of each position as (B, 1, 1, T)."""
        mask_BT = mask_BT.to(x_BTD.dtype)
        weights_BT = mask_BT / mask_BT.sum(1, keepdim=True).clamp(min=1)
        if record is not None:
            record.append(weights_BT[:, None, None])
        return (weights_BT[:, None] @ x_BTD).squeeze(1)


class ClsPooling(MeanPooling):
    """A learned vector <cls> goes in front of the words and is read back from position 0 (Devlin et al. 2019)."""

    def __init__(self, width: int):
        super().__init__(width)
        self.cls_D = nn.Parameter(torch.randn(width))

    def prepend(self, x_BTD: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D), (B, T) -> (B, 1+T, D), (B, 1+T)."""
        cls_B1D = self.cls_D.expand(len(x_BTD), 1, -1).to(x_BTD.dtype)
        return torch.cat([cls_B1D, x_BTD], 1), torch.cat([mask_BT.new_ones(len(mask_BT), 1), mask_BT], 1)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, record: list[Tensor] | None = None) -> Tensor:
        if record is not None:
            first_BT = torch.zeros_like(mask_BT, dtype=x_BTD.dtype).index_fill(
                1, mask_BT.new_zeros(1, dtype=torch.long), 1
            )
            record.append(first_BT[:, None, None])
        return x_BTD[:, 0]


class LearnedQueryPooling(MeanPooling):
    """Attention over the words with one learned query: softmax over t of score(q, x_t), then the weighted sum."""

    def __init__(self, width: int, score: Callable[[int, int], nn.Module] = ScaledDot):
        super().__init__(width)
        self.query_D = nn.Parameter(torch.zeros(width))  # starts as the mean
        self.attention = Attention(score(width, width))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, record: list[Tensor] | None = None) -> Tensor:
        query_B11D = self.query_D.to(x_BTD.dtype).expand(len(x_BTD), 1, 1, -1)
        x_B1TD = x_BTD[:, None]  # one head
        return self.attention(query_B11D, x_B1TD, x_B1TD, mask_BT[:, None, None], record)[:, 0, 0]


class TextQueryPooling(MeanPooling):
    """The text asks itself: query = W_q mean(x), keys = W_k x, values = W_v x; one weighted sum a review."""

    def __init__(self, width: int, score: Callable[[int, int], nn.Module] = ScaledDot):
        super().__init__(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention = Attention(score(width, width))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, record: list[Tensor] | None = None) -> Tensor:
        mean_B11D = super().forward(x_BTD, mask_BT)[:, None, None]
        x_B1TD = x_BTD[:, None]  # one head
        query_B11d, key_B1Td, value_B1Td = self.query(mean_B11D), self.key(x_B1TD), self.value(x_B1TD)
        return self.attention(query_B11d, key_B1Td, value_B1Td, mask_BT[:, None, None], record)[:, 0, 0]
