"""A recurrent encoder-decoder, with or without attention, and beam search for its outputs.

Shape suffixes: B sequences, S source positions, T target positions, E width of embeddings, H hidden
width, L layers, K width of projected keys, or K beams and N = B x K, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from imdbattn.nn.scores import MakeScore, masked_softmax, sequence_mask

PAD, BOS, EOS = 0, 1, 2  # ids of padding, beginning and end of sequence
NEVER = slice(0, EOS)  # PAD and BOS are never predicted
Recurrent = tuple[Tensor, ...]  # (hidden_LBH,) for a GRU, (hidden_LBH, cell_LBH) for an LSTM


class DecoderState(NamedTuple):
    """The input of a decoder's step: its recurrent state, and what it attends to."""

    recurrent: Recurrent
    outputs_BSH: Tensor  # outputs of the encoder, the values of attention
    keys_BSK: Tensor | None = None  # the outputs, projected once by the score
    mask_B1S: Tensor | None = None  # False on padding; None without padding
    weights_BTS: Tensor | None = None  # attention of the last steps; None at the start

    def repeat(self, times: int) -> "DecoderState":
        """Returns the state with each sequence repeated `times` times in a row, (B * times)."""
        recurrent = tuple(part_LBH.repeat_interleave(times, 1) for part_LBH in self.recurrent)
        rest: Any = [
            part if part is None else part.repeat_interleave(times, 0) for part in self[1:]
        ]
        return DecoderState(recurrent, *rest)


def recurrent_net(
    width: int, hidden: int, dropout: float, layers: int = 1, cell: str = "gru"
) -> nn.GRU | nn.LSTM:
    net = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
    return net(width, hidden, layers, dropout=dropout if layers > 1 else 0.0)


class Encoder(nn.Module):
    """Embeds the source and reads it with a GRU or an LSTM (Cho et al. 2014, section 2.2; Sutskever
    et al. 2014).
    """

    def __init__(
        self, vocabulary: int, width: int, hidden: int, dropout: float = 0.0, **recurrent: Any
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.net = recurrent_net(width, hidden, dropout, **recurrent)

    def forward(
        self, source_BS: Tensor, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, Recurrent]:
        """Ids (B, S) -> outputs (S, B, H), 0 after the end of a sequence, and the state (L, B, H)
        at its end.

        lengths_B: lengths of at least 1; None if all are S, which halves the time on a CPU.
        """
        embedded_SBE = self.dropout(self.embedding(source_BS)).transpose(0, 1)
        if lengths_B is None:
            outputs_SBH, state = self.net(embedded_SBE)
        elif not source_BS.is_cpu and isinstance(self.net, nn.GRU) and self.net.num_layers == 1:
            # Packing would wait for the lengths. Here the GRU reads padding, too, but after the
            # symbols; its output at a symbol is its state there.
            outputs_SBH, _ = self.net(embedded_SBE)
            last_1B1 = (lengths_B - 1)[None, :, None]
            state = outputs_SBH.gather(0, last_1B1.expand(1, -1, outputs_SBH.shape[2]))
            is_symbol_BS = sequence_mask(lengths_B, source_BS.shape[1])
            outputs_SBH = outputs_SBH * is_symbol_BS.T[..., None]
        else:  # packing skips the padding, so this is the state after the last symbol
            packed = pack_padded_sequence(embedded_SBE, lengths_B.cpu(), enforce_sorted=False)
            packed_outputs, state = self.net(packed)
            outputs_SBH, _ = pad_packed_sequence(packed_outputs, total_length=source_BS.shape[1])
        return outputs_SBH, state if isinstance(state, tuple) else (state,)


class Decoder(nn.Module):
    """Predicts each target symbol from the previous one, the recurrent state and the context.

    score: a class of nn/scores; None for no attention (Cho et al. 2014). The query is the last
    layer's previous state, keys and values are the encoder's outputs, and the context is
    concatenated to the embedded symbol (Bahdanau et al. 2015, section 3.1).
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        hidden: int,
        dropout=0.0,
        score: MakeScore | None = None,
        **recurrent: Any,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.score = None if score is None else score(hidden, hidden)
        self.net = recurrent_net(
            width if score is None else width + hidden, hidden, dropout, **recurrent
        )
        self.head = nn.Linear(hidden, vocabulary)

    def initial_state(
        self, outputs_SBH: Tensor, recurrent: Recurrent, lengths_B: Tensor | None = None
    ) -> DecoderState:
        """Returns the state before the first symbol, given the encoder's results."""
        outputs_BSH = outputs_SBH.transpose(0, 1)
        if self.score is None:
            return DecoderState(recurrent, outputs_BSH)
        outputs_BSH = outputs_BSH.contiguous()  # every step reads it
        mask_B1S = None
        if lengths_B is not None:
            mask_B1S = sequence_mask(lengths_B, len(outputs_SBH))[:, None]
        return DecoderState(recurrent, outputs_BSH, self.score.project_key(outputs_BSH), mask_B1S)

    def forward(self, tokens_BT: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Symbols (B, T) -> logits of the next symbols (B, T, V), and the state after them."""
        embedded_TBE = self.dropout(self.embedding(tokens_BT)).transpose(0, 1)
        if self.score is None:
            outputs_TBH, recurrent = self.run(embedded_TBE, state.recurrent)
            return self.head(outputs_TBH.transpose(0, 1)), state._replace(recurrent=recurrent)
        steps = []
        for embedded_1BE in embedded_TBE.split(1):
            context_B1H, weights_B1S = self.attend(state)
            input_1BI = torch.cat([embedded_1BE, context_B1H.transpose(0, 1)], dim=-1)
            output_1BH, recurrent = self.run(input_1BI, state.recurrent)
            state = state._replace(recurrent=recurrent)
            steps.append((output_1BH.transpose(0, 1), weights_B1S))
        outputs_BTH, weights_BTS = (torch.cat(step, 1) for step in zip(*steps, strict=True))
        return self.head(outputs_BTH), state._replace(weights_BTS=weights_BTS)

    def attend(self, state: DecoderState) -> tuple[Tensor, Tensor]:
        """Returns the context (B, 1, H), and the weights (B, 1, S)."""
        query_B1H = state.recurrent[0][-1][:, None]
        assert self.score is not None
        assert state.keys_BSK is not None
        scores_B1S = self.score.compare(query_B1H, state.keys_BSK)
        weights_B1S = masked_softmax(scores_B1S, state.mask_B1S)
        return weights_B1S @ state.outputs_BSH, weights_B1S

    def run(self, input_TBI: Tensor, recurrent: Recurrent) -> tuple[Tensor, Recurrent]:
        """Returns the outputs (T, B, H) and the new state of the recurrent network."""
        outputs_TBH, after = self.net(input_TBI, recurrent if len(recurrent) > 1 else recurrent[0])
        return outputs_TBH, after if isinstance(after, tuple) else (after,)


class EncoderDecoder(nn.Module):
    """An encoder and a decoder.

    source_vocabulary, target_vocabulary: their sizes, including <pad> etc. score: see Decoder.
    settings: arguments of both: width (of the embeddings), hidden (width of the states), dropout
    (of the embeddings and of outputs between layers), layers, and cell (gru or lstm).
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        score: MakeScore | None = None,
        **settings: Any,
    ):
        super().__init__()
        self.encoder = Encoder(source_vocabulary, **settings)
        self.decoder = Decoder(target_vocabulary, score=score, **settings)

    def encode(self, source_BS: Tensor, lengths_B: Tensor | None = None) -> DecoderState:
        """Returns the decoder's state before the first symbol."""
        outputs_SBH, recurrent = self.encoder(source_BS, lengths_B)
        return self.decoder.initial_state(outputs_SBH, recurrent, lengths_B)

    def forward(self, source_BS: Tensor, lengths_B: Tensor | None, target_BT: Tensor) -> Tensor:
        """Returns the logits (B, T, V) of each target symbol, given the source and the symbols
        before it (teacher forcing).
        """
        return self.decoder(shifted(target_BT), self.encode(source_BS, lengths_B))[0]

    def attention_weights(
        self, source_BS: Tensor, lengths_B: Tensor | None, target_BT: Tensor
    ) -> Tensor:
        """Returns the attention of each target symbol, (B, T, S). The decoder must have a score."""
        return self.decoder(shifted(target_BT), self.encode(source_BS, lengths_B))[1].weights_BTS


def shifted(target_BT: Tensor) -> Tensor:
    """Returns the symbol before each target symbol: BOS before the first."""
    return torch.cat([torch.full_like(target_BT[:, :1], BOS), target_BT[:, :-1]], dim=1)


class Beams(NamedTuple):
    """The best outputs for each source of a batch, best first."""

    tokens_BKT: Tensor  # ids up to EOS, or up to the limit without EOS; then PAD
    # sum over the symbols, including EOS; -inf if there are fewer outputs than beams
    log_probability_BK: Tensor
    score_BK: Tensor  # log probability / symbols ** length_penalty


@torch.no_grad()
def beam_search(
    net: EncoderDecoder,
    source_BS: Tensor,
    lengths_B: Tensor,
    beams: int = 1,
    length_penalty: float = 1.0,
) -> Beams:
    """Keeps the best `beams` (K) prefixes of each output (Sutskever et al. 2014, section 3.2).
    beams=1 is greedy search.

    Outputs, including those that have ended, are ranked by log probability / symbols **
    length_penalty (Wu et al. 2016, section 7, without their constant). They have at most 2 S + 10
    symbols, where S is the source's length.
    """
    state = net.encode(source_BS, lengths_B).repeat(beams)
    first_B1 = torch.arange(len(source_BS), device=source_BS.device)[:, None] * beams
    total_BK = source_BS.new_full((len(source_BS), beams), -torch.inf, dtype=torch.float32)
    total_BK[:, 0] = 0  # all beams start equal, so only one is used
    tokens_BKT = source_BS.new_full((len(source_BS), beams, 1), BOS)
    while True:
        ended_BK = (tokens_BKT == EOS).any(2) | (tokens_BKT.shape[2] > 2 * lengths_B + 10)[:, None]
        size_BK = (tokens_BKT[..., 1:] != PAD).sum(2)
        if ended_BK.all():
            return Beams(tokens_BKT[..., 1:], total_BK, total_BK / size_BK**length_penalty)
        logits_N1V, state = net.decoder(tokens_BKT[..., -1].view(-1, 1), state)
        log_BKV = logits_N1V[:, 0].float().log_softmax(-1).unflatten(0, total_BK.shape)
        log_BKV[..., NEVER] = -torch.inf
        # A beam that has ended has one continuation, PAD, at no cost.
        log_BKV = log_BKV.masked_fill(ended_BK[..., None], -torch.inf)
        log_BKV[..., PAD] = torch.where(ended_BK, 0.0, log_BKV[..., PAD])
        longer_BKV = total_BK[..., None] + log_BKV
        score_BKV = longer_BKV / (size_BK + ~ended_BK)[..., None] ** length_penalty
        best_BK = score_BKV.flatten(1).topk(beams).indices
        total_BK = longer_BKV.flatten(1).gather(1, best_BK)
        parent_N = (first_B1 + best_BK // log_BKV.shape[2]).flatten()
        # A parent has the same source, so only the recurrent state changes.
        state = state._replace(
            recurrent=tuple(part_LNH[:, parent_N] for part_LNH in state.recurrent)
        )
        parents_BKT = tokens_BKT.flatten(0, 1)[parent_N].view_as(tokens_BKT)
        tokens_BKT = torch.cat([parents_BKT, best_BK[..., None] % log_BKV.shape[2]], 2)
