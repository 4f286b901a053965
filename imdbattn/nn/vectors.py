"""GloVe vectors, frozen or fine-tuned by a learned offset.

Shape suffixes: B reviews, T positions, D width of the vectors, V rows of the table, R rows that are
tuned.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    """x = (GloVe[token] - mean) / std (+ a learned offset for words of the training set).

    vectors_VD: row 0 <pad>, row 1 <unk>, row 2 <cls>, then GloVe. Never written to, and not in the
    checkpoint, which
        contains its fingerprint (tasks/learner).
    shift_D, scale_D: mean and 1 / std; (0, 1) leaves GloVe unchanged.
    tuned_R: rows with a trainable offset, initially zero, towards which weight decay pulls; None
    for frozen vectors.
    mixout: share of the words of a training review used without their offset (Lee et al. 2020, but
    per word).

    <pad> is zero and never trained. <unk> is learned, initially zero, the mean of the words.
    """

    vectors_VD: Tensor
    shift_D: Tensor
    scale_D: Tensor
    slot_V: Tensor

    def __init__(
        self,
        vectors_VD: Tensor,
        shift_D: Tensor,
        scale_D: Tensor,
        tuned_R: Tensor | None = None,
        mixout: float = 0.0,
    ):
        super().__init__()
        self.mixout = mixout
        rows, self.width = vectors_VD.shape
        self.register_buffer("vectors_VD", vectors_VD, persistent=False)
        self.register_buffer("shift_D", shift_D)
        self.register_buffer("scale_D", scale_D)
        self.unk_D = nn.Parameter(torch.zeros(self.width))
        self.offset_RD: nn.Parameter | None = None
        if tuned_R is not None:
            # Slot 0 stays zero, for every word that is not tuned.
            slot_V = torch.zeros(rows, dtype=torch.int32)
            slot_V[tuned_R] = torch.arange(1, len(tuned_R) + 1, dtype=torch.int32)
            self.register_buffer("slot_V", slot_V)
            self.offset_RD = nn.Parameter(torch.zeros(len(tuned_R) + 1, self.width))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Ids (B, T) -> (B, T, D)."""
        x_BTD = (F.embedding(tokens_BT, self.vectors_VD) - self.shift_D) * self.scale_D
        if self.offset_RD is not None:
            slots_BT = self.slot_V[tokens_BT].long()
            offset_BTD = F.embedding(slots_BT, self.offset_RD, padding_idx=0)
            if self.training and self.mixout > 0:
                offset_BTD = offset_BTD * self.draw_tuned(slots_BT)[..., None]
            x_BTD = x_BTD + offset_BTD
        x_BTD = torch.where((tokens_BT == 1)[..., None], self.unk_D.to(x_BTD.dtype), x_BTD)
        return x_BTD * (tokens_BT != 0)[..., None]

    def draw_tuned(self, slots_BT: Tensor) -> Tensor:
        """Returns (B, T) bool: which offsets are used, by the sum of a random number per word and
        one per review, modulo 1.
        """
        draw_R = torch.rand(len(self.offset_RD), device=slots_BT.device)  # type: ignore[arg-type]
        shift_B = torch.rand(len(slots_BT), device=slots_BT.device)
        shifted_BT = draw_R[slots_BT] + shift_B.view(-1, *[1] * (slots_BT.ndim - 1))
        return shifted_BT % 1 >= self.mixout
