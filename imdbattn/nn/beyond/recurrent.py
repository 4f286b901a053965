"""A recurrent network over the words, before attention.

Shape suffixes: B reviews, T positions, D width.
"""

import torch
from torch import Tensor, nn

from imdbattn.nn.ladder import WordPositions


class BidirectionalGRU(nn.Module):
    """The states of two GRUs (Cho et al. 2014), one from each end of the review, concatenated:
    (B, T, D) -> (B, T, D).

    width: D, even; each GRU has half of it. Padding must be after the words.
    """

    def __init__(self, width: int):
        super().__init__()
        self.forwards, self.backwards = (
            nn.GRU(width, width // 2, batch_first=True) for _ in range(2)
        )

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        # Both GRUs read the words before the padding, so padding changes no state of a word. This
        # is faster than packed sequences, whose backward pass is slow.
        positions_BT1 = reversed_positions(words.mask_BT)[..., None]
        from_left, _ = self.forwards(x_BTD)
        from_right, _ = self.backwards(x_BTD.gather(1, positions_BT1.expand_as(x_BTD)))
        from_right = from_right.gather(1, positions_BT1.expand_as(from_right))
        return torch.cat([from_left, from_right], -1)


def reversed_positions(mask_BT: Tensor) -> Tensor:
    """Returns the positions of the words in reverse order, then of the padding, (B, T)."""
    position_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    return torch.where(mask_BT, mask_BT.sum(1, keepdim=True) - 1 - position_T, position_T)
