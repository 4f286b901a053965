"""Phrases of a classifier (nn/beyond/context): counted in the training reviews, or read from a
checkpoint. Their batches are made by data/phrases.

Shape suffixes: N training reviews, M their words, W words before a word, C classes, B reviews of a
batch, T positions, F log-count ratios of a word.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.data.phrases import PhraseBatch, ids_before
from imdbattn.data.ragged import Ragged
from imdbattn.errors import UserError
from imdbattn.io.files import Weights
from imdbattn.nn.beyond.context import Phrases, count_phrases, counting_folds
from imdbattn.nn.scores import sequence_mask
from imdbattn.settings.schema import PhraseSettings


def phrases_of_training(settings: PhraseSettings, corpus: ReviewCorpus) -> tuple[Phrases, Tensor]:
    """Returns the phrases of the training reviews, and the ratios of their words for training.

    settings: model.phrases. Raises UserError if the ids of the phrases are too large.
    """
    train, targets_NC = corpus.splits["train"], corpus.targets_NC
    if targets_NC is None:
        targets_NC = F.one_hot(train.labels, len(corpus.label_names))
    folds_N = training_folds(corpus, settings.folds)
    return phrases_of(settings, train, folds_N, targets_NC, len(corpus.vectors.table_VD))


def training_folds(corpus: ReviewCorpus, folds: int) -> Tensor:
    """Returns the fold (N,) of each training review. The texts of data.extra are divided among all
    folds, but one that equals an earlier text is in its fold, so that no label reaches its ratios.
    """
    train = corpus.splits["train"]
    labels_N, own = train.labels.clone(), len(train) - corpus.added
    labels_N[own:] = -1
    fold_N = counting_folds(labels_N, folds)
    if not corpus.added:
        return fold_N
    first: dict[bytes, int] = {}
    for number, ids in enumerate(train.ids.cpu().split(train.lengths.tolist())):
        earlier = first.setdefault(ids.numpy().tobytes(), number)
        if number >= own:
            fold_N[number] = fold_N[earlier]
    return fold_N


def phrases_of(
    settings: PhraseSettings, train: Ragged, folds_N: Tensor, targets_NC: Tensor, id_count: int
) -> tuple[Phrases, Tensor]:
    """Returns the result of nn/beyond/context.count_phrases for the training reviews.

    id_count: number of vectors. Raises UserError if the ids of the phrases are too large.
    """
    longest, least, folds = settings.longest, settings.min_reviews, settings.folds
    if id_count**longest >= 2**63:
        raise UserError(
            f"model.phrases.longest={longest} is too large for {id_count:,} vectors: set it to"
            f" {longest - 1}"
        )
    device = train.ids.device
    review_M = torch.arange(len(train)).repeat_interleave(train.lengths).to(device)
    indices_M = torch.arange(len(train.ids), device=device)
    before_MW = ids_before(train.ids, indices_M, train.offsets[review_M], longest - 1)
    ids = train.ids.long(), before_MW, review_M
    return count_phrases(ids, folds_N, targets_NC, id_count, least, folds)


def phrases_of_checkpoint(settings: PhraseSettings, weights: Weights, id_count: int) -> Phrases:
    """Returns the phrases of a trained net.

    settings: model.phrases. id_count: number of vectors.
    """
    codes_P, log_counts_PC = (
        weights[f"context.phrases.{name}"] for name in ("codes_P", "log_counts_PC")
    )
    return Phrases(codes_P, log_counts_PC.float(), id_count, settings.longest)


def with_ratios(batch: PhraseBatch, ratios_MF: Tensor) -> PhraseBatch:
    """Returns a training batch with its words' ratios. ratios_MF: ratios of all training words."""
    ratios_BTF = F.embedding(batch.indices_BT, ratios_MF)
    mask_BT = sequence_mask(batch.lengths_B, batch.tokens_BT.shape[1])
    return batch._replace(ratios_BTF=ratios_BTF * mask_BT[..., None])
