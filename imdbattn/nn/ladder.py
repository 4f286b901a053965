"""The ladder: embed -> + positions -> (<cls>) -> L layers of self-attention -> pool -> logits.

Shape suffixes: B reviews, T positions, D width, C classes; H heads, Q queries, K keys, d width of
one head, V width of the values; in embeddings, V rows of the vectors, E their width. A suffix 1 is
a dimension of size 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.nn.fast import attention as fast_attention
from imdbattn.nn.scores import (
    PRODUCT_SCORES,
    MakeScore,
    ScaledDot,
    at_least_one,
    masked_softmax,
    sequence_mask,
)

PAD, UNK = 0, 1  # ids of padding and of words without a vector
FIRST_WORD = 2  # words[i] of the vocabulary has id i + FIRST_WORD

MakePart = Callable[[int], nn.Module]  # makes a part of width D
MakeDistances = Callable[[int], nn.Module]  # makes the distances of H heads
Columns = tuple[Tensor, Tensor]  # further columns of query and key, (..., Q, W) and (..., K, W)


class WordPositions(NamedTuple):
    """The padding mask of x_BTD, and the positions in the review: layers, positions and poolings
    receive it. Words and <cls> may be attended to, padding may not.
    """

    mask_BT: Tensor  # bool, False on padding
    positions_BT: Tensor  # int64 index of each word in its review; -1 for <cls>; unused on padding

    @classmethod
    def of(cls, mask_BT: Tensor) -> "WordPositions":
        """Numbers the words of a mask 0, 1, 2 and so on."""
        return cls(mask_BT, mask_BT.cumsum(1).clamp(min=1) - 1)

    @property
    def key_mask_B11T(self) -> Tensor:
        """Which keys every head and query may attend to, (B, 1, 1, T) bool."""
        return self.mask_BT[:, None, None]  # an expanded mask would double the time on a CPU


class Attention(nn.Module):
    """y = softmax(score(q, k)) v: the sum of the values, weighted by the softmax over the keys."""

    def __init__(self, score: nn.Module):
        super().__init__()
        self.score: Any = score

    def attention_weights(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        extra_columns: Columns | None = None,
    ) -> Tensor:
        """softmax(score(q, k)), (..., Q, K); the arguments are the same as for `forward`."""
        scores = self.score(query, key)
        if extra_columns is not None:
            scores = scores + extra_columns[0] @ extra_columns[1].transpose(-2, -1)
        return masked_softmax(scores, mask)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        extra_columns: Columns | None = None,
    ) -> Tensor:
        """(..., Q, d), (..., K, d), (..., K, V) -> (..., Q, V).

        mask: bool, broadcasts to (..., Q, K), True where a key may be attended to; the output for a
        query without any key is 0 (NaN in kernels of torch before 2.5).
        extra_columns: extra_q and extra_k, whose products are added to the scores.
        """
        if type(self.score) not in PRODUCT_SCORES:
            return self.attention_weights(query, key, value, mask, extra_columns) @ value
        # This computes the same faster.
        query = self.score.project_query(query)
        return fast_attention(query, key, value, mask, self.score.scale, extra_columns)


class SelfAttention(nn.Module):
    """f(x) = softmax(Q K^T / sqrt(d)) V with Q = x W_q, K = x W_k, V = x W_v.

    Vaswani et al. 2017, section 3.2.2. Their output projection W_O is omitted: with one head, it is
    a part of W_v; for several heads see nn/beyond/attention.
    heads: number of heads, which must divide the width. score: called with the widths of query and
    key of a head, such as a class of nn/scores. distances: called with the number of heads, such as
    a class of nn/beyond/attention.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        score: MakeScore = ScaledDot,
        distances: MakeDistances | None = None,
    ):
        super().__init__()
        if width % heads:
            raise ValueError(f"heads={heads} does not divide the width {width}")
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention = Attention(score(width // heads, width // heads))
        self.distances = distances(heads) if distances else None

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        q_BHTd, k_BHTd, v_BHTd = self.project(x_BTD, words)
        extra_columns = None if self.distances is None else self.distances(words.positions_BT)
        y_BHTd = self.attention(q_BHTd, k_BHTd, v_BHTd, words.key_mask_B11T, extra_columns)
        return y_BHTd.transpose(1, 2).flatten(2)

    def project(self, x_BTD: Tensor, words: WordPositions) -> tuple[Tensor, ...]:
        """Returns the queries, keys and values of all heads, (B, H, T, d)."""
        projected = self.query(x_BTD), self.key(x_BTD), self.value(x_BTD)
        return tuple(y_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y_BTD in projected)


class PlainLayer(nn.Module):
    """x <- g(f(x)), f self-attention, g Linear, ReLU and dropout. attention: arguments of f."""

    skip = False  # whether x itself is added to f(x)
    attention_class: type[SelfAttention] = SelfAttention  # the class of f

    def __init__(self, width: int, dropout: float = 0.0, **attention: Any):
        super().__init__()
        self.f = self.attention_class(width, **attention)
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return self.g(self.f(x_BTD, words))


class ResidualLayer(PlainLayer):
    """x <- g(x + f(LN(x))): raw x on the skip connection, LayerNorm (Ba et al. 2016) only on the
    input of f.
    """

    skip = True

    def __init__(self, width: int, **settings: Any):
        super().__init__(width, **settings)
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return self.g(x_BTD + self.f(self.norm(x_BTD), words))


class NoPositions(nn.Identity):
    """Returns x unchanged: the model does not see the order of the words."""

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:  # type: ignore[override]
        return x_BTD


def sinusoids(length: int, width: int) -> Tensor:
    """Returns (length, width): pe[i, h] = sin(i / 10000^(h/d)) for even h, cos(i / 10000^((h-1)/d))
    for odd h.

    Vaswani et al. 2017, 3.5. Frequencies are float32: the error is below 2e-5 up to position 512.
    """
    i_T1, h_D = torch.arange(length, dtype=torch.float64)[:, None], torch.arange(width)
    angle_TD = i_T1 / 10000 ** ((h_D - h_D % 2) / width)
    return torch.where(h_D % 2 == 0, angle_TD.sin(), angle_TD.cos()).float()


class SinusoidalPositions(nn.Module):
    """x + scale * pe; the paper's scale is 1. A sinusoid has variance 1/2 per dimension, a
    standardized word 1.

    length: number of positions; later ones use the last one. The table is not in the checkpoint.
    """

    pe_TD: Tensor

    def __init__(self, width: int, scale: float = 1.0, length: int = 8192):
        super().__init__()
        self.scale = scale
        self.register_buffer("pe_TD", scale * sinusoids(length, width), persistent=False)

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return x_BTD + self.pe_TD[words.positions_BT.clamp(max=len(self.pe_TD) - 1)]


class LearnedPositions(nn.Module):
    """x + a learned vector for each of `length` positions, initialized from N(0, std^2) (Gehring et
    al. 2017, section 3.1). For a longer review, torch raises an error: on a CPU, IndexError.
    """

    def __init__(self, width: int, length: int, std: float = 0.2):
        super().__init__()
        self.table = nn.Embedding(length, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return x_BTD + self.table(words.positions_BT)


class Pooling(nn.Module):
    """Base class: reduces the vectors of a review to one, (B, T, D) -> (B, D)."""

    shows_attention = True  # whether its weights are learned, so that pictures and curves show them

    def __init__(self, width: int):
        super().__init__()

    def prepend(self, x_BTD: Tensor, words: WordPositions) -> tuple[Tensor, WordPositions]:
        """Returns the input of the layers: the words, after any vectors that the pooling adds."""
        return x_BTD, words


def equal_weights(x_BTD: Tensor, words: WordPositions) -> Tensor:
    """Returns (B, 1, 1, T), for one head and one query: 1 / length on each word, 0 on padding."""
    mask_B11T = words.key_mask_B11T
    return masked_softmax(torch.zeros_like(mask_B11T, dtype=x_BTD.dtype), mask_B11T)


class MeanPooling(Pooling):
    """The mean of the words."""

    shows_attention = False

    def attention_weights(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return equal_weights(x_BTD, words)

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return (self.attention_weights(x_BTD, words)[:, 0] @ x_BTD).squeeze(1)


class ClsPooling(Pooling):
    """The output of a learned vector <cls> before the words, see `prepend` (Devlin et al. 2019)."""

    shows_attention = False

    def __init__(self, width: int):
        super().__init__(width)
        self.cls_D = nn.Parameter(torch.randn(width))

    def prepend(self, x_BTD: Tensor, words: WordPositions) -> tuple[Tensor, WordPositions]:
        cls_B1D = self.cls_D.expand(x_BTD.shape[0], 1, -1).to(x_BTD.dtype)
        mask_BT = F.pad(words.mask_BT, (1, 0), value=True)
        positions_BT = F.pad(words.positions_BT, (1, 0), value=-1)
        return torch.cat([cls_B1D, x_BTD], 1), WordPositions(mask_BT, positions_BT)

    def attention_weights(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        # All the weight is on <cls>.
        return torch.eye(1, x_BTD.shape[1]).to(x_BTD).expand(x_BTD.shape[0], 1, 1, -1)

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        return x_BTD[:, 0]


class LearnedQueryPooling(Pooling):
    """sum_t softmax(score(q, x_t)) x_t with one learned query q."""

    def __init__(self, width: int, score: MakeScore = ScaledDot):
        super().__init__(width)
        self.query_D = nn.Parameter(torch.zeros(width))  # equal weights at first
        self.attention = Attention(score(width, width))

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        query_B11D = self.query_D.to(x_BTD.dtype).expand(x_BTD.shape[0], 1, 1, -1)
        x_B1TD = x_BTD[:, None]  # one head
        return self.attention(query_B11D, x_B1TD, x_B1TD, words.key_mask_B11T)[:, 0, 0]


class TextQueryPooling(Pooling):
    """sum_t softmax(score(q, W_k x_t)) W_v x_t with the query q = W_q mean(x)."""

    def __init__(self, width: int, score: MakeScore = ScaledDot):
        super().__init__(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention = Attention(score(width, width))

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        x_B1TD = x_BTD[:, None]  # one head
        query_B11D = self.query(equal_weights(x_BTD, words) @ x_B1TD)
        k_B1TD, v_B1TD = self.key(x_B1TD), self.value(x_B1TD)
        return self.attention(query_B11D, k_B1TD, v_B1TD, words.key_mask_B11T)[:, 0, 0]


# The name of the last layer of a network. Muon, which trains the matrices of hidden layers, leaves
# it to another rule (tasks/learner), and `init` does not copy it to another task (tasks/weights).
HEAD = "head"


class Classifier(nn.Module):
    """Embeds the words, adds positions, applies `layers` layers, pools, and computes the logits.

    embedding: ids (B, T) -> vectors (B, T, E), with an attribute `width` = E, see `Embedding`.
    positions, layer, pooling: each is called with the width D and returns one of the parts above.
    width: D, by default E. If it differs from E, a Linear layer follows the vectors.
    dropout: share of the pooled vector's entries set to zero in training.
    context: called with D, returns a module applied before positions are added (nn/beyond/context).
    """

    def __init__(
        self,
        embedding: nn.Module,
        classes: int,
        *,
        positions: MakePart,
        layer: MakePart,
        pooling: Callable[[int], Pooling],
        layers: int = 3,
        width: int | None = None,
        dropout: float = 0.0,
        context: MakePart | None = None,
    ):
        super().__init__()
        embedded: int = embedding.width  # type: ignore[assignment]
        width = width or embedded
        self.embedding = embedding
        self.resize = nn.Identity() if width == embedded else nn.Linear(embedded, width)
        self.context = context(width) if context else None
        self.positions = positions(width)
        self.pooling = pooling(width)
        self.layers = nn.ModuleList(layer(width) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, batch: Any) -> Tensor:
        """Returns the logits (B, C). batch: a data.ragged.Batch, and what `context` needs."""
        x_BTD, words = self.encode(self.embedding(batch.tokens_BT), batch)
        return self.head(self.dropout(self.pooling(x_BTD, words)))

    def encode(self, x_BTE: Tensor, batch: Any) -> tuple[Tensor, WordPositions]:
        """Embedded words (B, T, E) -> the input of the pooling."""
        mask_BT = sequence_mask(at_least_one(batch.lengths_B), x_BTE.shape[1])
        words = WordPositions(mask_BT, batch.positions_BT)
        x_BTD = self.resize(x_BTE)
        if self.context is not None:
            x_BTD = self.context(x_BTD, words, batch)
        x_BTD, words = self.pooling.prepend(self.positions(x_BTD, words), words)
        for layer in self.layers:
            x_BTD = layer(x_BTD, words)
        return x_BTD, words


class Embedding(nn.Module):
    """x = (vectors[token] - mean) / std. nn/beyond/tuned_vectors adds a learned offset.

    vectors_VD: row 0 is <pad>, row 1 is <unk>, then the words. It is never written to, and the
    checkpoint contains only its fingerprint (tasks/reviews/module).
    shift_D, scale_D: mean and 1 / std; (0, 1) leaves the vectors unchanged.

    <pad> is zero. <unk> is learned, initially zero: the mean of standardized words.
    """

    vectors_VD: Tensor
    shift_D: Tensor
    scale_D: Tensor

    def __init__(self, vectors_VD: Tensor, shift_D: Tensor, scale_D: Tensor):
        super().__init__()
        self.width = vectors_VD.shape[1]
        self.register_buffer("vectors_VD", vectors_VD, persistent=False)
        self.register_buffer("shift_D", shift_D)
        self.register_buffer("scale_D", scale_D)
        self.unk_D = nn.Parameter(torch.zeros(self.width))

    def word_vectors(self, tokens_BT: Tensor) -> Tensor:
        """Returns (B, T, D); the vectors of <pad> and <unk> are not used."""
        return (F.embedding(tokens_BT, self.vectors_VD) - self.shift_D) * self.scale_D

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Ids (B, T) -> (B, T, D)."""
        x_BTD = self.word_vectors(tokens_BT)
        # These are products, because torch.where takes several times as long.
        is_word_BT, is_unknown_BT = tokens_BT >= FIRST_WORD, tokens_BT == UNK
        return x_BTD * is_word_BT[..., None] + is_unknown_BT[..., None] * self.unk_D
