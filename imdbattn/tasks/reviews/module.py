"""The task `reviews`: a LightningDataModule and a LightningModule for a classifier of reviews.

Shape suffixes: B reviews of a batch, T positions, N reviews of a split, C classes, R words whose
vectors are trained, M words of the training reviews, F log-count ratios of a word.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus, load_reviews
from imdbattn.data.ragged import Batch, BatchOptions, Ragged
from imdbattn.errors import UserError
from imdbattn.io.files import SavedNet, write_atomically
from imdbattn.nn.watch import BatchAttention, attention_parts, collect_attention
from imdbattn.settings.schema import Trust
from imdbattn.tasks.data_module import BatchData, default_batch_tokens
from imdbattn.tasks.learner import Learner, SplitScores
from imdbattn.tasks.metrics import confusion, details, short_name
from imdbattn.tasks.networks import batch_options, build_classifier, reviews_for
from imdbattn.tasks.reviews.task import ReviewSettings

if TYPE_CHECKING:
    from imdbattn.tasks.prediction import Classification


class ReviewData(BatchData):
    """Reviews, and the texts of data.extra."""

    settings: ReviewSettings
    corpus: ReviewCorpus

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.max_padded_lengths = self.settings.data.max_padded_lengths
        self.options = batch_options(self.settings.data)
        self.train_options = replace(self.options, word_dropout=self.settings.data.word_dropout)

    @staticmethod
    def read(settings: ReviewSettings) -> ReviewCorpus:
        if settings.choose_by not in ("accuracy", "loss"):
            from imdbattn.tasks.chosen_metric import checked_metric

            checked_metric(settings.choose_by, "choose_by")  # before data are read
        corpus = load_reviews(settings.data)
        if settings.data.extra:
            from imdbattn.data.extra import with_extra

            corpus = with_extra(corpus, settings.data)
        return corpus

    @property
    def batch_tokens(self) -> int:
        train, data = self.corpus.splits["train"], self.settings.data
        tokens = int(self.options.kept_lengths(train.lengths).sum())
        return data.batch_tokens or default_batch_tokens(tokens)

    def curriculum(self) -> list[BatchOptions]:
        limit = self.settings.data.max_tokens
        return [
            replace(self.train_options, max_tokens=min(tokens, limit or tokens))
            for tokens in self.settings.data.curriculum or []
        ]

    def items(self, split: str) -> Ragged:
        return reviews_for(self.settings.model, self.corpus.splits[split])

    def save_texts(self, split: str, path: Path) -> None:
        # a copy: with a link, whoever edits the table would edit the cache
        write_atomically(path, self.corpus.texts_file(split).read_bytes())


@dataclass(frozen=True)
class ReviewScores(SplitScores):
    """The outputs of a classifier for the reviews of a split."""

    labels_N: Tensor
    lengths_N: Tensor  # tokens read
    logits_NC: Tensor
    choose_by: str = "accuracy"  # the setting

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Accuracy, cross-entropy in nats and the metric of `choose_by`, unless it is NaN or
        infinite, for the log and metrics.json.
        """
        right_N = self.logits_NC.argmax(1) == self.labels_N
        values = {
            "accuracy": right_N.double().mean().item(),
            "loss": F.cross_entropy(self.logits_NC, self.labels_N).item(),
        }
        if self.choose_by not in values:
            from imdbattn.tasks.chosen_metric import metric_of

            metric = metric_of(self.choose_by, "choose_by")
            probabilities_NC = self.logits_NC.double().softmax(1).numpy()
            value = float(metric(self.labels_N.numpy(), probabilities_NC))
            if math.isfinite(value):
                values[short_name(self.choose_by)] = value
        return values

    def details(self) -> dict[str, object]:
        """Returns the scores of each class, for metrics.json."""
        classes = self.logits_NC.shape[1]
        return details(confusion(self.labels_N.numpy(), self.logits_NC.argmax(1).numpy(), classes))

    def columns(self) -> dict[str, object]:
        """Returns the columns of predictions.parquet: label, predicted class, its probability, all
        probabilities, number of tokens.
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
    """Trains and scores a net, such as nn.ladder.Classifier, that maps a batch to logits (B, C).

    ratios_MF: log-count ratios of each word of the training reviews, for a net with phrases.
    targets_NC: class probabilities of each training review; None uses the labels. weights_C: factor
    for the losses of each class's reviews; None uses 1. metadata: includes the labels and the
    vectors' fingerprint. For other arguments see Learner.
    """

    settings: ReviewSettings
    ratios_MF: Tensor | None
    targets_NC: Tensor | None
    weights_C: Tensor | None

    def __init__(
        self,
        *args: Any,
        ratios_MF: Tensor | None = None,
        targets_NC: Tensor | None = None,
        weights_C: Tensor | None = None,
        **options: Any,
    ):
        super().__init__(*args, **options)
        if self.settings.data.word_dropout:
            self.curve_labels = ("training, words dropped", "validation")
        constants = {"ratios_MF": ratios_MF, "targets_NC": targets_NC, "weights_C": weights_C}
        for name, values in constants.items():
            self.register_buffer(name, values, persistent=False)
            self._ddp_params_and_buffers_to_ignore.append(name)

    @classmethod
    def new(
        cls, settings: ReviewSettings, corpus: ReviewCorpus, initial: SavedNet | None = None
    ) -> Self:
        tuned_R = phrases = ratios_MF = weights_C = None
        if settings.model.embedding.trainable:
            from imdbattn.tasks.tuned_words import ids_to_tune

            tuned_R = ids_to_tune(corpus, initial, "embedding")
        if settings.model.phrases:
            from imdbattn.tasks.reviews.phrases import phrases_of_training

            phrases, ratios_MF = phrases_of_training(settings.model.phrases, corpus)
        if settings.class_weights is not None:
            from imdbattn.tasks.reviews.class_weights import class_weights

            weights_C = class_weights(settings.class_weights, corpus)
        net = build_classifier(
            settings.model, corpus.vectors, len(corpus.label_names), tuned_R, phrases
        )
        metadata: dict[str, Any] = {
            "vectors": corpus.vectors.fingerprint,
            "labels": corpus.label_names,
        }
        if version := corpus.facts.get("tokenizer"):  # it is custom
            metadata["tokenizer"] = version
        module = cls(
            net,
            settings,
            metadata,
            ratios_MF=ratios_MF,
            targets_NC=corpus.targets_NC,
            weights_C=weights_C,
        )
        if settings.attention_entropy and not attention_parts(net):
            raise UserError(
                f"attention_entropy={settings.attention_entropy}: model={settings.model.name} has"
                " no attention whose entropy could change; choose another model, or 0"
            )
        return module

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: str | torch.device | None = None,
        trust: Trust = None,
    ) -> Self:
        """Returns the classifier in a checkpoint, in evaluation mode and with its vectors.

        trust: packages whose classes the run's settings may name. Raises UserError for anything
        but tensors and plain values, and for a class that is not trusted.
        """
        from imdbattn.folders.run import Run
        from imdbattn.tasks.task import settings_of
        from imdbattn.tasks.weights import predictor_of

        run = Run(checkpoint_path, trust)
        predictor: Any = predictor_of(settings_of(run), run.existing_checkpoint)
        return cls(predictor.net, predictor.settings, predictor.metadata).to(map_location).eval()

    def forward(self, batch: Batch) -> Tensor:
        return self.net(batch)

    def training_loss(self, batch: Any) -> Tensor:
        if self.ratios_MF is not None:
            from imdbattn.tasks.reviews.phrases import with_ratios

            batch = with_ratios(batch, self.ratios_MF)
        penalty_B: Tensor | float = 0.0
        if self.settings.attention_entropy:
            logits_BC, attention = self.logits_and_attention(batch)
            penalty_B = self.settings.attention_entropy * mean_entropy(attention)
        else:
            logits_BC = self(batch)
        targets = batch.labels_B if self.targets_NC is None else self.targets_NC[batch.items_B]
        losses_B = F.cross_entropy(
            logits_BC, targets, reduction="none", label_smoothing=self.settings.label_smoothing
        )
        if self.weights_C is not None:
            # torch's `weight` would also weight the smoothed share of each class.
            losses_B = losses_B * self.weights_C[batch.labels_B]
        # train/loss excludes the penalty on attention.
        self.add_to_epoch(losses_B, logits_BC.argmax(-1) == batch.labels_B, len(losses_B))
        # DDP averages gradients over processes; this factor gives all reviews equal weight.
        return (losses_B + penalty_B).sum() * (self.trainer.world_size / batch.global_count)

    def logits_and_attention(self, batch: Batch) -> tuple[Tensor, dict[str, BatchAttention]]:
        """Returns the logits, and the attention weights, which fast attention does not compute."""
        parts = attention_parts(self.net)
        with collect_attention(parts.values()) as collected:
            logits_BC = self.net(batch)
        size = batch.tokens_BT.shape[1]
        return logits_BC, {
            name: BatchAttention.of_words(weights[0], batch.lengths_B, size)
            for name, weights in zip(parts, collected, strict=True)
            if weights and weights[0].ndim == 4  # a custom part may return another shape
        }

    def attention_and_answers(self, batch: Batch) -> tuple[dict[str, BatchAttention], Tensor]:
        logits_BC, attention = self.logits_and_attention(batch)
        return attention, logits_BC.argmax(-1) == batch.labels_B

    def prediction_to_draw(self, data: ReviewData) -> "Classification":
        """Explains a short review."""
        from imdbattn.tasks.reviews.predictor import ReviewPredictor  # only pictures need it

        predictor = ReviewPredictor(self.settings, self.net, self.hparams, data.corpus.vectors)
        split = "test" if self.settings.test else "validation"
        return predictor.explain_short_review(data.corpus, split)

    def outputs_of(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.items_B, batch.labels_B, batch.lengths_B, self(batch).float()

    def make_scores(self, outputs: tuple[Tensor, ...]) -> ReviewScores:
        items_N, labels_N, lengths_N, logits_NC = outputs
        return ReviewScores(items_N, labels_N, lengths_N, logits_NC, self.settings.choose_by)

    def finish_evaluation(self, name: str) -> None:
        """Raises UserError if the metric of `choose_by` is NaN or infinite on validation."""
        super().finish_evaluation(name)
        metric = short_name(self.settings.choose_by)
        if name == "val" and metric not in self.scores.metrics:
            raise UserError(
                f"choose_by: {metric} is NaN or infinite for {self.scores.count} texts, so it"
                " cannot select an epoch"
            )


def mean_entropy(attention: Mapping[str, BatchAttention]) -> Tensor:
    """Returns the mean entropy of each review (B,) over queries, heads and attentions, in nats."""
    means_B = [part.over_queries(part.entropy()).mean(1) for part in attention.values()]
    return torch.stack(means_B).mean(0)
