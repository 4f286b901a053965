"""The task `reviews`: trains and scores a classifier of reviews.

Shape suffixes: B reviews of a batch, N reviews of a split, C classes, R words whose vectors are trained.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus, prepare
from imdbattn.data.extra import with_extra
from imdbattn.data.glove import Glove
from imdbattn.data.ragged import Batch, Ragged
from imdbattn.data.tokens import FIRST_WORD
from imdbattn.errors import UserError
from imdbattn.explain.figures import draw_positions
from imdbattn.explain.show import write_attention
from imdbattn.nn.beyond.phrases import Phrases, count_phrases, folds_of
from imdbattn.run_folder import link_texts, open_run
from imdbattn.tasks import pictures
from imdbattn.tasks.initial_weights import load_start, start_of
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData, default_budget
from imdbattn.tasks.review_net import build_net, trained_words
from imdbattn.tasks.review_predictor import ReviewPredictor, batch_options
from imdbattn.tasks.review_scores import Scores
from imdbattn.tasks.task import Task


class ReviewClassifier(Learner):
    """Trains and scores a net that is called with a batch and returns logits (B, C), such as nn.ladder.Classifier.

    folds_N: the fold of each training review, for a net with phrases (nn/beyond/phrases). targets_NC: probabilities of
    their classes; None: the labels. facts: include the labels and the vectors' fingerprint. For the other arguments see
    Learner.
    """

    folds_N: Tensor | None
    targets_NC: Tensor | None
    glove: Glove | None = None  # of a trained net, for the data that it is scored on

    def __init__(self, *args: Any, folds_N: Tensor | None = None, targets_NC: Tensor | None = None, **options: Any):
        super().__init__(*args, **options)
        for name, values in {"folds_N": folds_N, "targets_NC": targets_NC}.items():
            self.register_buffer(name, values, persistent=False)
            self._ddp_params_and_buffers_to_ignore.append(name)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Any, map_location: Any = None, **options: Any
    ) -> "ReviewClassifier":
        """The classifier of a checkpoint in its run folder. options: `trust`, see `open_run`. Raises UserError."""
        cfg, checkpoint = open_run(os.fspath(checkpoint_path), options.get("trust"))
        return TASK.learner(ReviewPredictor.load(cfg, checkpoint)).to(map_location)

    def forward(self, batch: Batch) -> Tensor:
        return self.net(batch)

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of each review of a training batch, (B,), and whether its class is predicted."""
        if self.folds_N is not None:
            batch = batch._replace(fold_B=self.folds_N[batch.rows_B])
        logits_BC = self(batch)
        targets = batch.labels_B
        if self.targets_NC is not None:
            targets = self.targets_NC[batch.rows_B].to(logits_BC.dtype)
        options: Any = {"reduction": "none", "label_smoothing": self.cfg.label_smoothing}
        return F.cross_entropy(logits_BC, targets, **options), logits_BC.argmax(-1) == batch.labels_B

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        losses_B, right_B = self.losses(batch)
        self.add_to_epoch(losses_B, right_B, len(losses_B))
        # DDP averages gradients over processes; this factor gives all reviews of the global batch equal weight.
        return losses_B.sum() * (self.trainer.world_size / batch.reviews)

    def evaluate_batch(self, batch: Batch) -> tuple[Tensor, ...]:
        logits_BC = self(batch).float().clone()  # CUDA graphs write the next batch's into the same memory
        return batch.rows_B, batch.labels_B, batch.lengths_B, logits_BC

    def make_scores(self, outputs: tuple[Tensor, ...]) -> Scores:
        return Scores(*outputs)


# --- a new net -----------------------------------------------------------------------------------------------------


def words_of(corpus: ReviewCorpus, model: Any, weights: Mapping[str, Tensor], embedding: str) -> Tensor | None:
    """Ids of the words whose vectors are trained: of initial weights, else of training reviews; None if frozen."""
    if not model.embedding.trainable:
        return None
    trained_R = trained_words(weights, embedding)
    return distinct_words(corpus.splits["train"]) if trained_R is None else trained_R


def distinct_words(reviews: Ragged) -> Tensor:
    ids = reviews.ids.unique()
    return ids[ids >= FIRST_WORD].long()


def phrases_of(settings: Any, train: Ragged, fold_N: Tensor, targets_NC: Tensor, rows: int) -> Phrases:
    """The phrases of the training reviews. settings: model.phrases. Raises UserError if their ids are too large."""
    longest, least, folds = settings.longest, settings.min_reviews, settings.folds
    if rows**longest >= 2**63:
        raise UserError(f"model.phrases.longest={longest} is too long for {rows:,} vectors: set it to {longest - 1}")
    return count_phrases(train.ids.long(), *train.words(longest - 1), fold_N, targets_NC, rows, least, folds)


# --- the task --------------------------------------------------------------------------------------------------------


class ReviewTask(Task):
    def prepare(self, cfg: Any, trained: Any = None, uncut: bool = False) -> ReviewCorpus:
        if trained is None:
            corpus = prepare(cfg.data, uncut)
            return with_extra(corpus, cfg.data) if cfg.data.extra else corpus
        labels, data = trained.hparams["labels"], cfg.data
        names = data.label_names or labels  # of the same classes in other data
        if len(names) != len(labels):
            raise UserError(f"data.label_names must have a name for each of the classes {', '.join(labels)}")
        if uncut:
            data = OmegaConf.merge(data, {"label_names": names})
        corpus = prepare(data, uncut, trained.glove)
        if uncut and corpus.label_names == names:
            corpus = replace(corpus, label_names=labels, facts=corpus.facts | {"labels": labels})
        if corpus.label_names != labels:
            raise UserError(f"the run has the labels {', '.join(labels)}, the data has {', '.join(corpus.label_names)}")
        return corpus

    def loaders(self, cfg: Any, corpus: ReviewCorpus, test_split: str = "test") -> BatchData:
        data, train = cfg.data, corpus.splits.get("train")  # other data to score have no training split
        budget = data.batch_tokens
        if budget is None:
            budget = default_budget(0 if train is None else int(train.kept(train.lengths, data.max_tokens).sum()))
        widths, dropout = data.padded_lengths, data.word_dropout
        return BatchData(cfg, corpus, budget, test_split, widths, dropout, **batch_options(cfg))

    def new(self, cfg: Any, corpus: ReviewCorpus, resumed: dict[str, Any] | None = None) -> Learner:
        weights, initial_facts, whole = start_of(cfg, corpus, resumed)
        trained_R = words_of(corpus, cfg.model, weights, "embedding")
        phrases = folds_N = None
        if settings := cfg.model.phrases:
            train, targets_NC = corpus.splits["train"], corpus.targets_NC
            if targets_NC is None:
                targets_NC = F.one_hot(train.labels, len(corpus.label_names))
            labels_N = train.labels.clone()
            labels_N[len(labels_N) - corpus.added :] = -1  # texts of data.extra are divided among all folds, too
            folds_N = folds_of(labels_N, settings.folds)
            phrases = phrases_of(settings, train, folds_N, targets_NC, len(corpus.glove.vectors))
        net = build_net(cfg.model, corpus.glove, len(corpus.label_names), trained_R, phrases)
        facts = {"vectors": corpus.glove.fingerprint, "labels": corpus.label_names}
        module = ReviewClassifier(net, cfg, facts, folds_N=folds_N, targets_NC=corpus.targets_NC)
        load_start(module, weights, initial_facts, whole)
        return module

    def load(self, cfg: Any, checkpoint: Path, corpus: ReviewCorpus | None = None) -> Learner:
        return self.learner(ReviewPredictor.load(cfg, checkpoint, corpus.glove if corpus else None))

    def learner(self, predictor: ReviewPredictor) -> ReviewClassifier:
        module = ReviewClassifier(predictor.net, predictor.cfg, predictor.facts)
        module.glove = predictor.glove
        return module

    def save_texts(self, corpus: ReviewCorpus, split: str, path: Path) -> None:
        link_texts(corpus.texts(split), path)

    def draw(self, module: Any, corpus: ReviewCorpus, cfg: Any, folder: Path) -> None:
        with pictures.only_warnings():
            pictures.draw_curves(folder, "training, words dropped", "validation")
            draw_positions(module.net, cfg.data.max_tokens or 512, folder / "pictures")
            text = pictures.short_review(corpus, "test" if cfg.test else "validation")
            write_attention(
                ReviewPredictor(cfg, module.net, module.hparams, corpus.glove).explain(text), folder / "pictures"
            )


TASK = ReviewTask()
