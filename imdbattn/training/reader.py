"""A trained model that reads new texts, and says of them what it attended to.

Shape suffixes: B texts, T words, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imdbattn.analysis.explain import Attended, Explanation
from imdbattn.data.ragged import Batch, ragged, read_places
from imdbattn.data.tokenization import Tokenizer
from imdbattn.errors import UserError
from imdbattn.nn.attention import rollout
from imdbattn.settings import words_before
from imdbattn.training.module import ReviewClassifier


@dataclass(frozen=True)
class Reader:
    """settings: of the run, as training composed them. module: in evaluation mode."""

    settings: Mapping[str, Any]
    module: ReviewClassifier
    tokenizer: Tokenizer

    def batch(self, texts: Sequence[str]) -> Batch:
        data, reviews = self.settings["data"], ragged(self.tokenizer.encode(texts))
        cut = (torch.arange(len(texts)), data["max_tokens"], data["head_share"])
        padded = reviews.batch(*cut, before=words_before(self.settings))
        return self.module.transfer_batch_to_device(padded, self.module.device, 0)

    @torch.no_grad()
    def label(self, texts: Sequence[str]) -> list[Explanation]:
        """Label and probability of each text, in one batch."""
        return [self.said(text, logits_C) for text, logits_C in zip(texts, self.module(self.batch(texts)), strict=True)]

    @torch.no_grad()
    def explain(self, text: str, whole: bool = True) -> Explanation:
        """The same of one text, with the share of each word; `whole` keeps every attention's weights as well.

        Raises UserError for a model with a part of the user's own that does not record its attention.
        """
        padded, net, record = self.batch([text]), self.module.net, list[Tensor]()
        (logits_C,) = self.module(padded, record)
        skips = [layer.skip for layer in net.layers if hasattr(layer, "skip")]  # type: ignore[union-attr]
        if not len(record) - 1 == len(skips) == len(net.layers):  # type: ignore[arg-type]
            raise UserError(
                f"model={self.settings['model']['name']}: a layer has no attribute `skip`, or a part does not append "
                "its attention weights to `record`, so there is nothing to explain"
            )
        (share_T,) = rollout(record, skips)
        cls = len(share_T) - padded.tokens_BT.shape[1]  # how many stand in front of the words, 1 or 0
        words, data = self.tokenizer.words(text), self.settings["data"]
        read = [words[at] for at in read_places(len(words), data["max_tokens"], data["head_share"])]
        # Not strict: an empty review reads as one <pad>, which is no word.
        places = [(word.start, word.end, share) for word, share in zip(read, share_T[cls:].tolist(), strict=False)]
        if not whole:
            return self.said(text, logits_C, places)
        *layers, pooled = (weights_1HQK[0].float().cpu().numpy() for weights_1HQK in record)
        asks = hasattr(net.pooling, "attention")  # a mean asks nothing, and <cls> asks in the layers
        keys = ["<cls>"] * cls + ([text[word.start : word.end] for word in read] or ["<pad>"])
        return self.said(text, logits_C, places, Attended(keys, layers, pooled[0, 0] if asks else None, bool(cls)))

    def said(
        self,
        text: str,
        logits_C: Tensor,
        places: Sequence[tuple[int, int, float]] = (),
        attended: Attended | None = None,
    ) -> Explanation:
        probability, label = logits_C.double().softmax(0).max(0)
        name, labels = self.settings["model"]["name"], self.module.hparams["labels"]
        return Explanation(text, labels[int(label)], probability.item(), list(places), name, attended)
