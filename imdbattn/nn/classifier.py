"""One classifier: embed -> (+ phrases) -> (convolve) -> (+ positions) -> (CLS) -> L layers -> pool -> logits.

Shape suffixes: B reviews, T positions, D width, C classes, W words in front of a word.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.nn.attention import padding_mask
from imdbattn.nn.beyond.phrases import Phrases
from imdbattn.nn.pooling import MeanPooling


class Classifier(nn.Module):
    """Every rung of the ladder.

    Args:
        embedding: ids (B, T) -> vectors (B, T, E), with an attribute `width` = E (nn/embedding).
        classes: number of classes C.
        phrases: those that `channels` tell of; None without any.
        positions, layer, pooling: called with the width, they give a part of nn/positions, nn/layers, nn/pooling.
        layers: how many times `layer` is stacked; 0 is none.
        width: D; None takes the vectors' own, another number puts a Linear behind them.
        dropout: share of the pooled vector's entries set to zero in training.
        convolution: called with the width, lets neighbours see each other (nn/layers); None leaves words as they are.
        channels: called with the width and the phrases, each gives a part of nn/phrases that adds to the words.
    """

    def __init__(
        self,
        embedding: nn.Module,
        classes: int,
        phrases: Phrases | None = None,
        *,
        positions: Callable[[int], nn.Module],
        layer: Callable[[int], nn.Module],
        pooling: Callable[[int], MeanPooling],
        layers: int = 3,
        width: int | None = None,
        dropout: float = 0.0,
        convolution: Callable[[int], nn.Module] | None = None,
        channels: Mapping[str, Callable[[int, Phrases], nn.Module]] | None = None,
    ):
        super().__init__()
        if layers < 0 or (width is not None and width < 1):
            raise ValueError(f"model.layers={layers} must be >= 0 and model.width={width} at least 1, or null")
        embedded: int = embedding.width  # type: ignore[assignment]
        width = width or embedded
        self.embedding = embedding
        self.resize = nn.Identity() if width == embedded else nn.Linear(embedded, width)
        self.phrases = phrases
        if phrases is not None and not channels:
            raise ValueError("model.phrases is of no use without model.channels: set it to null")
        self.channels = nn.ModuleDict()
        for name, part in (channels or {}).items():
            if phrases is None:
                raise ValueError(f"model.channels.{name} needs model.phrases")
            self.channels[name] = part(width, phrases)
        self.convolution = convolution(width) if convolution else None
        self.positions = positions(width)
        self.pooling = pooling(width)
        self.layers = nn.ModuleList(layer(width) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        positions_BT: Tensor | None = None,
        record: list[Tensor] | None = None,
        before_BTW: Tensor | None = None,
        fold_B: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, C).

        positions_BT: where each token stood in its review; None counts from 0.
        before_BTW: the words in front of each in its review, nearest first; None takes those in the batch.
        fold_B: of training reviews, the fold that each is in (nn/phrases); None of all others.
        record: a list that receives every attention's weights (B, H, Q, K) in order, pooling last.
        """
        # An empty review reads as one <pad>, a zero vector: finite, and the same at any padding.
        mask_BT = padding_mask(lengths_B.clamp(min=1), tokens_BT.shape[1])
        x_BTD = self.resize(self.embedding(tokens_BT))
        if self.phrases is not None:
            phrases_BTO = self.phrases(tokens_BT * mask_BT, before_BTW)
            for channel in self.channels.values():
                x_BTD = x_BTD + channel(phrases_BTO, self.phrases, fold_B)
        x_BTD, mask_BT = self.encode(x_BTD, mask_BT, positions_BT, record)
        return self.head(self.dropout(self.pooling(x_BTD, mask_BT, record)))

    def encode(
        self, x_BTD: Tensor, mask_BT: Tensor, positions_BT: Tensor | None = None, record: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Words (B, T, D) as they are embedded -> as the pooling reads them, and its padding mask."""
        if positions_BT is None:
            positions_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device).expand(x_BTD.shape[:2])
        if self.convolution is not None:
            x_BTD = self.convolution(x_BTD, mask_BT)
        x_BTD, mask_BT = self.pooling.prepend(self.positions(x_BTD, positions_BT), mask_BT)
        positions_BT = F.pad(positions_BT, (x_BTD.shape[1] - positions_BT.shape[1], 0), value=-1)  # of <cls>
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_BT, record, positions_BT)
        return x_BTD, mask_BT

    pooling: MeanPooling
