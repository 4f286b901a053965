"""A trained model that reads new texts, and says of them what it attended to.

Shape suffixes: B texts, T words, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imdbattn.data.ragged import Batch, Ragged, read_places
from imdbattn.data.sampling import Batches, EvalBatches
from imdbattn.data.tokens import Tokenizer
from imdbattn.errors import UserError
from imdbattn.explain.reading import AttentionWeights, LabelledReview
from imdbattn.explain.watch import rollout, watch
from imdbattn.settings.keys import words_before
from imdbattn.tasks.learner import ReviewClassifier


@dataclass(frozen=True)
class Reader:
    """settings: of the run, as training composed them. module: in evaluation mode."""

    settings: Mapping[str, Any]
    module: ReviewClassifier
    tokenizer: Tokenizer

    def batches(self, texts: Sequence[str], multiple: int = 1) -> Batches:
        """The texts as ids, of which batches can be cut; positions are rounded up to a multiple."""
        data, (ids, offsets) = self.settings["data"], self.tokenizer.encode_flat(texts)
        none_N = torch.zeros(len(texts), dtype=torch.int64)
        reviews = Ragged(torch.from_numpy(ids), torch.from_numpy(offsets), none_N, np.arange(len(texts)))
        cut = {"max_tokens": data["max_tokens"], "head_share": data["head_share"]}
        return Batches(reviews, multiple=multiple, before=words_before(self.settings), **cut)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, C) of a batch, wherever it lies."""
        return self.module(self.module.transfer_batch_to_device(batch, self.module.device, 0))

    @torch.inference_mode()
    def label(self, texts: Sequence[str]) -> list[LabelledReview]:
        """Label and probability of each text; batched as evaluation does, by length under data.eval_batch_tokens."""
        data, found = self.settings["data"], dict[int, LabelledReview]()
        batches = self.batches(texts, data.get("pad_to", 1))  # runs of earlier versions have none
        for item in EvalBatches(batches.lengths_N(), data["eval_batch_tokens"]):
            for row, said in zip(item[1].tolist(), self.decide(self.logits(batches[item])), strict=True):
                found[row] = self.said(texts[row], said)
        return [found[row] for row in range(len(texts))]

    @torch.no_grad()
    def explain(self, text: str, whole: bool = True) -> LabelledReview:
        """The same of one text, with the share of each word; `whole` keeps every attention's weights as well.

        Raises UserError for a model with a part of the user's own that does not record its attention.
        """
        padded, net = self.batches([text])[0, np.arange(1)], self.module.net
        with watch(net) as weights:
            (said,) = self.decide(self.logits(padded))
        skips = [layer.skip for layer in net.layers if hasattr(layer, "skip")]  # type: ignore[union-attr]
        if not len(weights) - 1 == len(skips) == len(net.layers):  # type: ignore[arg-type]
            raise UserError(
                f"model={self.settings['model']['name']}: a layer has no attribute `skip`, or a part does not append "
                "its attention weights to `record`, so there is nothing to explain"
            )
        (share_T,) = rollout(weights, skips)
        cls = len(share_T) - padded.tokens_BT.shape[1]  # how many stand in front of the words, 1 or 0
        words, data = self.tokenizer.words(text), self.settings["data"]
        read = [words[at] for at in read_places(len(words), data["max_tokens"], data["head_share"])]
        # Not strict: an empty review reads as one <pad>, which is no word.
        places = [(word.start, word.end, share) for word, share in zip(read, share_T[cls:].tolist(), strict=False)]
        if not whole:
            return self.said(text, said, places)
        *layers, pooled = (weights_1HQK[0].float().cpu().numpy() for weights_1HQK in weights)
        asks = hasattr(net.pooling, "attention")  # a mean asks nothing, and <cls> asks in the layers
        keys = ["<cls>"] * cls + ([text[word.start : word.end] for word in read] or ["<pad>"])
        return self.said(text, said, places, AttentionWeights(keys, layers, pooled[0, 0] if asks else None, bool(cls)))

    def decide(self, logits_BC: Tensor) -> list[tuple[str, float]]:
        """Label and probability of each text of a batch."""
        probability_B, label_B = logits_BC.double().softmax(1).max(1)
        labels = [self.module.hparams["labels"][label] for label in label_B.tolist()]
        return list(zip(labels, probability_B.tolist(), strict=True))

    def said(
        self,
        text: str,
        decision: tuple[str, float],
        places: Sequence[tuple[int, int, float]] = (),
        attention: AttentionWeights | None = None,
    ) -> LabelledReview:
        label, probability = decision
        return LabelledReview(
            text=text,
            output=label,
            probability=probability,
            model=self.settings["model"]["name"],
            words=list(places),
            attention=attention,
        )
