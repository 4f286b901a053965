"""Every rung as an untrained net over random vectors, from its own YAML."""

import copy
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from imdbattn import nn
from imdbattn.data.phrases import with_words_before
from imdbattn.data.plans import BatchPlan
from imdbattn.data.ragged import Batch, BatchOptions, Ragged, map_per_token, ragged_from_lists
from imdbattn.data.word_vectors import WordVectors
from imdbattn.nn.beyond.context import Phrases, counting_folds
from imdbattn.settings.schema import PhraseSettings
from imdbattn.tasks.networks import build_classifier
from imdbattn.tasks.reviews.module import ReviewClassifier
from imdbattn.tasks.reviews.phrases import phrases_of

WIDTH, WORDS = 10, 60
SCORES = (nn.ScaledDot, nn.Dot, nn.Bilinear, nn.Additive)


@cache
def vectors() -> WordVectors:
    table = np.random.default_rng(0).normal(size=(2 + WORDS, WIDTH)).astype(np.float32)
    table[:2] = 0
    words = [f"word{number}" for number in range(WORDS)]
    mean, std = table[2:].mean(0), table[2:].std(0)
    return WordVectors(words, table, mean, std, fingerprint="0" * 16)


def reviews(
    seed: int = 0, count: int = 2000, longest: int = 100, classes: int = 3, words: int = WORDS
) -> Ragged:
    """Random reviews, by default so many that all pairs of words occur again."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(2, 2 + words, rng.integers(0, longest + 1)).tolist() for _ in range(count)]
    return ragged_from_lists(ids, rng.integers(0, classes, count))


def phrases(
    chosen: Any, classes: int, data: Ragged | None = None, rows: int = 2 + WORDS
) -> tuple[Phrases, torch.Tensor]:
    """Those of random reviews, or of `data`, and the ratios that its words are trained with.

    chosen: settings, model.phrases.
    """
    if data is None:
        known = random_phrases(chosen.longest, chosen.min_reviews, chosen.folds, classes, rows)
        return copy.deepcopy(known)
    targets_NC = torch.nn.functional.one_hot(data.labels, classes)
    return phrases_of(chosen, data, counting_folds(data.labels, chosen.folds), targets_NC, rows)


@cache
def random_phrases(
    longest: int, min_reviews: int, folds: int, classes: int, rows: int
) -> tuple[Phrases, torch.Tensor]:
    """Those of random reviews, which are counted once."""
    chosen = PhraseSettings(longest=longest, min_reviews=min_reviews, folds=folds)
    return phrases(chosen, classes, reviews(classes=classes), rows)


def net(settings, rung: str, *overrides: str, seed: int = 0, classes: int = 3) -> torch.nn.Module:
    """The rung in evaluation mode, with random parameters: zeros could hide a mistake."""
    torch.manual_seed(seed)
    cfg = settings(f"model={rung}", *overrides)
    tuned = torch.arange(3, 2 + WORDS) if cfg.model.embedding.trainable else None
    known = phrases(cfg.model.phrases, classes)[0] if cfg.model.phrases else None
    built = build_classifier(cfg.model, vectors(), classes, tuned, known)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built.eval()


def learner(
    cfg: Any, net: torch.nn.Module, classes: int = 3, ratios_MF: torch.Tensor | None = None
) -> ReviewClassifier:
    """The Lightning module around a net. cfg: the settings of a training run."""
    return ReviewClassifier(net, cfg, metadata(classes), ratios_MF=ratios_MF)


def metadata(classes: int = 3) -> dict[str, Any]:
    """What the checkpoint of such a net contains besides weights."""
    return {"vectors": vectors().fingerprint, "labels": [str(number) for number in range(classes)]}


def batch_of(split: Ragged, rows: Any = None, seed: int = 0, **options) -> Batch:
    """Some reviews of a split, by default all, as one batch. options: see BatchOptions."""
    items_B = np.arange(len(split)) if rows is None else np.asarray(rows)
    (made,) = split.batches([BatchPlan(seed, items_B)], BatchOptions(**options))
    return made


def batch(
    model: torch.nn.Module, reviews: list[list[int]], order=None, padding: int = 0, **options
) -> Batch:
    """Reviews in the given order with all that `model` reads, and `padding` more positions."""
    phrases = model.context.phrases if model.context is not None else None
    given = ragged_from_lists(reviews)
    if phrases is not None:
        given = with_words_before(given, phrases.longest)
    made = batch_of(given, order, **options)
    return map_per_token(made, lambda x: F.pad(x, (0, 0) * (x.ndim - 2) + (0, padding)))
