"""The output of an encoder-decoder for one source, step by step, its attention, and all beams.

Shape suffixes: S source symbols, T output symbols, V vocabulary, K beams.
"""

from collections.abc import Sequence
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor

from imdbattn.data.vocabulary import EOS, MARKERS, PAD
from imdbattn.nn.encoder_decoder import NEVER, beam_search
from imdbattn.tasks.seq2seq.predictor import Seq2SeqPredictor
from imdbattn.tools.explore.runs import Message, Runs

ALTERNATIVES = 5


class Write(Message):
    """Asks what a run writes for a source."""

    run: str
    text: Annotated[str, Field(max_length=1000)]
    beams: Annotated[int, Field(ge=1, le=20)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0

    @torch.no_grad()
    def answer(self, runs: Runs) -> dict[str, Any]:
        """Returns the output, its steps, its attention weights (T, S), and all beams.

        Raises UserError for a source without symbols.
        """
        predictor = cast(Seq2SeqPredictor, runs.predictor(self.run))
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
        names = [MARKERS[n] if n == EOS else vocabulary.symbols[n] for n in range(len(vocabulary))]
        steps = []
        for token, probability_V in zip(tokens_T.tolist(), probability_TV, strict=True):
            steps.append(step_of(token, probability_V, names))
        beams = []
        for k in range(self.beams):
            if not search.log_probability_BK[0, k].isfinite():
                continue
            tokens = search.tokens_BKT[0, k]
            beam = {
                "output": predictor.joined(vocabulary.decode(tokens.tolist())),
                "log_probability": search.log_probability_BK[0, k].item(),
                "score": search.score_BK[0, k].item(),
                "ended": bool((tokens == EOS).any()),
            }
            beams.append(beam)
        weights_TS = written.weights_TS
        return {
            "output": written.output,
            "source": written.source,
            "probability": written.probability,
            "unknown": list(written.unknown),
            "weights": None if weights_TS is None else weights_TS.tolist(),
            "steps": steps,
            "beams": beams,
        }


def step_of(token: int, probability_V: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Returns the symbol of a step, and the most probable symbols with their probabilities."""
    shares, numbers = probability_V.topk(min(ALTERNATIVES, len(names) - EOS))
    symbols = [names[number] for number in numbers.tolist()]
    return {
        "symbol": names[token],
        "probability": probability_V[token].item(),
        "alternatives": list(zip(symbols, shares.tolist(), strict=True)),
    }
