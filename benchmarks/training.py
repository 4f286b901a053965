"""Training for an epoch and scoring, ours and a textbook loop, on the same reviews, ids and vectors.

Ours is what `python -m imdbattn.train` runs, Lightning included, on a random part of the packaged reviews.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from lightning import Callback, Trainer

from benchmarks import common, textbook
from benchmarks.common import Row, in_turn, own_process, row, seconds
from imdbattn.data.corpus import ReviewCorpus, prepare
from imdbattn.data.ragged import Ragged, as_tensor
from imdbattn.runs.callbacks import Throughput
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.settings.schema import Settings
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.reviews import TASK, ReviewClassifier

REVIEWS = 1200


def settings(*overrides: str) -> Settings:
    """The settings of `python -m imdbattn.train <overrides>`, without logger, progress bar and download."""
    return common.settings("data.source=packaged", "logger=none", "trainer.enable_progress_bar=false", *overrides)


def part(reviews: Ragged, count: int, seed: int = 0) -> Ragged:
    """`count` randomly chosen reviews."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(reviews))[:count])
    starts, ends = reviews.offsets[chosen].tolist(), reviews.offsets[chosen + 1].tolist()
    ids = torch.cat([reviews.ids[start:end] for start, end in zip(starts, ends, strict=True)])
    lengths = torch.tensor([0, *(end - start for start, end in zip(starts, ends, strict=True))])
    return Ragged(ids, lengths.cumsum(0), reviews.labels[chosen], reviews.rows[chosen])


def as_lists(reviews: Ragged) -> list[tuple[list[int], int]]:
    """(ids, label) of each review, the input of the textbook."""
    pairs = zip(reviews.offsets[:-1].tolist(), reviews.offsets[1:].tolist(), strict=True)
    texts = [reviews.ids[start:end].tolist() for start, end in pairs]
    return list(zip(texts, reviews.labels.tolist(), strict=True))


class Ours:
    """A model on a corpus, with the parts that the commands use."""

    def __init__(self, corpus: ReviewCorpus, *overrides: str):
        self.cfg, self.corpus = settings(*overrides), corpus

    def build(self, *callbacks: Callback) -> tuple[Trainer, ReviewClassifier, BatchData]:
        """A trainer of one epoch, an untrained module, and the data."""
        trainer = build_trainer(self.cfg.trainer, callbacks, enable_checkpointing=False, max_epochs=1)
        return trainer, TASK.new(self.cfg, self.corpus), TASK.loaders(self.cfg, self.corpus)

    def train(self) -> float:
        """Seconds of one epoch, Lightning's share included."""
        throughput = Throughput()
        trainer, module, data = self.build(throughput)
        trainer.fit(module, data)
        return throughput.seconds

    def score(self) -> float:
        """Seconds to score all test reviews, Lightning's start included."""
        trainer, module, data = self.build()
        return seconds(lambda: trainer.test(module, data, verbose=False))


def table_VD(corpus: ReviewCorpus) -> torch.Tensor:
    """The vectors as our net uses them: standardized, 0 for padding and unknown words."""
    table_VD = (as_tensor(corpus.glove.vectors) - torch.tensor(corpus.glove.mean_D)) / torch.tensor(corpus.glove.std_D)
    table_VD[:3] = 0
    return table_VD


def corpora(reviews: int) -> ReviewCorpus:
    """The packaged corpus with `reviews` training reviews, which are its test reviews, too."""
    whole = prepare(settings().data)
    train = part(whole.splits["train"], reviews)
    return replace(whole, splits={"train": train, "validation": part(whole.splits["validation"], 16), "test": train})


@cache
def textbook_data(reviews: int) -> tuple[list[tuple[list[int], int]], torch.Tensor, int]:
    """Reviews, vectors, and the length of the longest review."""
    corpus = corpora(reviews)
    pairs = as_lists(corpus.splits["train"])
    return pairs, table_VD(corpus), max(len(ids) for ids, _ in pairs)


def theirs(task: str, reviews: int, limit: int | None, batch: int) -> float:
    """Seconds of the textbook. task: "train", "score", or "keras", which trains the vectors and pads to the limit."""
    pairs, vectors_VD, longest = textbook_data(reviews)
    tuned = task == "keras"
    net = textbook.TextbookNet(vectors_VD.shape[1], 2, 0.2, longest, vectors_VD if tuned else None)
    collate = textbook.collate(None if tuned else vectors_VD, limit, fixed=tuned)
    return (textbook.score if task == "score" else textbook.train)(net, pairs, collate, batch)


def rows(reviews: int = REVIEWS, rounds: int = 3) -> list[Row]:
    quiet()
    logging.getLogger("imdbattn").setLevel(logging.WARNING)
    corpus = corpora(reviews)
    with own_process() as apart:

        def race(name: str, goal: str, ours: Callable[[], float], task, *more, count=reviews, rounds=rounds) -> Row:
            pairs = in_turn(lambda: count / ours(), lambda: count / apart(theirs, task, count, *more), rounds)
            return row(name, "reviews/s", goal, pairs)

        exact = Ours(corpus, "data.word_dropout=0")
        quarter = reviews // 4  # the textbook needs 30 MB of scores for each review of the longest batch
        uncut = Ours(corpora(quarter), "data.word_dropout=0", "data.max_tokens=null")
        many = Ours(corpora(3 * reviews), "data.word_dropout=0")
        tuned = Ours(corpus, "data.word_dropout=0", "data.max_tokens=200", "model.embedding.trainable=true")
        exact.train()  # both sides once: the first call is not timed
        apart(theirs, "train", reviews, 512, 64)
        epoch = "epoch of residual_pe, 512 tokens"
        return [
            race(f"{epoch}; textbook at batch 16", ">= 4", exact.train, "train", 512, 16),
            race(f"{epoch}; textbook at batch 64", ">= 3", exact.train, "train", 512, 64),
            race(f"{epoch}, half dropped as we train; at 16", "", Ours(corpus).train, "train", 512, 16, rounds=1),
            race("epoch, no truncation; textbook at batch 64", ">= 6", uncut.train, "train", None, 64, count=quarter),
            race("200 tokens, tuned vectors; as Keras, batch 32", "", tuned.train, "keras", 200, 32, rounds=1),
            race("scoring, 512 tokens; textbook at batch 64", ">= 5", many.score, "score", 512, 64, count=3 * reviews),
        ]


def growth_rows(times: int = 10, rounds: int = 2) -> list[Row]:
    """Microseconds per review of an epoch, on ten times as many reviews and on REVIEWS."""
    quiet()
    few, many = (Ours(corpora(count), "data.word_dropout=0") for count in (REVIEWS, times * REVIEWS))
    few.train()  # the first call is not timed
    pairs = in_turn(lambda: 1e6 * many.train() / (times * REVIEWS), lambda: 1e6 * few.train() / REVIEWS, rounds)
    return [row(f"training on {times}x: an epoch, for each review, beside 1x", "µs", "<= 1.1", pairs)]
