"""Attention layers and related modules, which depend only on torch (docs/own_parts.md).

Sequences are (B, T, D). Modules are called with (x_BTD, mask), a `Mask`. `Mask.of` makes one from a
bool mask that is True on words, such as sequence_mask(lengths_B, T). F.scaled_dot_product_attention
has the same convention, the key_padding_mask of nn.MultiheadAttention the opposite one.

>>> import torch
>>> from imdbattn.nn import Mask, SelfAttention, sequence_mask
>>> mask = Mask.of(sequence_mask(torch.tensor([9, 4]), 9))  # sequences of 9 and of 4 words
>>> SelfAttention(64, heads=4)(torch.randn(2, 9, 64), mask).shape
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
    Mask,
    MeanPooling,
    NoPositions,
    PlainLayer,
    Pooling,
    ResidualLayer,
    SelfAttention,
    Sinusoidal,
    TextQueryPooling,
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
