"""Pretraining on masked words, without sentence pairs (Devlin et al. 2019, section 3.1).

Shape suffixes: B reviews, T positions, E width of the vectors, D of the encoder, M masked words, G
maskable ids, V ids.
"""

from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.nn.ladder import Classifier


class MaskedWords(nn.Module):
    """A classifier's encoder with a head that predicts words.

    The head's output weights are the word vectors.

    encoder: its pooling and head are not trained. guessed_G: ids of the maskable words.
    counts_G: their counts, which initialize the predicted frequencies. rows: number of ids (V).
    """

    guessed_G: Tensor
    index_of_V: Tensor  # index of each id in guessed_G, -1 for an id that is not maskable

    def __init__(self, encoder: Classifier, guessed_G: Tensor, counts_G: Tensor, rows: int):
        super().__init__()
        self.encoder = encoder
        for part in (encoder.pooling, encoder.head):
            part.requires_grad_(False)
        self.register_buffer("guessed_G", guessed_G)
        index_of_V = torch.full((rows,), -1)
        index_of_V[guessed_G] = torch.arange(len(guessed_G))
        self.register_buffer("index_of_V", index_of_V, persistent=False)
        width: int = encoder.embedding.width  # type: ignore[assignment]
        # It replaces every masked word; in the paper, some remain unchanged.
        self.mask_E = nn.Parameter(torch.zeros(width))
        self.guess = nn.Linear(encoder.head.in_features, width)
        self.bias_G = nn.Parameter((counts_G.float() / counts_G.sum()).log())

    def is_maskable(self, tokens_BT: Tensor) -> Tensor:
        """Returns (B, T) bool: which words may be masked."""
        return self.index_of_V[tokens_BT] >= 0

    def forward(self, batch: Any, masked_BT: Tensor, indices_M: Tensor) -> tuple[Tensor, Tensor]:
        """Hides the words where `masked_BT` is True. Returns the logits (M, G) of some words, and
        the indices of these words in `guessed_G` (M,), -1 for words that are not maskable.

        indices_M: the indices of the words in flattened `masked_BT`.
        """
        x_BTE = self.encoder.embedding(batch.tokens_BT)
        x_BTE = torch.where(masked_BT[..., None], self.mask_E.to(x_BTE.dtype), x_BTE)
        x_BTD, words = self.encoder.encode(x_BTE, batch)
        x_BTD = x_BTD[:, words.mask_BT.shape[1] - masked_BT.shape[1] :]  # <cls> is omitted
        vectors_GE = self.encoder.embedding(self.guessed_G)
        logits_MG = self.guess(x_BTD.flatten(0, 1)[indices_M]) @ vectors_GE.T + self.bias_G
        return logits_MG, self.index_of_V[batch.tokens_BT.flatten()[indices_M]]
