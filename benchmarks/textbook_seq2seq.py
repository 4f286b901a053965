"""The encoder-decoder with attention as in courses and blogs, correct but not optimized: a baseline.

Each step of the decoder's loop projects all encoder outputs again. The weights have the same shapes as ours.
"""

import math

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """v^T tanh(W_k k + W_q q), keys projected at each call."""

    def __init__(self, hidden: int):
        super().__init__()
        self.query, self.key = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, 1, bias=False)

    def forward(self, query_BH: Tensor, outputs_BSH: Tensor) -> Tensor:
        features_BSH = torch.tanh(self.query(query_BH).unsqueeze(1) + self.key(outputs_BSH))
        return self.value(features_BSH).squeeze(-1)


class BilinearAttention(nn.Module):
    """h^T W s, keys projected at each call."""

    def __init__(self, hidden: int):
        super().__init__()
        self.key = nn.Linear(hidden, hidden, bias=False)

    def forward(self, query_BH: Tensor, outputs_BSH: Tensor) -> Tensor:
        return torch.bmm(self.key(outputs_BSH), query_BH.unsqueeze(2)).squeeze(2)


class DotAttention(nn.Module):
    """h . s, divided by sqrt(d) where `scaled`."""

    def __init__(self, hidden: int, scaled: bool = False):
        super().__init__()
        self.scale = 1 / math.sqrt(hidden) if scaled else 1.0

    def forward(self, query_BH: Tensor, outputs_BSH: Tensor) -> Tensor:
        return torch.bmm(outputs_BSH, query_BH.unsqueeze(2)).squeeze(2) * self.scale


class TextbookTranslator(nn.Module):
    """GRU encoder, GRU decoder with attention; teacher forcing by a loop over the target."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int, attention: nn.Module):
        super().__init__()
        self.source_embedding, self.target_embedding = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, hidden, layers, batch_first=True)
        self.attention = attention
        self.decoder = nn.GRU(width + hidden, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, source_BS: Tensor, lengths_B: Tensor, before_BT: Tensor) -> Tensor:
        """(B, S), (B,), (B, T) -> logits (B, T, V)."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source_embedding(source_BS), lengths_B, batch_first=True, enforce_sorted=False
        )
        outputs, state_LBH = self.encoder(packed)
        outputs_BSH, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True, total_length=source_BS.shape[1])
        logits = []
        for step in range(before_BT.shape[1]):
            embedded_B1E = self.target_embedding(before_BT[:, step : step + 1])
            scores_BS = self.attention(state_LBH[-1], outputs_BSH)
            mask_BS = torch.arange(source_BS.shape[1])[None, :] < lengths_B[:, None]
            weights_BS = torch.softmax(scores_BS.masked_fill(~mask_BS, -1e9), dim=-1)
            context_B1H = torch.bmm(weights_BS.unsqueeze(1), outputs_BSH)
            output_B1H, state_LBH = self.decoder(torch.cat([embedded_B1E, context_B1H], dim=2), state_LBH)
            logits.append(self.output(output_B1H))
        return torch.cat(logits, dim=1)
