"""Phrases of a classifier, counted in the training reviews (nn/beyond/context).

Suffixes: N training reviews, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.data.ragged import Ragged
from imdbattn.errors import UserError
from imdbattn.nn.beyond.context import Phrases, count_phrases, folds_of
from imdbattn.settings.schema import PhraseSettings


def phrases_of_training(settings: PhraseSettings, corpus: ReviewCorpus) -> tuple[Phrases, Tensor]:
    """Returns the phrases of the training reviews, and the ratios that each of their words is
    trained with.

    settings: model.phrases. Raises UserError if the ids of the phrases are too large.
    """
    train, targets_NC = corpus.splits["train"], corpus.targets_NC
    if targets_NC is None:
        targets_NC = F.one_hot(train.labels, len(corpus.label_names))
    folds_N = training_folds(corpus, settings.folds)
    return phrases_of(settings, train, folds_N, targets_NC, len(corpus.glove.vectors))


def training_folds(corpus: ReviewCorpus, folds: int) -> Tensor:
    """Returns the fold (N,) of each training review."""
    labels_N = corpus.splits["train"].labels.clone()
    # texts of data.extra are divided among all folds, too
    labels_N[len(labels_N) - corpus.added :] = -1
    return folds_of(labels_N, folds)


def phrases_of(
    settings: PhraseSettings, train: Ragged, folds_N: Tensor, targets_NC: Tensor, rows: int
) -> tuple[Phrases, Tensor]:
    """Returns what nn/beyond/context.count_phrases does for the training reviews.

    rows: number of vectors. Raises UserError if the ids of the phrases are too large.
    """
    longest, least, folds = settings.longest, settings.min_reviews, settings.folds
    if rows**longest >= 2**63:
        raise UserError(
            f"model.phrases.longest={longest} is too large for {rows:,} vectors: set it to"
            f" {longest - 1}"
        )
    ids = train.ids.long(), *ids_before(train, longest - 1)
    return count_phrases(ids, folds_N, targets_NC, rows, least, folds)


def ids_before(reviews: Ragged, count: int) -> tuple[Tensor, Tensor]:
    """Returns the ids of the `count` tokens before each token of all reviews, (tokens, count), and
    the review of each token.
    """
    review = torch.arange(len(reviews)).repeat_interleave(reviews.lengths).to(reviews.ids.device)
    places = torch.arange(len(reviews.ids), device=reviews.ids.device)
    return reviews.before(places, reviews.offsets[review], count), review
