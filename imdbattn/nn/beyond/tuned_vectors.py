"""Word vectors with a learned offset.

Shape suffixes: B reviews, T positions, D vector width, V rows of the vectors, R rows with an
offset.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.nn.ladder import Embedding


class TunedEmbedding(Embedding):
    """x = (vectors[token] - mean) / std + a learned offset for words of the training set.

    tuned_R: ids of the words with an offset. It starts at zero, to which weight decay pulls it.
    mixout: share of a review's words that lose their offset in training (Lee et al. 2020).
    """

    slot_V: Tensor

    def __init__(
        self,
        vectors_VD: Tensor,
        shift_D: Tensor,
        scale_D: Tensor,
        tuned_R: Tensor,
        mixout: float = 0.0,
    ):
        super().__init__(vectors_VD, shift_D, scale_D)
        self.mixout = mixout
        # Slot 0 stays zero; it is the slot of every word without an offset.
        slot_V = torch.zeros(len(vectors_VD), dtype=torch.int32)
        slot_V[tuned_R] = torch.arange(1, len(tuned_R) + 1, dtype=torch.int32)
        self.register_buffer("slot_V", slot_V)
        self.offset_RD = nn.Parameter(torch.zeros(len(tuned_R) + 1, self.width))

    def word_vectors(self, tokens_BT: Tensor) -> Tensor:
        slots_BT = self.slot_V[tokens_BT].long()
        offset_BTD = F.embedding(slots_BT, self.offset_RD, padding_idx=0)
        if self.training and self.mixout > 0:
            offset_BTD = offset_BTD * self.keeps_offset(slots_BT)[..., None]
        return super().word_vectors(tokens_BT) + offset_BTD

    def keeps_offset(self, slots_BT: Tensor) -> Tensor:
        """Returns which words keep their offset, (B, T) bool: those for which the sum, modulo 1, of
        a random number of the word and one of the review is at least `mixout`.
        """
        draw_R = torch.rand(len(self.offset_RD), device=slots_BT.device)
        shift_B = torch.rand(len(slots_BT), device=slots_BT.device)
        shifted_BT = draw_R[slots_BT] + shift_B.view(-1, *[1] * (slots_BT.ndim - 1))
        return shifted_BT % 1 >= self.mixout
