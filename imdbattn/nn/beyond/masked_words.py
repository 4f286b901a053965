"""Pretraining: guess masked words from those around them (Devlin et al. 2019, section 3.1, without their pairs).

Shape suffixes: B reviews, T positions, E width of the vectors, D width of the encoder, M masked words, G words that may
be guessed.
"""

import torch
from torch import Tensor, nn

from imdbattn.nn.attention import padding_mask
from imdbattn.nn.classifier import Classifier


class MaskedWords(nn.Module):
    """A classifier's encoder, with a head that guesses words by their own vectors.

    encoder: its embedding, convolution, positions and layers are trained; pooling and head are not.
    guessed_G: ids of the words that are masked and guessed, the frequent ones. counts_G: how often each occurs, for a
        start at their frequencies.

    A masked word reads as a learned vector. Unlike Devlin's, none is left as it is: at 15 % of the words the encoder
    sees the rest as they are anyway.
    """

    guessed_G: Tensor
    place_V: Tensor

    def __init__(self, encoder: Classifier, guessed_G: Tensor, counts_G: Tensor, rows: int):
        super().__init__()
        self.encoder = encoder
        for part in (encoder.pooling, encoder.head):
            part.requires_grad_(False)
        self.register_buffer("guessed_G", guessed_G)
        place_V = torch.full((rows,), -1)
        place_V[guessed_G] = torch.arange(len(guessed_G))
        self.register_buffer("place_V", place_V, persistent=False)
        width: int = encoder.embedding.width  # type: ignore[assignment]
        self.mask_E = nn.Parameter(torch.zeros(width))
        self.guess = nn.Linear(encoder.head.in_features, width)
        self.bias_G = nn.Parameter((counts_G.float() / counts_G.sum()).log())

    def maskable(self, tokens_BT: Tensor) -> Tensor:
        """(B, T) bool: which words may be masked."""
        return self.place_V[tokens_BT] >= 0

    def forward(
        self, tokens_BT: Tensor, lengths_B: Tensor, positions_BT: Tensor, masked_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits (M, G) of the masked words, in the order in which they stand in the batch, and their places in G (M,).

        masked_BT: bool, True on words to guess, each of which must be `maskable`.
        """
        mask_BT = padding_mask(lengths_B.clamp(min=1), tokens_BT.shape[1])
        x_BTE = self.encoder.embedding(tokens_BT)
        x_BTE = torch.where(masked_BT[..., None], self.mask_E.to(x_BTE.dtype), x_BTE)
        x_BTD, read_BT = self.encoder.encode(self.encoder.resize(x_BTE), mask_BT, positions_BT)
        x_BTD = x_BTD[:, read_BT.shape[1] - mask_BT.shape[1] :]  # without <cls>
        vectors_GE = self.encoder.embedding(self.guessed_G)
        return self.guess(x_BTD[masked_BT]) @ vectors_GE.T + self.bias_G, self.place_V[tokens_BT[masked_BT]]
