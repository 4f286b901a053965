"""Attention layers and related modules. They depend only on torch and can be used in any project
(docs/own_parts.md).

Sequences are (B, T, D). Modules are called with (x_BTD, words). `words` is None if no position is
padding. Otherwise it is a bool mask that is True on words, such as padding_mask(lengths_B, T), as
in F.scaled_dot_product_attention and inverse to the key_padding_mask of nn.MultiheadAttention; or a
`Words`, which also contains positions.

>>> import torch
>>> from imdbattn.nn import SelfAttention, padding_mask
>>> mask_BT = padding_mask(torch.tensor([9, 4]), 9)  # sequences of 9 and of 4 words
>>> SelfAttention(64, heads=4)(torch.randn(2, 9, 64), mask_BT).shape
torch.Size([2, 9, 64])
"""

from imdbattn.nn.encoder_decoder import Decoder, Encoder, EncoderDecoder, beam_search
from imdbattn.nn.ladder import (
    Attention,
    Classifier,
    ClsPooling,
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
    Words,
    sinusoids,
)
from imdbattn.nn.scores import (
    Additive,
    Bilinear,
    Dot,
    ScaledDot,
    Score,
    masked_softmax,
    padding_mask,
)
from imdbattn.nn.vectors import Embedding
