"""The task `masked_words`: pretrains the encoder of a classifier on reviews without their labels.

Shape suffixes: B reviews of a batch, T positions, M masked words of a batch, N reviews of a split,
R words with trained vectors, G words that may be masked.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus, load_reviews
from imdbattn.data.extra import with_extra
from imdbattn.data.ragged import Batch, Ragged
from imdbattn.data.tokenizer import FIRST_WORD
from imdbattn.io.files import SavedNet
from imdbattn.nn.beyond.masked_words import MaskedWords
from imdbattn.tasks.learner import Learner, SplitScores
from imdbattn.tasks.masked_words.task import MaskedWordSettings
from imdbattn.tasks.networks import build_classifier
from imdbattn.tasks.reviews.module import ReviewData
from imdbattn.tasks.reviews.task import EncoderSettings
from imdbattn.tasks.tuned_words import ids_to_tune


class MaskedWordData(ReviewData):
    """Reviews, and the texts of data.extra with or without labels."""

    @staticmethod
    def read(settings: EncoderSettings) -> ReviewCorpus:
        corpus = load_reviews(settings.data)
        # The other facts describe labeled reviews.
        facts = {"known_tokens": corpus.facts["known_tokens"]}
        corpus = replace(corpus, items_name="masked words", facts=facts)
        return with_extra(corpus, settings.data, labeled=False) if settings.data.extra else corpus

    def items(self, split: str) -> Ragged:
        return self.corpus.splits[split]  # phrases are omitted: they need labels


@dataclass(frozen=True)
class MaskedWordScores(SplitScores):
    """For each review: the numbers of predicted and of correctly predicted words, and the sum of
    losses in nats.
    """

    masked_N: Tensor
    right_N: Tensor
    losses_N: Tensor

    @property
    def count(self) -> int:
        """The number of masked words in all reviews."""
        return int(self.masked_N.sum())

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The means over all masked words, for the log and metrics.json."""
        sums = {"accuracy": self.right_N.sum(), "loss": self.losses_N.double().sum()}
        return {name: value.item() / max(self.count, 1) for name, value in sums.items()}

    def columns(self) -> dict[str, object]:
        """Returns the columns of validation_predictions.parquet."""
        return {name: getattr(self, f"{name}_N").numpy() for name in ("masked", "right", "losses")}


def evaluation_mask(items_B: Tensor, positions_BT: Tensor, share: float) -> Tensor:
    """Returns (B, T) bool, True for `share` of the words: the same for a review in any batch."""
    hash_BT = (items_B[:, None] * 1_000_003 + positions_BT + 1) * 2_654_435_761 % 2**32
    hash_BT = (hash_BT ^ (hash_BT >> 15)) * 2_246_822_519 % 2**32
    return hash_BT < share * 2**32


def masked_indices(masked_BT: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """Returns the indices (M,) of flattened positions that are True, and whether each is True. If
    `most` is given, M is fixed: other positions follow, because reading the number would wait.
    """
    if most is None:
        indices_M = masked_BT.flatten().nonzero()[:, 0]
    else:
        order = masked_BT.flatten().byte().argsort(descending=True, stable=True)
        indices_M = order[: min(most, len(order))]
    return indices_M, masked_BT.flatten()[indices_M]


class MaskedWordModule(Learner):
    """Trains and scores nn.beyond.masked_words.MaskedWords. For the arguments see Learner."""

    settings: MaskedWordSettings
    net: MaskedWords

    @classmethod
    def new(
        cls, settings: MaskedWordSettings, corpus: ReviewCorpus, initial: SavedNet | None = None
    ) -> Self:
        counts_V = corpus.splits["train"].ids.bincount(minlength=len(corpus.vectors.table_VD))
        counts_V[:FIRST_WORD] = 0
        counts_G, guessed_G = counts_V.topk(min(settings.masked.words, int((counts_V > 0).sum())))
        tuned_R = None
        if settings.model.embedding.trainable:
            tuned_R = ids_to_tune(corpus, initial, "encoder.embedding")
        model = settings.model.model_copy(update={"phrases": None})  # phrases need labels
        encoder: Any = build_classifier(model, corpus.vectors, 2, tuned_R)
        net = MaskedWords(encoder, guessed_G, counts_G, len(corpus.vectors.table_VD))
        return cls(net, settings, {"vectors": corpus.vectors.fingerprint})

    def predict(
        self, batch: Batch, masked_BT: Tensor, label_smoothing: float = 0.0, most: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns for each masked word (M,) its loss, whether it is predicted correctly, the index
        of its review, and True. If `most` is given, it returns `most` positions. If a position is
        not masked, its loss is 0 and both bools are False.
        """
        masked_BT = masked_BT & self.net.is_maskable(batch.tokens_BT)
        indices_M, is_masked_M = masked_indices(masked_BT, most)
        logits_MG, words_M = self.net(batch, masked_BT, indices_M)
        losses_M = F.cross_entropy(
            logits_MG.float(),
            words_M.clamp(min=0),
            reduction="none",
            label_smoothing=label_smoothing,
        )
        right_M = (logits_MG.detach().argmax(1) == words_M) & is_masked_M
        return losses_M * is_masked_M, right_M, indices_M // masked_BT.shape[1], is_masked_M

    def training_loss(self, batch: Batch) -> Tensor:
        share, positions = self.settings.masked.share, batch.tokens_BT.numel()
        # A recorded step has a fixed number of positions, exceeded at random once in 10^9.
        most = None
        if self.recorder:
            most = math.ceil(share * positions + 6 * math.sqrt(share * positions))
        masked_BT = torch.rand(batch.tokens_BT.shape, device=self.device) < share
        losses_M, right_M, _, is_masked_M = self.predict(
            batch, masked_BT, self.settings.label_smoothing, most
        )
        masked = is_masked_M.sum()
        self.add_to_epoch(losses_M, right_M, masked)
        # With several processes, DDP takes the mean of these means.
        return losses_M.sum() / masked.clamp(min=1)

    def outputs_of(self, batch: Batch) -> tuple[Tensor, ...]:
        masked_BT = evaluation_mask(batch.items_B, batch.positions_BT, self.settings.masked.share)
        losses_M, right_M, review_M, _ = self.predict(batch, masked_BT)
        values = (torch.ones_like(review_M), right_M.to(review_M.dtype), losses_M)
        sums = (
            value_M.new_zeros(len(batch.items_B)).index_add_(0, review_M, value_M)
            for value_M in values
        )
        return batch.items_B, *sums

    def make_scores(self, outputs: tuple[Tensor, ...]) -> MaskedWordScores:
        return MaskedWordScores(*outputs)
