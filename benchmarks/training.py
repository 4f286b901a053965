"""An epoch of training and a pass of scoring, ours against the textbook loop, on the same reviews, ids and vectors.

    python -m benchmarks.training                     the table
    python -m benchmarks.training --reviews 17471     all of them, in hours

Ours is what `python -m imdbattn.train` runs, Lightning included; only the corpus is a random part of the real one.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from lightning import Callback, Trainer

from benchmarks import textbook
from benchmarks.table import Row, in_turn, markdown, row, seconds
from imdbattn.data.corpus import ReviewCorpus, prepare
from imdbattn.data.ragged import Ragged, as_tensor
from imdbattn.runs.callbacks import Throughput
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.settings.cli import conf_dir, plain_dict
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import build_data, new_module
from imdbattn.tasks.learner import ReviewClassifier
from imdbattn.tasks.loaders import BatchData


def settings(*overrides: str) -> dict:
    """The settings of `python -m imdbattn.train <overrides>`, without logger, progress bar and download."""
    base = ["data.source=packaged", "logger=none", "trainer.enable_progress_bar=false"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return validate(plain_dict(compose("train", overrides=[*base, *overrides]))).model_dump()


def part(reviews: Ragged, count: int, seed: int = 0) -> Ragged:
    """`count` reviews drawn at random, in a corpus of their own."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(reviews))[:count])
    starts, ends = reviews.offsets[chosen].tolist(), reviews.offsets[chosen + 1].tolist()
    ids = torch.cat([reviews.ids[start:end] for start, end in zip(starts, ends, strict=True)])
    lengths = torch.tensor([0, *(end - start for start, end in zip(starts, ends, strict=True))])
    return Ragged(ids, lengths.cumsum(0), reviews.labels[chosen], reviews.rows[chosen])


def as_lists(reviews: Ragged) -> list[tuple[list[int], int]]:
    """The reviews as the textbook holds them."""
    pairs = zip(reviews.offsets[:-1].tolist(), reviews.offsets[1:].tolist(), strict=True)
    texts = [reviews.ids[start:end].tolist() for start, end in pairs]
    return list(zip(texts, reviews.labels.tolist(), strict=True))


class Ours:
    """One rung on one corpus, trained for an epoch or scored by what the commands use."""

    def __init__(self, corpus: ReviewCorpus, *overrides: str):
        self.cfg, self.corpus = settings(*overrides), corpus

    def build(self, *callbacks: Callback, **changes: int) -> tuple[Trainer, ReviewClassifier, BatchData]:
        """A new trainer, with `changes` to its settings, an untrained module, and the corpus's batches."""
        trainer = build_trainer({**self.cfg["trainer"], **changes}, callbacks, enable_checkpointing=False)
        return trainer, new_module(self.cfg, self.corpus), build_data(self.cfg, self.corpus)

    def train(self) -> float:
        """Seconds of one epoch: batches, forward, backward, step, and what Lightning does around them."""
        throughput = Throughput()
        trainer, module, data = self.build(throughput, max_epochs=1)
        trainer.fit(module, data)
        return throughput.seconds

    def score(self) -> float:
        """Seconds in which every review of `test` is scored, Lightning's start included."""
        trainer, module, data = self.build()
        return seconds(lambda: trainer.test(module, data, verbose=False))


def table_VD(corpus: ReviewCorpus) -> torch.Tensor:
    """The vectors as our net sees them: standardised, 0 for padding and unknown words."""
    table_VD = (as_tensor(corpus.glove.vectors) - torch.tensor(corpus.glove.mean_D)) / torch.tensor(corpus.glove.std_D)
    table_VD[:3] = 0
    return table_VD


def corpora(reviews: int) -> ReviewCorpus:
    """The packaged corpus with so many reviews for training, which are its test split, too."""
    whole = prepare(settings()["data"])
    train = part(whole.splits["train"], reviews)
    return replace(whole, splits={"train": train, "validation": part(whole.splits["validation"], 16), "test": train})


@cache
def their_side(reviews: int) -> tuple[list[tuple[list[int], int]], torch.Tensor, int]:
    """Reviews, vectors and the longest review, as the textbook holds them."""
    corpus = corpora(reviews)
    pairs = as_lists(corpus.splits["train"])
    return pairs, table_VD(corpus), max(len(ids) for ids, _ in pairs)


def theirs(task: str, reviews: int, limit: int | None, batch: int) -> float:
    """Seconds of the textbook's `task`: "train", "score", or "keras", which trains the vectors and always pads."""
    pairs, vectors_VD, longest = their_side(reviews)
    tuned = task == "keras"
    net = textbook.TextbookNet(vectors_VD.shape[1], 2, 0.2, longest, vectors_VD if tuned else None)
    collate = textbook.collate(None if tuned else vectors_VD, limit, fixed=tuned)
    return (textbook.score if task == "score" else textbook.train)(net, pairs, collate, batch)


def rows(reviews: int = 1200, rounds: int = 3) -> list[Row]:
    quiet()
    logging.getLogger("imdbattn").setLevel(logging.WARNING)
    corpus = corpora(reviews)
    # In a process of its own, so that it meets torch as it comes.
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:

        def race(name: str, goal: str, ours: Callable[[], float], *textbooks, count=reviews, rounds=rounds) -> Row:
            def other() -> float:
                return count / apart.submit(theirs, textbooks[0], count, *textbooks[1:]).result()

            return row(name, "reviews/s", goal, in_turn(lambda: count / ours(), other, rounds))

        exact = Ours(corpus, "data.word_dropout=0")
        quarter = reviews // 4  # the textbook holds 30 MB of scores for each review of the longest batch
        uncut = Ours(corpora(quarter), "data.word_dropout=0", "data.max_tokens=null")
        many = Ours(corpora(3 * reviews), "data.word_dropout=0")
        tuned = Ours(corpus, "data.word_dropout=0", "data.max_tokens=200", "model.embedding.trainable=true")
        exact.train()  # both sides once, so that no first call is timed
        apart.submit(theirs, "train", reviews, 512, 64).result()
        epoch = "epoch of residual_pe, 512 tokens"
        return [
            race(f"{epoch}; textbook at batch 16", ">= 4", exact.train, "train", 512, 16),
            race(f"{epoch}; textbook at batch 64", ">= 3", exact.train, "train", 512, 64),
            race(f"{epoch}, half dropped as we train; at 16", "", Ours(corpus).train, "train", 512, 16, rounds=1),
            race("epoch, no truncation; textbook at batch 64", ">= 6", uncut.train, "train", None, 64, count=quarter),
            race("200 tokens, tuned vectors; as Keras, batch 32", "", tuned.train, "keras", 200, 32, rounds=1),
            race("scoring, 512 tokens; textbook at batch 64", ">= 5", many.score, "score", 512, 64, count=3 * reviews),
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=int, default=1200, help="reviews of the corpus that are used")
    parser.add_argument("--rounds", type=int, default=3, help="times that both sides run in turn")
    options = parser.parse_args(arguments)
    print(markdown(rows(options.reviews, options.rounds)), end="")


if __name__ == "__main__":
    main()
