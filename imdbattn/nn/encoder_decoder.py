"""An encoder-decoder of recurrent nets, without and with attention.

Shape suffixes: B sequences, S source positions, T target positions, E width of embeddings, H hidden width, L layers,
K width of projected keys, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from imdbattn.data.vocabulary import BOS, PAD
from imdbattn.nn.attention import masked_softmax, padding_mask

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}
Recurrent = tuple[Tensor, ...]  # hidden_LBH, and of an LSTM memory_LBH


class State(NamedTuple):
    """What a decoder goes by: what the encoder has said, which stays, and its own recurrent state, which goes on."""

    outputs_BSH: Tensor  # the encoder's outputs: the values that are attended to
    recurrent: Recurrent
    keys_BSK: Tensor | None = None  # the outputs as the score takes them, projected once
    mask_B1S: Tensor | None = None  # True where there is a source symbol; None where nothing is padded

    def repeat(self, times: int) -> "State":
        """The state of each sequence so many times, one beside the other."""
        recurrent = tuple(part_LBH.repeat_interleave(times, 1) for part_LBH in self.recurrent)
        keys, mask = (None if part is None else part.repeat_interleave(times, 0) for part in self[2:])
        return State(self.outputs_BSH.repeat_interleave(times, 0), recurrent, keys, mask)


def recurrent_net(cell: str, width: int, hidden: int, layers: int, dropout: float) -> nn.GRU | nn.LSTM:
    """Raises ValueError for a cell that is none, or sizes below 1."""
    if cell not in CELLS:
        raise ValueError(f"model.cell={cell} is unknown; choose one of {', '.join(CELLS)}")
    return CELLS[cell](width, hidden, layers, dropout=dropout if layers > 1 else 0.0)


class Encoder(nn.Module):
    """Embeds the source and reads it by a GRU or an LSTM (Cho et al. 2014, section 2.2; Sutskever et al. 2014)."""

    def __init__(
        self, vocabulary: int, width: int, hidden: int, layers: int = 1, cell: str = "gru", dropout: float = 0.0
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.net = recurrent_net(cell, width, hidden, layers, dropout)

    def forward(self, source_BS: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, Recurrent]:
        """Ids (B, S) -> outputs (S, B, H), 0 behind a sequence's end, and the state (L, B, H) at its end.

        lengths_B: symbols of each sequence, at least 1; None where all have S, which takes half the time on a CPU:
            the backward pass of a packed sequence makes zeros of the whole batch at each step.
        """
        embedded_SBE = self.dropout(self.embedding(source_BS)).transpose(0, 1)
        if lengths_B is None:
            outputs_SBH, state = self.net(embedded_SBE)
        else:  # packed, so that the state is that of the last symbol, and padding is never read
            packed = pack_padded_sequence(embedded_SBE, lengths_B.cpu(), enforce_sorted=False)
            packed_outputs, state = self.net(packed)
            outputs_SBH, _ = pad_packed_sequence(packed_outputs, total_length=source_BS.shape[1])
        return outputs_SBH, state if isinstance(state, tuple) else (state,)


class Decoder(nn.Module):
    """Writes the target symbol by symbol, each from the one before, its own state and what it attends to.

    score: a scoring function of nn/attention, called with the widths of query and key; None attends to nothing, and
        the encoder's last state is all there is (Cho et al. 2014). With one, at each step the last layer's state of the
        step before is the query, the encoder's outputs are keys and values, and the context, their weighted sum, is
        joined to the embedded symbol (Bahdanau et al. 2015, section 3.1; scores of Luong et al. 2015, section 3.1).
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        hidden: int,
        layers: int = 1,
        cell: str = "gru",
        dropout: float = 0.0,
        score: Callable[[int, int], nn.Module] | None = None,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.score = None if score is None else score(hidden, hidden)
        self.net = recurrent_net(cell, width if score is None else width + hidden, hidden, layers, dropout)
        self.output = nn.Linear(hidden, vocabulary)

    def start(self, outputs_SBH: Tensor, recurrent: Recurrent, lengths_B: Tensor | None = None) -> State:
        """The state before the first symbol, from what the encoder returns. Keys are projected here, once."""
        outputs_BSH = outputs_SBH.transpose(0, 1)
        if self.score is None:
            return State(outputs_BSH, recurrent)
        outputs_BSH = outputs_BSH.contiguous()  # every step reads it
        mask_B1S = None if lengths_B is None else padding_mask(lengths_B, len(outputs_SBH))[:, None]
        return State(outputs_BSH, recurrent, self.score.project_key(outputs_BSH), mask_B1S)  # type: ignore[operator]

    def forward(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        """Symbols (B, T) -> logits of the next ones (B, T, V), the state behind them, attention weights (B, T, S).

        One symbol at a time or all of a known target at once (teacher forcing): the logits are the same.
        """
        embedded_TBE = self.dropout(self.embedding(tokens_BT)).transpose(0, 1)
        if self.score is None:
            outputs_TBH, recurrent = self.run(embedded_TBE, state.recurrent)
            return self.output(outputs_TBH.transpose(0, 1)), state._replace(recurrent=recurrent), None
        outputs, weights = [], []
        for embedded_1BE in embedded_TBE.split(1):
            context_B1H, weights_B1S = self.attend(state)
            input_1BI = torch.cat([embedded_1BE, context_B1H.transpose(0, 1)], dim=-1)
            output_1BH, recurrent = self.run(input_1BI, state.recurrent)
            state = state._replace(recurrent=recurrent)
            outputs.append(output_1BH)
            weights.append(weights_B1S)
        outputs_BTH = torch.cat(outputs).transpose(0, 1)
        return self.output(outputs_BTH), state, torch.cat(weights, dim=1)

    def attend(self, state: State) -> tuple[Tensor, Tensor]:
        """Context (B, 1, H) and weights (B, 1, S) of the query that the state is."""
        query_B1H = state.recurrent[0][-1][:, None]
        scores_B1S = self.score.compare(query_B1H, state.keys_BSK)  # type: ignore[union-attr,operator]
        weights_B1S = masked_softmax(scores_B1S, state.mask_B1S)
        return weights_B1S @ state.outputs_BSH, weights_B1S

    def run(self, input_TBI: Tensor, recurrent: Recurrent) -> tuple[Tensor, Recurrent]:
        """Outputs (T, B, H) of the recurrent net, and its state."""
        outputs_TBH, after = self.net(input_TBI, recurrent if len(recurrent) > 1 else recurrent[0])
        return outputs_TBH, after if isinstance(after, tuple) else (after,)


class EncoderDecoder(nn.Module):
    """The two put together.

    Args:
        source_vocabulary, target_vocabulary: their sizes, markers included.
        width: of the embeddings. hidden: of the recurrent nets, the same in both. layers: of each.
        cell: gru (Cho et al. 2014) or lstm (Hochreiter & Schmidhuber 1997).
        dropout: share of embeddings, and of what passes between layers, that is set to zero in training.
        score: see Decoder.
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        width: int,
        hidden: int,
        layers: int = 1,
        cell: str = "gru",
        dropout: float = 0.0,
        score: Callable[[int, int], nn.Module] | None = None,
    ):
        super().__init__()
        self.encoder = Encoder(source_vocabulary, width, hidden, layers, cell, dropout)
        self.decoder = Decoder(target_vocabulary, width, hidden, layers, cell, dropout, score)

    def encode(self, source_BS: Tensor, lengths_B: Tensor | None = None) -> State:
        """The decoder's state before the first symbol."""
        outputs_SBH, recurrent = self.encoder(source_BS, lengths_B)
        return self.decoder.start(outputs_SBH, recurrent, lengths_B)

    def forward(
        self, source_BS: Tensor, lengths_B: Tensor | None, target_BT: Tensor
    ) -> tuple[Tensor, State, Tensor | None]:
        """Teacher forcing: logits (B, T, V) of each target symbol, given the source and the symbols before it."""
        before_BT = torch.cat([torch.full_like(target_BT[:, :1], BOS), target_BT[:, :-1]], dim=1)
        return self.decoder(before_BT, self.encode(source_BS, lengths_B))
