"""Attention layers and related modules. They depend only on torch and can be used in any project.

Sequences are (B, T, D). Modules are called with (x_BTD, words). `words` is None if no position is padding. Otherwise it
is a bool mask that is True on words, such as padding_mask(lengths_B, T), as in F.scaled_dot_product_attention and
inverse to the key_padding_mask of nn.MultiheadAttention; or a `Words`, which also contains positions.

>>> import torch
>>> from imdbattn.nn import MeanPooling, ResidualLayer, Score, SelfAttention, Sinusoidal, padding_mask
>>> x_BTD = torch.randn(2, 9, 64)
>>> mask_BT = padding_mask(torch.tensor([9, 4]), 9)  # sequences of 9 and of 4 words
>>> SelfAttention(64, heads=4)(x_BTD, mask_BT).shape
torch.Size([2, 9, 64])
>>> layer = ResidualLayer(64, dropout=0.1, heads=4)
>>> MeanPooling(64)(layer(Sinusoidal(64)(x_BTD, mask_BT), mask_BT), mask_BT).shape
torch.Size([2, 64])

A score of one's own:

>>> class Nearness(Score):
...     def compare(self, query, projected):
...         return -torch.cdist(query, projected)
>>> SelfAttention(64, heads=4, score=Nearness)(x_BTD).shape
torch.Size([2, 9, 64])

A classifier; its embedding may be any module from ids (B, T) to vectors (B, T, E):

>>> from functools import partial
>>> from types import SimpleNamespace
>>> from imdbattn.nn import Classifier
>>> embedding = torch.nn.Embedding(1000, 64)
>>> embedding.width = 64  # E
>>> layer = partial(ResidualLayer, heads=4)
>>> net = Classifier(embedding, 2, positions=Sinusoidal, layer=layer, pooling=MeanPooling, layers=2)
>>> tokens_BT, positions_BT = torch.randint(1000, (3, 9)), torch.arange(9).expand(3, -1)
>>> lengths_B = torch.tensor([9, 4, 0])
>>> net(SimpleNamespace(tokens_BT=tokens_BT, positions_BT=positions_BT, lengths_B=lengths_B)).shape
torch.Size([3, 2])
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
from imdbattn.nn.scores import Additive, Bilinear, Dot, ScaledDot, Score, masked_softmax, padding_mask
from imdbattn.nn.vectors import Embedding
