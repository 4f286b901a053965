"""Attention layers and related modules, which depend only on torch (docs/own_parts.md).

Sequences are (B, T, D). Modules are called with (x_BTD, words), where words are `WordPositions`.
`WordPositions.of` makes them from a bool mask that is True on words, such as
sequence_mask(lengths_B, T). F.scaled_dot_product_attention has the same convention, the
key_padding_mask of nn.MultiheadAttention the opposite one.

>>> import torch
>>> from imdbattn.nn import SelfAttention, WordPositions, sequence_mask
>>> words = WordPositions.of(sequence_mask(torch.tensor([9, 4]), 9))  # two sequences
>>> SelfAttention(64, heads=4)(torch.randn(2, 9, 64), words).shape
torch.Size([2, 9, 64])
"""

from typing import TYPE_CHECKING, Any

from imdbattn.nn.ladder import (
    Attention,
    Classifier,
    ClsPooling,
    Embedding,
    Learned,
    LearnedQueryPooling,
    MeanPooling,
    NoPositions,
    PlainLayer,
    Pooling,
    ResidualLayer,
    SelfAttention,
    Sinusoidal,
    TextQueryPooling,
    WordPositions,
    sinusoids,
)
from imdbattn.nn.scores import (
    Additive,
    Bilinear,
    Dot,
    ScaledDot,
    Score,
    masked_softmax,
    sequence_mask,
)

if TYPE_CHECKING:
    from imdbattn.nn.encoder_decoder import Decoder, Encoder, EncoderDecoder, beam_search

ENCODER_DECODER = ("Decoder", "Encoder", "EncoderDecoder", "beam_search")

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        """Imports the encoder-decoder when it is first used: classifiers do not need it."""
        if name not in ENCODER_DECODER:
            raise AttributeError(f"module 'imdbattn.nn' has no attribute '{name}'")
        from imdbattn.nn import encoder_decoder

        return getattr(encoder_decoder, name)
