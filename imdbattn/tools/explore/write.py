"""The output of an encoder-decoder for one source, step by step, its attention, and all beams.

Shape suffixes: S source symbols, T output symbols, V vocabulary, K beams.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from imdbattn.data.symbols import EOS, PAD
from imdbattn.nn.encoder_decoder import NEVER, beam_search
from imdbattn.tasks.seq2seq.predictor import Seq2SeqPredictor
from imdbattn.tools.explore.runs import Answer, Message, Runs

ALTERNATIVES = 5


class Write(Message):
    """Asks what a run writes for a source."""

    run: str
    text: Annotated[str, Field(max_length=1000)]
    beams: Annotated[int, Field(ge=1, le=20)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0

    @torch.no_grad()
    def answer(self, runs: Runs) -> Answer:
        """Returns the output, its steps, its attention weights (T, S), and all beams.

        Raises UserError for a source without symbols.
        """
        predictor: Seq2SeqPredictor = runs.predictor(self.run)
        (written,) = predictor.write([self.text], self.beams, self.length_penalty)
        source_vocabulary, vocabulary = predictor.vocabularies
        ids = source_vocabulary.encode(written.source)
        source_1S = torch.tensor([ids], device=predictor.device)
        lengths_1 = torch.tensor([source_1S.shape[1]], device=source_1S.device)
        search = beam_search(predictor.net, source_1S, lengths_1, self.beams, self.length_penalty)
        tokens_T = search.tokens_BKT[0, 0]
        tokens_T = tokens_T[tokens_T != PAD]
        logits_1TV = predictor.net(source_1S, lengths_1, tokens_T[None])
        probability_TV = logits_1TV[0].double().softmax(-1)
        probability_TV[:, NEVER] = 0
        steps = []
        for token, probability_V in zip(tokens_T.tolist(), probability_TV, strict=True):
            steps.append(step_of(token, probability_V, vocabulary.symbols))
        beams = []
        columns = (search.tokens_BKT[0], search.log_probability_BK[0], search.score_BK[0])
        for beam_T, log_probability, score in zip(*columns, strict=True):
            if log_probability.isfinite():
                tokens = beam_T.tolist()
                beam = {
                    "output": predictor.joined(vocabulary.decode(tokens)),
                    "log_probability": log_probability.item(),
                    "score": score.item(),
                    "ended": EOS in tokens,
                }
                beams.append(beam)
        weights_TS = written.weights_TS
        facts = {
            "output": written.output,
            "source": written.source,
            "probability": written.probability,
            "unknown": list(written.unknown),
            "weights": None if weights_TS is None else weights_TS.tolist(),
            "steps": steps,
            "beams": beams,
        }
        return facts, []


def step_of(token: int, probability_V: Tensor, symbols: Sequence[str]) -> dict[str, Any]:
    """Returns the symbol of a step, and the most probable symbols with their probabilities."""
    shares, numbers = probability_V.topk(min(ALTERNATIVES, len(symbols) - EOS))
    names = [symbols[number] for number in numbers.tolist()]
    return {
        "symbol": symbols[token],
        "probability": probability_V[token].item(),
        "alternatives": list(zip(names, shares.tolist(), strict=True)),
    }
