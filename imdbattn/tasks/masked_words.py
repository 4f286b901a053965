"""Pretraining as a task of its own: masked words of reviews, labels unseen.

Shape suffixes: B reviews of a batch, T positions, M masked words of a batch, N reviews of a split.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.ragged import Batch
from imdbattn.errors import UserError
from imdbattn.tasks.learner import Learner


@dataclass(frozen=True)
class Guesses:
    """How many words of each review were masked, how many of them guessed, and the sum of their losses in nats."""

    rows_N: Tensor
    masked_N: Tensor
    right_N: Tensor
    losses_N: Tensor

    @property
    def answers(self) -> int:
        """Masked words of all reviews."""
        return int(self.masked_N.sum())

    def values(self) -> dict[str, float]:
        """What is logged, and stands in metrics.json: of all masked words alike."""
        masked = max(self.answers, 1)
        return {"accuracy": self.right_N.sum().item() / masked, "loss": self.losses_N.double().sum().item() / masked}

    def columns(self) -> dict[str, Any]:
        """What validation_predictions.parquet says of each review."""
        return {name: getattr(self, f"{name}_N").numpy() for name in ("masked", "right", "losses")}


def drawn(rows_B: Tensor, positions_BT: Tensor, share: float) -> Tensor:
    """(B, T) bool, True for `share` of the words: a review's own, in any batch, at each evaluation."""
    mixed_BT = (rows_B[:, None] * 1_000_003 + positions_BT + 1) * 2_654_435_761 % 2**32
    mixed_BT = (mixed_BT ^ (mixed_BT >> 15)) * 2_246_822_519 % 2**32
    return mixed_BT < share * 2**32


class WordGuesser(Learner):
    """Trains nn.beyond.masked_words.MaskedWords. share: of the words that are masked. For the rest see Learner.

    A step's loss is the mean over its masked words; of several processes the mean of theirs.
    """

    def __init__(self, *args: Any, share: float, **more: Any):
        super().__init__(*args, **more)
        self.share = share

    def guess(self, batch: Batch, masked_BT: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
        """Of each masked word (M,): its loss, whether it is guessed, and the place in B of its review."""
        masked_BT = masked_BT & self.net.maskable(batch.tokens_BT)  # type: ignore[operator]
        logits_MG, words_M = self.net(batch, masked_BT)
        losses_M = F.cross_entropy(logits_MG.float(), words_M, reduction="none", label_smoothing=smoothing)
        return losses_M, logits_MG.detach().argmax(1) == words_M, masked_BT.nonzero()[:, 0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        masked_BT = torch.rand(batch.tokens_BT.shape, device=self.device) < self.share
        losses_M, right_M, _ = self.guess(batch, masked_BT, self.label_smoothing)
        self.note(losses_M, right_M, len(losses_M))
        return losses_M.sum() / max(len(losses_M), 1)

    def show(self, batch: Batch) -> tuple[Tensor, ...]:
        losses_M, right_M, of_M = self.guess(batch, drawn(batch.rows_B, batch.positions_BT, self.share))
        sums = (of_M.new_zeros(len(batch.rows_B), dtype=t.dtype) for t in (of_M, of_M, losses_M))
        counted = zip(sums, (torch.ones_like(of_M), right_M.to(of_M.dtype), losses_M), strict=True)
        return batch.rows_B, *(zeros_B.index_add_(0, of_M, values_M) for zeros_B, values_M in counted)

    def read_scores(self, shown: tuple[Tensor, ...]) -> Guesses:
        guesses = Guesses(*shown)
        if not guesses.answers:
            raise UserError(f"masked.share={self.share} masks no word of these reviews: raise it")
        return guesses
