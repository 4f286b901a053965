"""Training for an epoch, and scoring: ours and a textbook loop, on the same ids and vectors.

Ours is what `python -m imdbattn.train` runs, including Lightning, on a random part of the packaged
reviews, or on generated strings to reverse. The textbook's batches of strings are padded to their
longest; in the rows of one length, both sides have batches of 64 strings of 20 letters.
"""

import logging
from dataclasses import replace
from functools import cache, partial

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import LambdaCallback

from benchmarks import common, textbook
from benchmarks.common import Row, in_turn, own_process, race, row, seconds
from imdbattn.data.corpus import Corpus, ReviewCorpus, load_reviews
from imdbattn.data.pairs import PairCorpus, load_pairs
from imdbattn.data.ragged import Ragged, ragged_from_lists
from imdbattn.runs.callbacks import Throughput
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.data_module import BatchData
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewData
from imdbattn.tasks.reviews.task import ReviewSettings
from imdbattn.tasks.task import task_of

REVIEWS = 1200
TIMES = 10
BATCH = 64  # strings of a batch
BATCH_TOKENS = 8192  # of a run on all packaged reviews
LETTERS = 20  # of the longest string
STRINGS = 1280  # of training
HIDDEN = 256  # width of the encoder-decoder
QUIET = ("logger=csv", "trainer.enable_progress_bar=false")
TEXTBOOKS = {  # model of ours -> the textbook's score, and its layers
    "seq2seq_attention_additive": (textbook.AdditiveAttention, 1),
    "seq2seq_bahdanau": (textbook.AdditiveAttention, 2),
    "seq2seq_attention": (textbook.BilinearAttention, 1),
    "seq2seq_attention_dot": (textbook.DotAttention, 1),
}


def start() -> None:
    """Logs warnings only."""
    logging.getLogger("imdbattn").setLevel(logging.WARNING)


def fit(
    cfg: TrainingSettings, module: L.LightningModule, data: L.LightningDataModule, epochs: int
) -> tuple[list[float], float]:
    """Trains without validation. Returns the seconds of each epoch, including Lightning, and tokens
    per second in the last one.
    """
    throughput = Throughput()
    times: list[float] = []
    ended = LambdaCallback(on_train_epoch_end=lambda *_: times.append(throughput.epoch_seconds))
    trainer = build_trainer(
        cfg.trainer,
        [throughput, ended],
        enable_checkpointing=False,
        max_epochs=epochs,
        limit_val_batches=0,
    )
    trainer.fit(module, data)
    return times, throughput.all_tokens / len(times) / times[-1]


def train(cfg: TrainingSettings, corpus: Corpus) -> float:
    """Returns the seconds of our first epoch."""
    task = task_of(cfg)
    module = task.class_of("module", Learner).new(cfg, corpus)
    (epoch,), _ = fit(cfg, module, task.class_of("data", BatchData)(cfg, corpus), 1)
    return epoch


def settings(*overrides: str) -> ReviewSettings:
    """Returns the settings of `python -m imdbattn.train <overrides>`, without logger, progress bar
    and download.

    Batches are those of a run on all packaged reviews: left to the number of reviews, a part of
    them would have batches of 512 tokens.
    """
    fixed = ("data.source=packaged", f"data.batch_tokens={BATCH_TOKENS}", *QUIET)
    return common.review_settings(*fixed, *overrides)


def id_lists(texts: Ragged) -> list[list[int]]:
    """Returns the ids of each text."""
    places = zip(texts.offsets[:-1].tolist(), texts.offsets[1:].tolist(), strict=True)
    return [texts.ids[start:end].tolist() for start, end in places]


def part(reviews: Ragged, count: int) -> Ragged:
    """Returns `count` randomly chosen reviews."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(reviews))[:count])
    ids = id_lists(reviews)
    return ragged_from_lists([ids[index] for index in chosen], reviews.labels.numpy()[chosen])


def as_lists(reviews: Ragged) -> list[tuple[list[int], int]]:
    """Returns (ids, label) of each review, the input of the textbook."""
    return list(zip(id_lists(reviews), reviews.labels.tolist(), strict=True))


def score(cfg: ReviewSettings, corpus: ReviewCorpus) -> float:
    """Returns the seconds to score all test reviews with our model, including the start of
    Lightning.
    """
    module = ReviewClassifier.new(cfg, corpus)
    data = ReviewData(cfg, corpus)
    trainer = build_trainer(cfg.trainer, enable_checkpointing=False)
    return seconds(lambda: trainer.test(module, data, verbose=False))


def table_VD(corpus: ReviewCorpus) -> torch.Tensor:
    """Returns the vectors as our model uses them: standardized, 0 for padding and unknown words."""
    vectors = corpus.vectors
    centered_VD = torch.from_numpy(vectors.table_VD) - torch.tensor(vectors.mean_D)
    table_VD = centered_VD / torch.tensor(vectors.std_D)
    table_VD[:2] = 0
    return table_VD


@cache
def small_corpus(reviews: int) -> ReviewCorpus:
    """Returns the packaged corpus with `reviews` training reviews, also its test reviews."""
    whole = load_reviews(settings().data)
    train = part(whole.splits["train"], reviews)
    validation = part(whole.splits["validation"], 16)
    return replace(whole, splits={"train": train, "validation": validation, "test": train})


def theirs(
    task: str,
    reviews: int,
    limit: int | None,
    batch: int,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
) -> float:
    """Returns the seconds of the textbook.

    task: "train", "score", or "keras", which trains the vectors and pads to the limit.
    """
    corpus = small_corpus(reviews)
    tuned = task == "keras"
    items = as_lists(corpus.splits["train"])
    vectors_VD = table_VD(corpus)
    longest = max(len(ids) for ids, _ in items)
    trained_VD = vectors_VD if tuned else None
    net = textbook.TextbookNet(vectors_VD.shape[1], 2, 0.2, longest, trained_VD).to(device)
    collate = textbook.collate(None if tuned else vectors_VD, limit, fixed=tuned)
    if task == "score":
        return textbook.score(net, items, collate, batch)
    return textbook.train(net, items, collate, batch, device=device, dtype=dtype)


@quiet()
def rows() -> list[Row]:
    """Measures epochs and scoring of reviews."""
    start()
    exact = settings("data.word_dropout=0")
    tuned = settings("data.word_dropout=0", "data.max_tokens=200", "model.embedding.trainable=true")
    uncut = settings("data.word_dropout=0", "data.max_tokens=null")
    # the textbook needs 30 MB of scores for each review of the longest batch
    few = REVIEWS // 4
    many = 3 * REVIEWS
    with own_process() as apart:

        def compare(name, goal, ours, cfg, task, limit, batch, count=REVIEWS, rounds=3) -> Row:
            our_side = partial(ours, cfg, small_corpus(count))
            their_side = partial(apart, theirs, task, count, limit, batch)
            return race(name, "reviews/s", goal, count, our_side, their_side, rounds)

        train(exact, small_corpus(REVIEWS))  # both sides once: the first call is not timed
        apart(theirs, "train", REVIEWS, 512, 64)
        epoch = "epoch of residual_pe, 512 tokens"
        dropped = f"{epoch}, half dropped as we train; at 16"
        whole = "epoch, no truncation; textbook at batch 64"
        keras = "200 tokens, tuned vectors; as Keras, batch 32"
        scoring = "scoring, 512 tokens; textbook at batch 64"
        return [
            compare(f"{epoch}; textbook at batch 16", ">= 4", train, exact, "train", 512, 16),
            compare(f"{epoch}; textbook at batch 64", ">= 3", train, exact, "train", 512, 64),
            compare(dropped, "", train, settings(), "train", 512, 16, rounds=1),
            compare(whole, ">= 6", train, uncut, "train", None, 64, few),
            compare(keras, "", train, tuned, "keras", 200, 32, rounds=1),
            compare(scoring, ">= 5", score, exact, "score", 512, 64, many),
        ]


@quiet()
def growth_rows() -> list[Row]:
    """Measures the microseconds per review of an epoch, on ten times as many reviews and on
    REVIEWS.
    """
    cfg = settings("data.word_dropout=0")
    few, many = (partial(train, cfg, small_corpus(count)) for count in (REVIEWS, TIMES * REVIEWS))
    few()  # the first call is not timed
    pairs = in_turn(lambda: 1e6 * many() / (TIMES * REVIEWS), lambda: 1e6 * few() / REVIEWS, 2)
    return [row(f"training on {TIMES}x: an epoch, per review, against 1x", "µs", "<= 1.1", pairs)]


def string_settings(model: str, strings: int, one_length: bool) -> TrainingSettings:
    """Returns the settings of a training on strings, of one length or of all."""
    shortest = LETTERS if one_length else 1
    tokens = BATCH * (2 * LETTERS + 1) if one_length else 4096
    overrides = [
        f"model={model}",
        f"model.net.hidden={HIDDEN}",
        f"model.net.width={HIDDEN}",
        f"data.lengths={[shortest, LETTERS]}",
        f"data.train={strings}",
        "data.validation=10",
        "data.test=10",
        f"data.batch_tokens={tokens}",
    ]
    return common.settings("task=seq2seq", *QUIET, *overrides)


@cache
def strings_of(count: int, one_length: bool) -> PairCorpus:
    return load_pairs(string_settings("seq2seq", count, one_length).data)


def string_textbook(model: str, count: int, one_length: bool) -> float:
    """Returns the seconds of an epoch of the textbook."""
    strings = strings_of(count, one_length).splits["train"]
    attention, layers = TEXTBOOKS[model]
    net = textbook.TextbookTranslator(30, HIDDEN, HIDDEN, layers, attention(HIDDEN))
    items = list(zip(id_lists(strings.source), id_lists(strings.target), strict=True))
    return textbook.train(net, items, textbook.collate_pairs, BATCH, textbook.pair_loss, clip=1.0)


@quiet()
def string_rows() -> list[Row]:
    """Measures epochs of encoder-decoders."""
    start()
    several = f"1 to {LETTERS} letters"
    kinds = (
        ("", "", "seq2seq_attention", True),  # the first round is not counted
        (f"{LETTERS} letters, additive score", ">= 2", "seq2seq_attention_additive", True),
        (f"{LETTERS} letters, additive score, two layers", "", "seq2seq_bahdanau", True),
        (f"{LETTERS} letters, bilinear score", ">= 2", "seq2seq_attention", True),
        (f"{LETTERS} letters, dot score (no keys to project)", "", "seq2seq_attention_dot", True),
        (f"{several}, additive score", ">= 2", "seq2seq_attention_additive", False),
        (f"{several}, bilinear score", ">= 2", "seq2seq_attention", False),
    )
    results = []
    with own_process() as apart:
        for name, goal, model, one_length in kinds:
            cfg = string_settings(model, STRINGS, one_length)
            ours = partial(train, cfg, strings_of(STRINGS, one_length))
            theirs = partial(apart, string_textbook, model, STRINGS, one_length)
            rounds = 3 if name else 1
            results.append(
                race(f"reversing {name}", "strings/s", goal, STRINGS, ours, theirs, rounds)
            )
    return results[1:]
