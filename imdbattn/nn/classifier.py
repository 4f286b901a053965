"""One classifier, put together from small parts: embed -> (+ positions) -> (CLS) -> L layers -> pool -> logits.

Shape suffixes: B reviews, T positions, D width, C classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from imdbattn.nn.attention import padding_mask
from imdbattn.nn.pooling import MeanPooling


class Classifier(nn.Module):
    """Every rung of the ladder.

    Args:
        embedding: ids (B, T) -> vectors (B, T, E), with an attribute `width` = E (nn/embedding).
        classes: number of classes C.
        positions, layer, pooling: called with the width, they give a part of nn/positions, nn/layers, nn/pooling.
        layers: how many times `layer` is stacked; 0 is none.
        width: D; None takes the vectors' own, another number puts a Linear behind them.
        dropout: share of the pooled vector's entries set to zero in training.
    """

    def __init__(
        self,
        embedding: nn.Module,
        classes: int,
        positions: Callable[[int], nn.Module],
        layer: Callable[[int], nn.Module],
        pooling: Callable[[int], MeanPooling],
        layers: int = 3,
        width: int | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        if layers < 0 or (width is not None and width < 1):
            raise ValueError(f"model.layers={layers} must be >= 0 and model.width={width} at least 1, or null")
        embedded: int = embedding.width  # type: ignore[assignment]
        width = width or embedded
        self.embedding = embedding
        self.resize = nn.Identity() if width == embedded else nn.Linear(embedded, width)
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
    ) -> Tensor:
        """Logits (B, C).

        positions_BT: where each token stood in its review; None counts from 0.
        record: a list that receives every attention's weights (B, H, Q, K) in order, pooling last.
        """
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        # An empty review reads as one <pad>, a zero vector: finite, and the same at any padding.
        mask_BT = padding_mask(lengths_B.clamp(min=1), tokens_BT.shape[1])
        x_BTD = self.positions(self.resize(self.embedding(tokens_BT)), positions_BT)
        x_BTD, mask_BT = self.pooling.prepend(x_BTD, mask_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_BT, record)
        return self.head(self.dropout(self.pooling(x_BTD, mask_BT, record)))

    pooling: MeanPooling
