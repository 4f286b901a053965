"""The task `reviews`: a LightningDataModule and a LightningModule for a classifier of reviews.

Shape suffixes: B reviews of a batch, N reviews of a split, C classes, R words whose vectors are
trained.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy

from imdbattn.data.corpus import ReviewCorpus, prepare
from imdbattn.data.ragged import Batch, Ragged
from imdbattn.data.tokens import FIRST_WORD
from imdbattn.errors import UserError
from imdbattn.nn.beyond.context import Phrases, count_phrases, folds_of
from imdbattn.runs.run_folder import link_or_copy, open_run
from imdbattn.tasks.build import batch_options, build_net, trained_words
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData, default_budget
from imdbattn.tasks.per_class import Metric, confusion, details, metric_of, short_name
from imdbattn.tasks.weights import Trained, load_start, start_of

SHORT = 30  # number of words of the review to draw


class ReviewData(BatchData):
    """Reviews, and the texts of data.extra."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.widths, self.options = self.cfg.data.padded_lengths, batch_options(self.cfg)
        self.train_options = {"word_dropout": self.cfg.data.word_dropout}

    @staticmethod
    def read(cfg: Any) -> ReviewCorpus:
        chosen_metric(cfg)  # raises UserError for one that cannot be used, before data are read
        corpus = prepare(cfg.data)
        if cfg.data.extra:
            from imdbattn.data.extra import with_extra

            corpus = with_extra(corpus, cfg.data)
        return corpus

    @property
    def batch_tokens(self) -> int:
        train, data = self.corpus.splits["train"], self.cfg.data
        return data.batch_tokens or default_budget(
            int(train.kept(train.lengths, data.max_tokens).sum())
        )

    def save_texts(self, split: str, path: Path) -> None:
        link_or_copy(self.corpus.texts(split), path)

    def short_review(self, split: str) -> str:
        """The review whose number of words is closest to SHORT; the first of several."""
        import pyarrow.parquet as pq

        at = int((self.corpus.splits[split].lengths - SHORT).abs().argmin())
        text: str = pq.read_table(self.corpus.texts(split), columns=["text"])["text"][at].as_py()
        return text


@dataclass(frozen=True)
class Scores:
    """The outputs of a classifier for the reviews of a split."""

    rows_N: Tensor  # indices in the split, ascending
    labels_N: Tensor
    lengths_N: Tensor  # tokens read
    logits_NC: Tensor
    metric: Metric | None = None  # of choose_by, besides accuracy and loss
    metric_name: str = ""

    def values(self) -> dict[str, float]:
        """Returns for the log and metrics.json: accuracy, cross-entropy in nats, and the metric."""
        classes = self.logits_NC.shape[1]
        accuracy = multiclass_accuracy(
            self.logits_NC, self.labels_N, num_classes=classes, average="micro"
        )
        values = {
            "accuracy": accuracy.item(),
            "loss": F.cross_entropy(self.logits_NC, self.labels_N).item(),
        }
        if self.metric is not None:
            probabilities_NC = self.logits_NC.double().softmax(1).numpy()
            values[self.metric_name] = float(self.metric(self.labels_N.numpy(), probabilities_NC))
        return values

    def details(self) -> dict[str, Any]:
        """For metrics.json: scores of each class."""
        classes = self.logits_NC.shape[1]
        return details(confusion(self.labels_N.numpy(), self.logits_NC.argmax(1).numpy(), classes))

    def columns(self) -> dict[str, Any]:
        """For predictions.parquet: label, predicted class, its probability, all probabilities,
        number of tokens.
        """
        probabilities_NC = self.logits_NC.double().softmax(1)
        probability_N, predicted_N = probabilities_NC.max(1)
        return {
            "label": self.labels_N.numpy(),
            "predicted": predicted_N.numpy(),
            "probability": probability_N.numpy(),
            "probabilities": list(probabilities_NC.numpy()),
            "length": self.lengths_N.numpy(),
        }


class ReviewClassifier(Learner):
    """Trains and scores a net that is called with a batch and returns logits (B, C), such as
    nn.ladder.Classifier.

    folds_N: the fold of each training review, for a net with phrases (nn/beyond/context).
    targets_NC: probabilities of their classes; None: the labels. facts: include the labels and the
    vectors' fingerprint. For the other arguments see Learner.
    """

    folds_N: Tensor | None
    targets_NC: Tensor | None
    curves = ("training, words dropped", "validation")
    metric: Metric | None = None  # of choose_by, in training

    def __init__(
        self,
        *args: Any,
        folds_N: Tensor | None = None,
        targets_NC: Tensor | None = None,
        **options: Any,
    ):
        super().__init__(*args, **options)
        for name, values in {"folds_N": folds_N, "targets_NC": targets_NC}.items():
            self.register_buffer(name, values, persistent=False)
            self._ddp_params_and_buffers_to_ignore.append(name)

    @classmethod
    def new(cls, cfg: Any, corpus: ReviewCorpus, resumed: dict[str, Any] | None = None) -> Self:
        start = start_of(cfg, corpus, resumed)
        trained_R = words_of(corpus, cfg.model, start, "embedding")
        phrases = folds_N = None
        if settings := cfg.model.phrases:
            train, targets_NC = corpus.splits["train"], corpus.targets_NC
            if targets_NC is None:
                targets_NC = F.one_hot(train.labels, len(corpus.label_names))
            labels_N = train.labels.clone()
            # texts of data.extra are divided among all folds, too
            labels_N[len(labels_N) - corpus.added :] = -1
            folds_N = folds_of(labels_N, settings.folds)
            phrases = phrases_of(settings, train, folds_N, targets_NC, len(corpus.glove.vectors))
        net = build_net(cfg.model, corpus.glove, len(corpus.label_names), trained_R, phrases)
        facts = {"vectors": corpus.glove.fingerprint, "labels": corpus.label_names}
        module = cls(net, cfg, facts, folds_N=folds_N, targets_NC=corpus.targets_NC)
        module.metric = chosen_metric(cfg)
        load_start(module, start, resumed)
        return module

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Any, map_location: Any = None, trust: Any = None
    ) -> Self:
        """The classifier of a checkpoint in its run folder. trust: see `open_run`."""
        from imdbattn.tasks.predictor import load

        predictor: Any = load(*open_run(os.fspath(checkpoint_path), trust))
        return cls(predictor.net, predictor.cfg, predictor.facts).to(map_location)

    def forward(self, batch: Batch) -> Tensor:
        return self.net(batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if self.folds_N is not None:
            batch = batch._replace(fold_B=self.folds_N[batch.rows_B])
        logits_BC = self(batch)
        targets = batch.labels_B
        if self.targets_NC is not None:
            targets = self.targets_NC[batch.rows_B].to(logits_BC.dtype)
        smoothing = self.cfg.label_smoothing
        losses_B = F.cross_entropy(logits_BC, targets, reduction="none", label_smoothing=smoothing)
        self.add_to_epoch(losses_B, logits_BC.argmax(-1) == batch.labels_B, len(losses_B))
        # DDP averages gradients over processes; this factor gives all reviews of the global batch
        # equal weight.
        return losses_B.sum() * (self.trainer.world_size / batch.reviews)

    def evaluate_batch(self, batch: Batch) -> tuple[Tensor, ...]:
        # CUDA graphs write the next batch's into the same memory
        logits_BC = self(batch).float().clone()
        return batch.rows_B, batch.labels_B, batch.lengths_B, logits_BC

    def make_scores(self, outputs: tuple[Tensor, ...]) -> Scores:
        name = short_name(self.cfg.choose_by)
        rows_N, labels_N, lengths_N, logits_NC = outputs
        return Scores(rows_N, labels_N, lengths_N, logits_NC, self.metric, name)

    def draw(self, data: Any, folder: Path) -> None:
        from imdbattn.tasks.reviews.predictor import ReviewPredictor
        from imdbattn.tools.explain.figures import draw_positions
        from imdbattn.tools.explain.show import write_attention

        draw_positions(self.net, self.cfg.data.max_tokens or 512, folder)
        predictor = ReviewPredictor(self.cfg, self.net, self.hparams, data.corpus.glove)
        write_attention(
            predictor.explain(data.short_review("test" if self.cfg.test else "validation")), folder
        )


def chosen_metric(cfg: Any) -> Metric | None:
    """Returns the metric that selects the best epoch; None for accuracy and loss.

    Raises UserError for a function of one's own that `trust` does not name.
    """
    if cfg.choose_by in ("accuracy", "loss"):
        return None
    return metric_of(cfg.choose_by, cfg.get("trust"), "choose_by")


def words_of(
    corpus: ReviewCorpus, model: Any, start: Trained | None, embedding: str
) -> Tensor | None:
    """Ids of the words whose vectors are trained: of initial weights, else of training reviews;
    None if frozen.
    """
    if not model.embedding.trainable:
        return None
    trained_R = trained_words(start.weights, embedding) if start else None
    return distinct_words(corpus.splits["train"]) if trained_R is None else trained_R


def distinct_words(reviews: Ragged) -> Tensor:
    ids = reviews.ids.unique()
    return ids[ids >= FIRST_WORD].long()


def phrases_of(
    settings: Any, train: Ragged, fold_N: Tensor, targets_NC: Tensor, rows: int
) -> Phrases:
    """The phrases of the training reviews. settings: model.phrases. Raises UserError if their ids
    are too large.
    """
    longest, least, folds = settings.longest, settings.min_reviews, settings.folds
    if rows**longest >= 2**63:
        raise UserError(
            f"model.phrases.longest={longest} is too large for {rows:,} vectors: set it to"
            f" {longest - 1}"
        )
    words = train.ids.long(), *train.words(longest - 1)
    return count_phrases(words, fold_N, targets_NC, rows, least, folds)
