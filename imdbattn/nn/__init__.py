"""Attention layers and related modules, which depend only on torch (docs/own_parts.md).

Sequences are (B, T, D). Layers, positions and poolings are called with (x_BTD, words), where
`words` is a `WordPositions`. `WordPositions.of` makes it from a bool mask that is True on words,
such as sequence_mask(lengths_B, T). F.scaled_dot_product_attention uses the same convention, the
key_padding_mask of nn.MultiheadAttention the opposite one.

>>> import torch
>>> from imdbattn.nn import SelfAttention, WordPositions, sequence_mask
>>> words = WordPositions.of(sequence_mask(torch.tensor([9, 4]), 9))  # two sequences
>>> SelfAttention(64, heads=4)(torch.randn(2, 9, 64), words).shape
torch.Size([2, 9, 64])
"""

from imdbattn.nn.ladder import (
    Attention,
    Classifier,
    ClsPooling,
    Embedding,
    LearnedPositions,
    LearnedQueryPooling,
    MeanPooling,
    NoPositions,
    PlainLayer,
    Pooling,
    ResidualLayer,
    SelfAttention,
    SinusoidalPositions,
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

__all__ = ["Attention", "Classifier", "ClsPooling", "Embedding", "LearnedPositions"]
__all__ += ["LearnedQueryPooling", "MeanPooling", "NoPositions", "PlainLayer", "Pooling"]
__all__ += ["ResidualLayer", "SelfAttention", "SinusoidalPositions", "TextQueryPooling"]
__all__ += ["WordPositions", "sinusoids"]
__all__ += ["Additive", "Bilinear", "Dot", "ScaledDot", "Score", "masked_softmax", "sequence_mask"]
