"""Applies a trained encoder-decoder to new sources.

Shape suffixes: B sources of a batch, S source positions, T target positions, N sources.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from imdbattn.data.pairs import PairCorpus, load_pairs
from imdbattn.data.plans import eval_plans
from imdbattn.data.symbols import PAD, UNK_SYMBOL, Vocabulary, joined_symbols, split_text
from imdbattn.errors import UserError, visible
from imdbattn.io.files import Metadata, SavedNet
from imdbattn.nn.encoder_decoder import EncoderDecoder, beam_search
from imdbattn.settings.command_settings import PredictSettings
from imdbattn.settings.pair_settings import ReverseSettings, TranslationSettings
from imdbattn.tasks.networks import make_net
from imdbattn.tasks.prediction import Translation
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.seq2seq.task import Seq2SeqSettings
from imdbattn.tasks.weights import load_weights


class Seq2SeqPredictor(Predictor):
    """Generates output sequences for new sources with a trained net."""

    omits_long = True

    def __init__(self, settings: Seq2SeqSettings, net: EncoderDecoder, metadata: Metadata):
        super().__init__(settings, net, metadata)
        self.vocabularies = vocabularies(metadata)

    @classmethod
    def load(cls, settings: Seq2SeqSettings, trained: SavedNet) -> Self:
        source, target = vocabularies(trained.metadata)
        net: Any = make_net(settings.model, len(source), len(target))
        load_weights(net, trained.weights)
        return cls(settings, net, trained.metadata)

    def corpus(
        self, data: ReverseSettings | TranslationSettings, keep_splits: bool = False
    ) -> PairCorpus:
        return load_pairs(data, self.vocabularies, keep_splits)

    def predict(
        self, texts: Sequence[str], options: PredictSettings, first: int = 0
    ) -> Iterator[Translation]:
        yield from self.write(texts, options.beams, options.length_penalty, options.explain, first)

    def explain(self, text: str) -> Translation:
        return self.write([text])[0]

    def joined(self, symbols: Sequence[str]) -> str:
        """Returns an output's symbols as text."""
        return joined_symbols(symbols, self.settings.data, 1)

    def warning(self, count: int, unread: Counter[str]) -> str:
        examples = visible(", ".join([*unread][:10]))
        return f"symbols that are not in the vocabulary, read as <unk>: {examples}"

    def write(
        self,
        texts: Sequence[str],
        beams: int = 1,
        length_penalty: float = 1.0,
        weights: bool = True,
        first: int = 0,
    ) -> list[Translation]:
        """Returns the output for each text, decoded greedily or by beam search, in batches.

        weights: whether to return attention weights. first: number of the first text. Raises
        UserError for an empty text.
        """
        sources = [split_text(text, self.settings.data) for text in texts]
        results = dict[int, Translation]()
        for line, symbols in enumerate(sources, first + 1):
            if not symbols:
                raise UserError(f"line {line} of the input is empty: remove it")
        # The output of each beam is assumed to be as long as its source.
        lengths_N = np.array([(1 + beams) * len(symbols) for symbols in sources])
        for _, items_B in eval_plans(lengths_N, self.settings.data.eval_batch_tokens):
            written = self.write_batch(
                [sources[item] for item in items_B], beams, length_penalty, weights
            )
            results |= zip(items_B.tolist(), written, strict=True)
        return [results[item] for item in range(len(texts))]

    def write_batch(
        self, sources: Sequence[list[str]], beams: int, length_penalty: float, weights: bool
    ) -> Iterator[Translation]:
        """Yields the outputs for sources of symbols, in one batch."""
        source_vocabulary, target_vocabulary = self.vocabularies
        net, device = self.net, self.device
        ids = [source_vocabulary.encode(symbols) for symbols in sources]
        source_BS = pad_sequence(
            [torch.tensor(line) for line in ids], batch_first=True, padding_value=PAD
        ).to(device)
        lengths_B = torch.tensor([len(line) for line in ids], device=device)
        output = beam_search(net, source_BS, lengths_B, beams, length_penalty)
        tokens_BT, log_probability_B = output.tokens_BKT[:, 0], output.log_probability_BK[:, 0]
        weights_BTS = None
        # A second pass computes the weights: storing them for all beams would take gigabytes.
        if weights and net.decoder.score is not None:
            with torch.no_grad():
                weights_BTS = net.attention_weights(source_BS, lengths_B, tokens_BT)
        for item, symbols in enumerate(sources):
            tokens = tokens_BT[item].tolist()
            steps, written = sum(token != PAD for token in tokens), target_vocabulary.decode(tokens)
            weights_TS = None
            if weights_BTS is not None:
                weights_TS = weights_BTS[item, :steps, : len(symbols)].float().cpu().numpy()
            yield Translation(
                text=joined_symbols(symbols, self.settings.data, 0),
                output=self.joined(written),
                probability=log_probability_B[item].double().exp().item(),
                model=self.settings.model.name,
                source=symbols,
                written=written,
                weights_TS=weights_TS,
                unknown=[
                    symbol
                    for symbol, number in zip(symbols, ids[item], strict=True)
                    if number == UNK_SYMBOL
                ],
            )


def vocabularies(metadata: Metadata) -> tuple[Vocabulary, Vocabulary]:
    """Returns the source and target vocabularies."""
    return Vocabulary(metadata["source_symbols"]), Vocabulary(metadata["target_symbols"])
