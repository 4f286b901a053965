"""The task `neighbors`: pretraining of vectors of regions, which predict the words around them, without labels.

Shape suffixes: B reviews of a batch, T positions, O words around a region, U = T x O, M pairs of a region and one of
them, S sampled words, R words that have a vector, V ids.
"""

from typing import Any

import torch
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.data.glove import Glove
from imdbattn.data.ragged import Batch
from imdbattn.nn.beyond.regions import NeighborWords
from imdbattn.tasks.build import make_net
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.masked_words import MaskedWordTask, WordLearner, evaluation_mask, frequent_words


class NeighborModule(WordLearner):
    """Trains nn.beyond.regions.NeighborWords. The loss of a step is the mean over the words that it predicts."""

    net: NeighborWords
    no_words = "model.subsample={0.net.subsample} leaves no word of these reviews to predict: use a larger one"

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        slots_BTO = self.net.around(batch.tokens_BT)
        chosen_BTO = torch.rand(slots_BTO.shape, device=self.device) < self.net.share_R[slots_BTO]
        losses_M, right_M = self.net(batch.tokens_BT, slots_BTO, chosen_BTO, self.net.sample())
        return self.mean_loss(losses_M, right_M)

    def score_words(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        slots_BTO = self.net.around(batch.tokens_BT)
        words = slots_BTO.shape[-1]
        places_BTO = batch.positions_BT[..., None] * words + torch.arange(words, device=self.device)
        mask_BU = evaluation_mask(batch.rows_B, places_BTO.flatten(1), self.net.share_R[slots_BTO].flatten(1))
        chosen_BTO = mask_BU.view(slots_BTO.shape)
        sample_S = self.net.sample(torch.Generator(self.device).manual_seed(0))  # the same words for all batches
        return *self.net(batch.tokens_BT, slots_BTO, chosen_BTO, sample_S), chosen_BTO.nonzero()[:, 0]


def build_module(cfg: Any, glove: Glove, slot_V: Tensor, counts_R: Tensor) -> NeighborModule:
    net = make_net(cfg.model, ("words",), slot_V, counts_R)
    return NeighborModule(net, cfg, {"vectors": glove.fingerprint, "region": cfg.model.region})


class NeighborTask(MaskedWordTask):
    items = "neighbors"

    def new(self, cfg: Any, corpus: ReviewCorpus, resumed: dict[str, Any] | None = None) -> Learner:
        counts_R, words_R = frequent_words(corpus, cfg.model.words)
        slot_V = torch.zeros(len(corpus.glove.vectors), dtype=torch.int32)
        slot_V[words_R] = torch.arange(1, len(words_R) + 1, dtype=torch.int32)
        return build_module(cfg, corpus.glove, slot_V, torch.cat([counts_R.new_zeros(1), counts_R]))

    def rebuild(self, cfg: Any, glove: Glove, weights: dict[str, Any], facts: dict[str, Any]) -> Learner:
        return build_module(cfg, glove, weights["net.regions.slot_V"], weights["net.counts_R"])


TASK = NeighborTask()
