"""Greedy and beam search for the output of a decoder, for a whole batch at once.

Shape suffixes: B sequences, K beams, N = B x K, S source positions, T target positions, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from imdbattn.nn.encoder_decoder import BOS, EOS, PAD, EncoderDecoder

NEVER = slice(0, EOS)  # PAD and BOS are never predicted


class Decoded(NamedTuple):
    """The output for each source of a batch."""

    tokens_BT: Tensor  # ids up to EOS, or up to the limit without EOS; then PAD
    log_probability_B: Tensor  # sum over the symbols, including EOS


class Beams(NamedTuple):
    """The outputs in the beam of each source at the end of a search."""

    tokens_BKT: Tensor  # as in Decoded
    log_probability_BK: Tensor
    score_BK: Tensor  # log probability / symbols ** length_penalty


def limits(lengths_B: Tensor) -> Tensor:
    """Maximum number of output symbols; depends on the source's length, not on the rest of the batch."""
    return 2 * lengths_B + 10


def greedy(net: EncoderDecoder, source_BS: Tensor, lengths_B: Tensor) -> Decoded:
    """The most probable symbol at each step, until every sequence has ended or reached its limit."""
    return beam_search(net, source_BS, lengths_B, 1)


def beam_search(
    net: EncoderDecoder, source_BS: Tensor, lengths_B: Tensor, beams: int, length_penalty: float = 1.0
) -> Decoded:
    """The best output of `search_beams`."""
    result = search_beams(net, source_BS, lengths_B, beams, length_penalty)
    best_B, first_B = result.score_BK.argmax(1), torch.arange(len(source_BS), device=source_BS.device)
    return Decoded(result.tokens_BKT[first_B, best_B], result.log_probability_BK[first_B, best_B])


@torch.no_grad()
def search_beams(
    net: EncoderDecoder, source_BS: Tensor, lengths_B: Tensor, beams: int, length_penalty: float = 1.0
) -> Beams:
    """Keeps the best `beams` (K) prefixes of each output (Sutskever et al. 2014, section 3.2).

    They are ranked by log probability / symbols ** length_penalty (Wu et al. 2016, section 7, without their constant);
    an output that has ended stays in the beam until better ones replace it.
    """
    batch, device = len(source_BS), source_BS.device
    first_B = torch.arange(batch, device=device)
    state = net.encode(source_BS, lengths_B).repeat(beams)
    limit_B1 = limits(lengths_B)[:, None]
    total_BK = torch.full((batch, beams), -torch.inf, device=device)
    total_BK[:, 0] = 0  # all beams start equal, so only one is used
    size_BK = torch.zeros_like(total_BK)
    ended_BK = torch.zeros_like(total_BK, dtype=torch.bool)
    tokens_BKT = torch.empty(batch, beams, 0, dtype=torch.long, device=device)
    token_N1 = torch.full((batch * beams, 1), BOS, device=device)
    while not ended_BK.all():
        logits_N1V, state = net.decoder(token_N1, state)
        log_BKV = logits_N1V[:, 0].float().log_softmax(-1).unflatten(0, (batch, beams))
        log_BKV[..., NEVER] = -torch.inf
        # A beam that has ended has one continuation, PAD, at no cost.
        log_BKV = log_BKV.masked_fill(ended_BK[..., None], -torch.inf)
        log_BKV[..., PAD] = torch.where(ended_BK, 0.0, log_BKV[..., PAD])
        longer_BK = size_BK + ~ended_BK
        score_BKV = (total_BK[..., None] + log_BKV) / longer_BK.clamp(min=1)[..., None] ** length_penalty
        best_BK = score_BKV.flatten(1).topk(beams).indices
        parent_BK, chosen_BK = best_BK // log_BKV.shape[2], best_BK % log_BKV.shape[2]
        total_BK = (total_BK[..., None] + log_BKV).flatten(1).gather(1, best_BK)
        size_BK, ended_BK = longer_BK.gather(1, parent_BK), ended_BK.gather(1, parent_BK)
        parent_N = (first_B[:, None] * beams + parent_BK).flatten()
        # A parent has the same source, so only the recurrent state changes.
        state = state._replace(recurrent=tuple(part_LNH[:, parent_N] for part_LNH in state.recurrent))
        tokens_BKT = torch.cat([tokens_BKT.flatten(0, 1)[parent_N], chosen_BK.view(-1, 1)], 1)
        tokens_BKT = tokens_BKT.unflatten(0, (batch, beams))
        ended_BK = ended_BK | (chosen_BK == EOS) | (tokens_BKT.shape[2] >= limit_B1)
        token_N1 = chosen_BK.view(-1, 1)
    return Beams(tokens_BKT, total_BK, total_BK / size_BK**length_penalty)
