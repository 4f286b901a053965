"""Applies a trained classifier to new texts, and explains its labels by attention.

Shape suffixes: N texts, B texts of a batch, T words, H heads, Q queries, K keys, C classes.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from imdbattn.data.corpus import (
    ReviewCorpus,
    custom_tokenizer_version,
    load_reviews,
    read_texts,
    tokenizer_of,
)
from imdbattn.data.plans import eval_plans
from imdbattn.data.ragged import Batch, BatchMaker, Ragged, kept_indices, with_tensors
from imdbattn.data.tokenizer import AnyTokenizer, Word
from imdbattn.data.word_vectors import WordVectors, load_vectors
from imdbattn.errors import UserError
from imdbattn.io.files import Metadata, SavedNet
from imdbattn.nn.beyond.attention import LabelQueryPooling
from imdbattn.nn.rollout import collect_attention_of_parts, rollout
from imdbattn.settings.command_settings import PredictSettings
from imdbattn.settings.schema import ReviewDataSettings
from imdbattn.tasks.networks import batch_options, build_classifier, reviews_for
from imdbattn.tasks.prediction import MAX_DETAILED, AttentionWeights, Classification
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.reviews.task import ReviewSettings
from imdbattn.tasks.tuned_words import tuned_ids
from imdbattn.tasks.weights import check_same, load_weights

log = logging.getLogger(__name__)

SHORT_WORDS = 30  # number of words of the review that a run's pictures show


class ReviewPredictor(Predictor):
    """Labels texts with a trained net."""

    settings: ReviewSettings

    def __init__(
        self, settings: ReviewSettings, net: nn.Module, metadata: Metadata, vectors: WordVectors
    ):
        super().__init__(settings, net, metadata)
        self.vectors, self.batch_options = vectors, batch_options(settings.data)

    @classmethod
    def load(cls, settings: Any, trained: SavedNet, vectors: WordVectors | None = None) -> Self:
        """Returns the model in a checkpoint. vectors: the model's, if already loaded."""
        weights, metadata = trained
        vectors = vectors or load_vectors(settings.data.vectors, settings.data.cache_dir)
        check_same("the checkpoint", metadata, {"vectors": vectors.fingerprint})
        version = custom_tokenizer_version(settings.data.tokenizer)
        if metadata.get("tokenizer", version) != version:
            name = settings.data.tokenizer.target
            log.warning("data.tokenizer=%s: its code has changed since training", name)
        phrases = None
        if settings.model.phrases:
            from imdbattn.tasks.reviews.phrases import phrases_of_checkpoint

            id_count = len(vectors.table_VD)
            phrases = phrases_of_checkpoint(settings.model.phrases, weights, id_count)
        tuned_R = tuned_ids(weights, "embedding")
        net = build_classifier(settings.model, vectors, len(metadata["labels"]), tuned_R, phrases)
        load_weights(net, weights)
        return cls(settings, net, metadata, vectors)

    @classmethod
    def mean_of(cls, members: "Mapping[str, ReviewPredictor]") -> "MeanPredictor":
        """Raises UserError unless all members have the same classes."""
        labels = {run: ", ".join(member.metadata["labels"]) for run, member in members.items()}
        first = next(iter(labels.values()))
        for run, names in labels.items():
            if names != first:
                raise UserError(f"run={run} has the classes {names}, not {first}: give other runs")
        return MeanPredictor([*members.values()])

    def corpus(self, data: ReviewDataSettings, keep_splits: bool = False) -> ReviewCorpus:
        """Raises UserError unless the data have this model's labels, or data.label_names has other
        names for them, in its order.
        """
        labels = self.metadata["labels"]
        names = data.label_names or labels
        if {*names} == {*labels}:  # in any order, they are the model's own classes
            names = labels
        if keep_splits:
            data = data.model_copy(update={"label_names": names})
        corpus = load_reviews(data, keep_splits, self.vectors)
        if keep_splits and corpus.label_names == names and len(names) == len(labels):
            if names != labels:
                theirs, ours = ", ".join(names), ", ".join(labels)
                log.info("%s: the labels %s are read as %s", data.path or data.source, theirs, ours)
            corpus = replace(corpus, label_names=labels, facts=corpus.facts | {"labels": labels})
        if corpus.label_names != labels:
            raise UserError(
                f"the run has the labels {', '.join(labels)}, but the data have"
                f" {', '.join(corpus.label_names)}"
            )
        return corpus

    @cached_property
    def tokenizer(self) -> AnyTokenizer:
        return tokenizer_of(self.settings.data.tokenizer, self.vectors.words)

    def predict(
        self, texts: Sequence[str], options: PredictSettings, first: int = 0
    ) -> Iterator[Classification]:
        if not options.explain:
            return iter(self.label(texts))
        return (
            self.explain(text, number < MAX_DETAILED) for number, text in enumerate(texts, first)
        )

    def warning(self, count: int, unread: Counter[str]) -> str:
        return f"{unread.total()} of {count} reviews have no words; they are labeled anyway"

    def batch_maker(self, texts: Sequence[str], pad_to: int = 1) -> BatchMaker:
        """Returns a BatchMaker for texts. pad_to: see BatchOptions."""
        ids, offsets, _ = self.tokenizer.encode(texts)
        labels_N = torch.zeros(len(texts), dtype=torch.int64)
        reviews = Ragged(
            torch.from_numpy(ids), torch.from_numpy(offsets), labels_N, np.arange(len(labels_N))
        )
        return self.batch_maker_of_ids(reviews, pad_to)

    def batch_maker_of_ids(self, reviews: Ragged, pad_to: int = 1) -> BatchMaker:
        """Returns a BatchMaker; for phrases, its batches contain the words before each word."""
        reviews = reviews_for(self.settings.model, reviews)
        return BatchMaker(reviews, replace(self.batch_options, pad_to=pad_to))

    def words_read(self, text: str) -> list[Word]:
        """Returns the words that remain after truncation to data.max_tokens."""
        words = self.tokenizer.words(text)
        return [words[at] for at in kept_indices(len(words), self.batch_options)]

    def probabilities(self, batch: Batch) -> Tensor:
        """Returns the probabilities of the classes, (B, C)."""
        batch = with_tensors(batch, lambda tensor: tensor.to(self.device))
        return self.net(batch).double().softmax(1)

    @torch.inference_mode()
    def classify(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns (N, C) probabilities on the CPU, computed in batches as in evaluation, and
        whether each text has words (N,).
        """
        maker = self.batch_maker(texts, self.settings.data.pad_to)
        probabilities_NC = torch.empty(
            len(texts), len(self.metadata["labels"]), dtype=torch.float64
        )
        for _, items_B in eval_plans(maker.batch_lengths(), self.settings.data.eval_batch_tokens):
            batch = maker.of_items(items_B)
            probabilities_NC[torch.from_numpy(items_B)] = self.probabilities(batch).cpu()
        return probabilities_NC, maker.items.lengths > 0

    def label(self, texts: Sequence[str]) -> list[Classification]:
        """Returns the label and probability of each text."""
        probabilities_NC, has_words_N = self.classify(texts)
        return list(map(self.result, texts, probabilities_NC.tolist(), has_words_N.tolist()))

    def explain(self, text: str, detailed: bool = True) -> Classification:
        """Labels one text, with the share of each word; if `detailed`, with all attention weights.

        Raises UserError for a model with a custom part without `attention_weights` or `skip`.
        """
        batch = self.batch_maker([text]).of_items(np.arange(1))
        spans = [(word.start, word.end) for word in self.words_read(text)]
        return self.explain_batch(batch, text, spans, detailed)

    def explain_short_review(self, corpus: ReviewCorpus, split: str) -> Classification:
        """Explains the first review of a split whose number of words is closest to SHORT_WORDS."""
        row = int((corpus.splits[split].lengths - SHORT_WORDS).abs().argmin())
        return self.explain(read_texts(corpus.texts_file(split))[row])

    @torch.no_grad()
    def explain_batch(
        self,
        batch: Batch,
        text: str,
        spans: Sequence[tuple[int, int]],
        detailed: bool = True,
        shares: Callable[[list[Tensor], list[bool]], Tensor] = rollout,
    ) -> Classification:
        """Explains a batch of one review. spans: start and end of each word. shares: a rollout."""
        net = self.net
        try:
            (probability_C,), weights, skips = collect_attention_of_parts(
                net, lambda: self.probabilities(batch)
            )
        except ValueError as error:
            model = self.settings.model.name
            raise UserError(f"model={model} cannot be explained: {error}") from error
        (share_T,) = shares(weights, skips)
        cls = len(share_T) - batch.tokens_BT.shape[1]  # 1 if <cls> precedes the words
        # This is not strict, because an empty review is read as one <pad>, which is not a word.
        words = [(*span, share) for span, share in zip(spans, share_T[cls:].tolist(), strict=False)]
        if not detailed:
            return self.result(text, probability_C.tolist(), bool(spans), words=words)
        *layers, pooled = (weights_1HQK[0].float().cpu().numpy() for weights_1HQK in weights)
        pooling = getattr(net, "pooling", net)
        shows_attention = getattr(pooling, "shows_attention", True)
        by_label = {}
        if isinstance(pooling, LabelQueryPooling):
            by_label = dict(zip(self.metadata["labels"], pooled[:, 0], strict=True))
        attention = AttentionWeights(
            keys=["<cls>"] * cls + ([text[start:end] for start, end in spans] or ["<pad>"]),
            layers=dict(enumerate(layers, 1)),
            pooling=pooled[:, 0].mean(0) if shows_attention else None,
            cls=bool(cls),
            by_label=by_label,
        )
        return self.result(
            text, probability_C.tolist(), bool(spans), words=words, attention=attention
        )

    def result(
        self, text: str, probabilities: list[float], has_words: bool, **explanation: Any
    ) -> Classification:
        labels, probability = self.metadata["labels"], max(probabilities)
        return Classification(
            text=text,
            output=labels[probabilities.index(probability)],
            probability=probability,
            model=self.settings.model.name,
            probabilities=dict(zip(labels, probabilities, strict=True)),
            has_words=has_words,
            **explanation,
        )


class MeanPredictor(ReviewPredictor):
    """Labels texts with the mean probabilities of several classifiers with the same classes."""

    def __init__(self, members: Sequence[ReviewPredictor]):
        first = members[0]
        super().__init__(first.settings, first.net, first.metadata, first.vectors)
        self.members = members

    def classify(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        members = [member.classify(texts) for member in self.members]
        probabilities, have_words = zip(*members, strict=True)
        return torch.stack(probabilities).mean(0), torch.stack(have_words).any(0)
