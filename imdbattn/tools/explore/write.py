"""The output of an encoder-decoder for one source, step by step, its attention, and all beams.

Shape suffixes: S source symbols, T output symbols, V vocabulary, K beams.
"""

from typing import Annotated, Any

import torch
from pydantic import Field

from imdbattn.data.vocabulary import EOS, MARKERS, PAD
from imdbattn.nn.encoder_decoder import NEVER, beam_search
from imdbattn.tasks.prediction import Translation
from imdbattn.tools.explore.runs import Message, Runs

ALTERNATIVES = 5


class Write(Message):
    run: str
    text: Annotated[str, Field(max_length=1000)]
    beams: Annotated[int, Field(ge=1, le=20)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0

    def prediction(self, runs: Runs) -> Translation:
        """Raises UserError for a source without symbols."""
        predictor = runs.model(self.run).predictor
        (written,) = predictor.write([self.text], self.beams, self.length_penalty)
        predictor.warnings()  # clears those that commands print at the end
        return written

    @torch.no_grad()
    def answer(self, runs: Runs) -> dict[str, Any]:
        written, predictor = self.prediction(runs), runs.model(self.run).predictor
        net, (source_vocabulary, vocabulary) = predictor.net, predictor.vocabularies
        source_1S = torch.tensor(
            [source_vocabulary.encode(written.source)], device=predictor.device
        )
        lengths_1 = torch.tensor([source_1S.shape[1]], device=source_1S.device)
        search = beam_search(net, source_1S, lengths_1, self.beams, self.length_penalty)
        tokens_T = search.tokens_BKT[0, 0]
        tokens_T = tokens_T[tokens_T != PAD]
        probability_TV = net(source_1S, lengths_1, tokens_T[None])[0].double().softmax(-1)
        probability_TV[:, NEVER] = 0
        names = [
            MARKERS[number] if number == EOS else vocabulary.symbols[number]
            for number in range(len(vocabulary))
        ]
        steps = []
        for token, probability_V in zip(tokens_T.tolist(), probability_TV, strict=True):
            shares, numbers = probability_V.topk(min(ALTERNATIVES, len(names) - EOS))
            alternatives = [
                (names[n], share)
                for n, share in zip(numbers.tolist(), shares.tolist(), strict=True)
            ]
            step = {"symbol": names[token], "probability": probability_V[token].item()}
            steps.append(step | {"alternatives": alternatives})
        return {
            "output": written.output,
            "source": written.source,
            "probability": written.probability,
            "unknown": list(written.unknown),
            "weights": None if written.weights_TS is None else written.weights_TS.tolist(),
            "steps": steps,
            "beams": [
                {
                    "output": predictor.joined(vocabulary.decode(search.tokens_BKT[0, k].tolist())),
                    "log_probability": search.log_probability_BK[0, k].item(),
                    "score": search.score_BK[0, k].item(),
                    "ended": bool((search.tokens_BKT[0, k] == EOS).any()),
                }
                for k in range(self.beams)
                if search.log_probability_BK[0, k].isfinite()
            ],
        }
