"""The task `seq2seq`: a LightningDataModule and a LightningModule for an encoder-decoder.

Shape suffixes: B pairs of a batch, S source positions, T target positions, V vocabulary, N pairs.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.pairs import PairBatch, PairCorpus, load_pairs
from imdbattn.data.symbols import PAD, joined_symbols, tokenizers_of
from imdbattn.io.files import SavedNet, write_table
from imdbattn.nn.encoder_decoder import EncoderDecoder, beam_search, shifted
from imdbattn.nn.watch import BatchAttention
from imdbattn.tasks.data_module import BatchData
from imdbattn.tasks.learner import Learner, SplitScores
from imdbattn.tasks.networks import make_net
from imdbattn.tasks.prediction import Translation
from imdbattn.tasks.seq2seq.predictor import Seq2SeqPredictor, vocabularies
from imdbattn.tasks.seq2seq.task import Seq2SeqSettings


class PairData(BatchData):
    """Pairs of source and target."""

    corpus: PairCorpus

    @staticmethod
    def read(settings: Seq2SeqSettings) -> PairCorpus:
        return load_pairs(settings.data)

    def save_texts(self, split: str, path: Path) -> None:
        pairs, data = self.corpus.splits[split], self.settings.data
        texts = pairs.texts
        if data.source != "reverse" and tokenizers_of(data)[0] != "words":
            texts = [joined_symbols(text.split(" "), data, 0) for text in texts]
        write_table(path, {"row": pairs.rows, "text": texts})


@dataclass(frozen=True)
class Seq2SeqScores(SplitScores):
    """The outputs of an encoder-decoder for a split's sources, and the losses of the references."""

    lengths_N: Tensor  # source symbols
    symbols_N: Tensor  # symbols of the reference, including EOS
    losses_N: Tensor  # cross-entropy of the reference, summed over its symbols, in nats
    log_probability_N: Tensor  # log probability of the output, in nats
    texts: list[str]  # the outputs, symbols joined by spaces
    references: list[list[str]]  # all correct targets of each source
    has_bleu: bool  # whether these are sentences, which are also scored by BLEU of their symbols

    @property
    def right_N(self) -> Tensor:
        return torch.tensor(
            [text in right for text, right in zip(self.texts, self.references, strict=True)]
        )

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The scores for the log and metrics.json.

        accuracy: share of the sources for which the whole output is one of the references. loss:
        cross-entropy of the references in nats per symbol, with teacher forcing. bleu: score of all
        outputs, 0 to 100 (Papineni et al. 2002).
        """
        loss = self.losses_N.double().sum() / self.symbols_N.sum()
        values = {"accuracy": self.right_N.double().mean().item(), "loss": loss.item()}
        if self.has_bleu:
            from sacrebleu.metrics import BLEU

            streams: Any = list(zip_longest(*self.references))
            bleu = BLEU(tokenize="none", force=True).corpus_score(self.texts, streams)
            values["bleu"] = bleu.score
        return values

    def columns(self) -> dict[str, object]:
        """Returns the columns of predictions.parquet; the label is the first reference."""
        return {
            "label": [right[0] for right in self.references],
            "references": self.references,
            "predicted": self.texts,
            "right": self.right_N.numpy(),
            "probability": self.log_probability_N.double().exp().numpy(),
            "label_probability": (-self.losses_N.double()).exp().numpy(),
            "length": self.lengths_N.numpy(),
        }


class Seq2SeqModule(Learner):
    """Trains an EncoderDecoder with teacher forcing, and scores its own outputs, decoded greedily.

    metadata: includes the symbols of both vocabularies. For other arguments see Learner.
    """

    net: EncoderDecoder
    settings: Seq2SeqSettings
    scores: Seq2SeqScores
    curve_labels = ("training, single symbols", "validation, whole outputs")

    @classmethod
    def new(
        cls, settings: Seq2SeqSettings, corpus: PairCorpus, initial: SavedNet | None = None
    ) -> Self:
        source, target = corpus.source_vocabulary, corpus.target_vocabulary
        metadata = {"source_symbols": source.symbols, "target_symbols": target.symbols}
        return cls(make_net(settings.model, len(source), len(target)), settings, metadata)

    def training_loss(self, batch: PairBatch) -> Tensor:
        logits_BTV = self.net(batch.source_BS, batch.lengths_if_padded_B, batch.target_BT)
        losses_BT = self.losses(logits_BTV, batch.target_BT, self.settings.label_smoothing)
        right_BT = (logits_BTV.detach().argmax(-1) == batch.target_BT) & (batch.target_BT != PAD)
        self.add_to_epoch(losses_BT, right_BT, batch.target_lengths_B.sum())
        # DDP averages gradients over processes; this factor gives all symbols equal weight.
        return losses_BT.sum() * (self.trainer.world_size / batch.global_symbols)

    @staticmethod
    def losses(logits_BTV: Tensor, target_BT: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Returns the cross-entropy of each symbol (B, T); 0 after the end."""
        losses = F.cross_entropy(  # torch has a deterministic kernel for matrices only
            logits_BTV.flatten(0, 1),
            target_BT.flatten(),
            ignore_index=PAD,
            reduction="none",
            label_smoothing=label_smoothing,
        )
        return losses.view_as(target_BT)

    def attention_and_answers(self, batch: PairBatch) -> tuple[dict[str, BatchAttention], Tensor]:
        """Returns the decoder's attention to the source; an answer is right if all its symbols are,
        with teacher forcing.
        """
        state = self.net.encode(batch.source_BS, batch.lengths_if_padded_B)
        logits_BTV, state = self.net.decoder(shifted(batch.target_BT), state)
        target_BT, weights_BTS = batch.target_BT, state.weights_BTS
        right_B = ((logits_BTV.argmax(-1) == target_BT) | (target_BT == PAD)).all(1)
        if weights_BTS is None:
            return {}, right_B
        queries_BT, key_count_B = target_BT != PAD, batch.source_lengths_B
        return {"decoder": BatchAttention(weights_BTS[:, None], queries_BT, key_count_B)}, right_B

    def prediction_to_draw(self, data: PairData) -> Translation:
        """Translates the first source with a correct output, or else the first source."""
        split = data.corpus.splits["test" if self.settings.test else "validation"]
        # With trainer.limit_test_batches, not all items are scored.
        item = int(self.scores.items_N[self.scores.right_N.int().argmax()])
        predictor = Seq2SeqPredictor(self.settings, self.net, self.hparams)
        translation = predictor.explain(
            joined_symbols(split.texts[item].split(" "), self.settings.data, 0)
        )
        reference = predictor.joined(split.references[item][0].split(" "))
        return replace(translation, reference=reference)

    def outputs_of(self, batch: PairBatch) -> tuple[Tensor, ...]:
        logits_BTV = self.net(batch.source_BS, batch.lengths_if_padded_B, batch.target_BT)
        losses_B = self.losses(logits_BTV.float(), batch.target_BT).sum(1)
        written = beam_search(self.net, batch.source_BS, batch.source_lengths_B)
        references = (batch.items_B, batch.source_lengths_B, batch.target_lengths_B, losses_B)
        return *references, written.log_probability_BK[:, 0], written.tokens_BKT[:, 0]

    def make_scores(self, outputs: tuple[Tensor, ...]) -> Seq2SeqScores:
        items_N, lengths_N, symbols_N, losses_N, log_probability_N, tokens_NT = outputs
        trainer: Any = self.trainer
        loader = trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders
        all_references = loader.maker.items.references
        _, target = vocabularies(self.hparams)
        texts = [" ".join(target.decode(ids)) for ids in tokens_NT.tolist()]
        references = [all_references[item] for item in items_N.tolist()]
        columns = (items_N, lengths_N, symbols_N, losses_N, log_probability_N)
        has_bleu = self.settings.data.source != "reverse"
        return Seq2SeqScores(*columns, texts, references, has_bleu)
