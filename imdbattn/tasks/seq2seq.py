"""Training and scoring an encoder-decoder, and letting a trained one write.

Shape suffixes: B pairs of a batch, S source positions, T target positions, V vocabulary, N pairs of a split.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from imdbattn.data.pairs import PairBatch, split_text
from imdbattn.data.sampling import EvalBatches
from imdbattn.data.vocabulary import PAD, UNK, Vocabulary
from imdbattn.errors import UserError
from imdbattn.explain.reading import WrittenSequence
from imdbattn.explain.watch import watch
from imdbattn.nn.encoder_decoder import EncoderDecoder
from imdbattn.nn.search import beam_search, greedy
from imdbattn.tasks.learner import Learner


@dataclass(frozen=True)
class Outputs:
    """What a model wrote for each source of a split, and how probable it finds that and the reference."""

    rows_N: Tensor  # places in the split, ascending
    lengths_N: Tensor  # source symbols
    symbols_N: Tensor  # of the reference, EOS counted
    losses_N: Tensor  # cross-entropy of the reference, summed over its symbols, in nats
    log_probability_N: Tensor  # of what was written, in nats
    texts: list[str]  # what was written, symbols joined by spaces
    references: list[list[str]]  # all right targets of each source
    in_words: bool  # the symbols are words, so that BLEU means something

    @property
    def right_N(self) -> Tensor:
        return torch.tensor([text in right for text, right in zip(self.texts, self.references, strict=True)])

    @property
    def accuracy(self) -> float:
        """Share of the sources for which the whole output is one of the references."""
        return self.right_N.double().mean().item()

    @property
    def loss(self) -> float:
        """Cross-entropy of the references in nats a symbol, teacher-forced."""
        return (self.losses_N.double().sum() / self.symbols_N.sum()).item()

    @property
    def bleu(self) -> float:
        """BLEU of all outputs, 0 to 100 (Papineni et al. 2002), by sacrebleu on the symbols as they are."""
        from sacrebleu.metrics import BLEU

        most = max(map(len, self.references))
        streams = [[right[n] if n < len(right) else None for right in self.references] for n in range(most)]
        return BLEU(tokenize="none", force=True).corpus_score(self.texts, streams).score  # type: ignore[arg-type]

    def values(self) -> dict[str, float]:
        """What is logged, and stands in metrics.json."""
        return {"accuracy": self.accuracy, "loss": self.loss} | ({"bleu": self.bleu} if self.in_words else {})

    def columns(self) -> dict[str, Any]:
        """What predictions.parquet says of each pair; the probability of a reference is that of the first."""
        return {
            "label": [right[0] for right in self.references],
            "references": self.references,
            "predicted": self.texts,
            "right": self.right_N.numpy(),
            "probability": self.log_probability_N.double().exp().numpy(),
            "label_probability": (-self.losses_N.double()).exp().numpy(),
            "length": self.lengths_N.numpy(),
        }


class SequenceWriter(Learner):
    """Trains an EncoderDecoder by teacher forcing, scores what it writes by itself.

    facts: with the symbols of both vocabularies. For the rest see Learner.
    """

    net: EncoderDecoder

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        logits_BTV = self.net(batch.source_BS, batch.lengths_or_none_B, batch.target_BT)
        losses_BT = self.losses(logits_BTV, batch.target_BT, self.label_smoothing)
        right_BT = (logits_BTV.detach().argmax(-1) == batch.target_BT) & (batch.target_BT != PAD)
        self.note(losses_BT, right_BT, batch.target_lengths_B.sum())
        # DDP averages over processes; so weighted, every symbol of the whole batch counts the same.
        return losses_BT.sum() * (self.trainer.world_size / batch.symbols)

    @staticmethod
    def losses(logits_BTV: Tensor, target_BT: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each symbol (B, T); 0 behind the end."""
        return F.cross_entropy(
            logits_BTV.transpose(1, 2), target_BT, ignore_index=PAD, reduction="none", label_smoothing=label_smoothing
        )

    def show(self, batch: PairBatch) -> tuple[Tensor, ...]:
        logits_BTV = self.net(batch.source_BS, batch.lengths_or_none_B, batch.target_BT)
        losses_B = self.losses(logits_BTV.float(), batch.target_BT).sum(1)
        written = greedy(self.net, batch.source_BS, batch.source_lengths_B)
        return (
            *(batch.rows_B, batch.source_lengths_B, batch.target_lengths_B, losses_B),
            *(written.log_probability_B, written.tokens_BT),
        )

    def read_scores(self, shown: tuple[Tensor, ...]) -> Outputs:
        rows_N, lengths_N, symbols_N, losses_N, log_probability_N, tokens_NT = shown
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        split = data.corpus.splits[data.test_split if self.trainer.testing else "validation"]
        texts = [" ".join(self.vocabularies()[1].decode(ids)) for ids in tokens_NT.tolist()]
        references = [split.references[row] for row in rows_N.tolist()]
        told = (rows_N, lengths_N, symbols_N, losses_N, log_probability_N)
        return Outputs(*told, texts, references, data.corpus.items == "sentences")

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Of source and target."""
        return Vocabulary(self.hparams["source_symbols"]), Vocabulary(self.hparams["target_symbols"])


def refuse_empty(line: int) -> None:
    """Raises UserError: no sequence is written from a line without a symbol."""
    raise UserError(f"line {line} of the input is empty, there is nothing to write from: omit it")


@dataclass(frozen=True)
class Writer:
    """A trained model that writes for new sources. settings: of the run. module: in evaluation mode."""

    settings: Mapping[str, Any]
    module: SequenceWriter

    def write(
        self,
        texts: Sequence[str],
        beams: int = 1,
        length_penalty: float = 1.0,
        first: int = 1,
        weights: bool = True,
    ) -> list[WrittenSequence]:
        """What the model writes for each text: greedily, or by a search with several beams.

        Batched by length under data.eval_batch_tokens. weights: also where it looked. Raises UserError naming the line
        of a text that is empty, where that of the first text is `first`.
        """
        sources, found = [split_text(text, self.settings["data"]) for text in texts], dict[int, WrittenSequence]()
        for number, symbols in enumerate(sources, first):
            if not symbols:
                refuse_empty(number)
        # An output is taken to be as long as its source; each beam has its own.
        lengths_N = np.array([(1 + beams) * len(symbols) for symbols in sources])
        for _, rows_B in EvalBatches(lengths_N, self.settings["data"]["eval_batch_tokens"]):
            written = self.write_batch([sources[row] for row in rows_B], beams, length_penalty, weights)
            found |= zip(rows_B.tolist(), written, strict=True)
        return [found[row] for row in range(len(texts))]

    def write_batch(
        self, sources: Sequence[list[str]], beams: int, length_penalty: float, weights: bool
    ) -> Iterator[WrittenSequence]:
        """The same of sources that are symbols, in one batch."""
        of_source, of_target = self.module.vocabularies()
        net, device = self.module.net, self.module.device
        ids = [of_source.encode(symbols) for symbols in sources]
        source_BS = pad_sequence([torch.tensor(line) for line in ids], batch_first=True, padding_value=PAD).to(device)
        lengths_B = torch.tensor([len(line) for line in ids], device=device)
        if beams > 1:
            written = beam_search(net, source_BS, lengths_B, beams, length_penalty)
        else:
            written = greedy(net, source_BS, lengths_B)
        weights_BTS = None
        if weights:  # the searches keep none, of all beams that would be gigabytes
            with torch.no_grad(), watch(net) as steps_B1S:
                net(source_BS, lengths_B, written.tokens_BT)
            weights_BTS = torch.cat(steps_B1S, 1) if steps_B1S else None
        joiner = "" if self.settings["data"]["source"] == "reverse" else " "
        for row, symbols in enumerate(sources):
            tokens = written.tokens_BT[row].tolist()
            steps = sum(token != PAD for token in tokens)
            weights_TS = None if weights_BTS is None else weights_BTS[row, :steps, : len(symbols)].float().cpu().numpy()
            yield WrittenSequence(
                text=joiner.join(symbols),
                output=joiner.join(of_target.decode(tokens)),
                probability=written.log_probability_B[row].double().exp().item(),
                model=self.settings["model"]["name"],
                source=symbols,
                written=of_target.decode(tokens),
                weights_TS=weights_TS,
                unknown=[symbol for symbol, number in zip(symbols, ids[row], strict=True) if number == UNK],
            )
