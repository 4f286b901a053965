"""Attention layers and related modules. They depend only on torch and can be used in any project.

Sequences are (B, T, D). Modules are called with (x_BTD, words). `words` is None if no position is padding. Otherwise it
is a bool mask that is True on words, such as padding_mask(lengths_B, T), as in F.scaled_dot_product_attention and
inverse to the key_padding_mask of nn.MultiheadAttention; or a `Words`, which also contains positions.
"""

from imdbattn.nn.encoder_decoder import Decoder, Encoder, EncoderDecoder
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
from imdbattn.nn.search import beam_search, greedy
from imdbattn.nn.vectors import Embedding

__all__ = [
    "Additive",
    "Attention",
    "Bilinear",
    "Classifier",
    "ClsPooling",
    "Decoder",
    "Dot",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "Learned",
    "LearnedQueryPooling",
    "MeanPooling",
    "NoPositions",
    "PlainLayer",
    "Pooling",
    "ResidualLayer",
    "ScaledDot",
    "Score",
    "SelfAttention",
    "Sinusoidal",
    "TextQueryPooling",
    "Words",
    "beam_search",
    "greedy",
    "masked_softmax",
    "padding_mask",
    "sinusoids",
]

# Examples are added to the docstrings here, to keep ladder.py and scores.py short next to the formulas in the README.
EXAMPLES: dict[type, str] = {
    Words: """
    >>> from imdbattn.nn import SelfAttention, padding_mask
    >>> mask_BT = padding_mask(torch.tensor([9, 4]), 9)  # sequences of 9 and of 4 words
    >>> layer = SelfAttention(64)
    >>> layer(x_BTD, mask_BT).equal(layer(x_BTD, Words.of(x_BTD, mask_BT)))
    True""",
    Attention: """
    >>> from imdbattn.nn import ScaledDot
    >>> Attention(ScaledDot(64, 64))(query=x_BTD, key=x_BTD, value=x_BTD).shape
    torch.Size([2, 9, 64])""",
    SelfAttention: """
    >>> SelfAttention(64, heads=4)(x_BTD).shape
    torch.Size([2, 9, 64])""",
    PlainLayer: """
    >>> PlainLayer(64, dropout=0.1, heads=4)(x_BTD).shape
    torch.Size([2, 9, 64])""",
    ResidualLayer: """
    >>> ResidualLayer(64, dropout=0.1, heads=4)(x_BTD).shape
    torch.Size([2, 9, 64])""",
    NoPositions: """
    >>> NoPositions(64)(x_BTD).equal(x_BTD)
    True""",
    Sinusoidal: """
    >>> Sinusoidal(64, scale=0.2)(x_BTD).shape
    torch.Size([2, 9, 64])""",
    Learned: """
    >>> Learned(64, length=100)(x_BTD).shape
    torch.Size([2, 9, 64])""",
    Pooling: """
    >>> from imdbattn.nn import Words
    >>> class MaxPooling(Pooling):
    ...     def forward(self, x_BTD, words=None):
    ...         mask_BT = Words.of(x_BTD, words).mask_BT
    ...         return x_BTD.masked_fill(~mask_BT[..., None], -1e9).amax(1)
    >>> MaxPooling(64)(x_BTD).shape
    torch.Size([2, 64])""",
    MeanPooling: """
    >>> MeanPooling(64)(x_BTD).allclose(x_BTD.mean(1), atol=1e-6)
    True""",
    ClsPooling: """
    >>> pooling = ClsPooling(64)
    >>> x_BTD, words = pooling.prepend(x_BTD)  # the layers come between these lines
    >>> pooling(x_BTD, words).shape
    torch.Size([2, 64])""",
    LearnedQueryPooling: """
    >>> LearnedQueryPooling(64)(x_BTD).shape
    torch.Size([2, 64])""",
    TextQueryPooling: """
    >>> TextQueryPooling(64)(x_BTD).shape
    torch.Size([2, 64])""",
    Classifier: """
    >>> from functools import partial
    >>> from types import SimpleNamespace
    >>> from imdbattn.nn import MeanPooling, ResidualLayer, Sinusoidal
    >>> embedding = torch.nn.Embedding(1000, 64)  # or any module from ids (B, T) to vectors (B, T, E)
    >>> embedding.width = 64  # E
    >>> layer = partial(ResidualLayer, heads=4)
    >>> net = Classifier(embedding, 2, positions=Sinusoidal, layer=layer, pooling=MeanPooling, layers=2)
    >>> tokens_BT, positions_BT = torch.randint(1000, (3, 9)), torch.arange(9).expand(3, -1)
    >>> lengths_B = torch.tensor([9, 4, 0])
    >>> net(SimpleNamespace(tokens_BT=tokens_BT, positions_BT=positions_BT, lengths_B=lengths_B)).shape
    torch.Size([3, 2])""",
    Score: """
    >>> from imdbattn.nn import SelfAttention
    >>> class Nearness(Score):
    ...     def compare(self, query, projected):
    ...         return -torch.cdist(query, projected)
    >>> SelfAttention(64, heads=4, score=Nearness)(x_BTD).shape
    torch.Size([2, 9, 64])""",
    **{
        score: f"""
    >>> {score.__name__}(64, 64)(x_BTD, x_BTD).shape  # each query with each key
    torch.Size([2, 9, 9])"""
        for score in (Dot, ScaledDot, Bilinear, Additive)
    },
}
for part, example in EXAMPLES.items():
    start = f">>> import torch\n    >>> from imdbattn.nn import {part.__name__}\n    >>> x_BTD = torch.randn(2, 9, 64)"
    part.__doc__ = f"{part.__doc__}\n\n    {start}{example}\n    "
