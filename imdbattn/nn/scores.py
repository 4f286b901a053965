"""Scoring functions of attention, and the masked softmax of their scores.

Shape suffixes: B sequences, Q queries, K keys, d width; `...` stands for any leading dimensions,
such as (B, H).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from imdbattn.nn.fast import additive_score as fast_additive_score


def sequence_mask(lengths_B: Tensor, size: int) -> Tensor:
    """Returns (B, size) bool, True on the first `lengths_B` positions."""
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


def at_least_one(lengths_B: Tensor) -> Tensor:
    """Returns the lengths, but 1 for an empty review, which is read as one <pad>. Its vector is
    zero, so the output is finite and independent of padding.
    """
    return lengths_B.clamp(min=1)


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the softmax of `scores` (..., Q, K) over the keys where `mask`, broadcast, is True.

    A query without any key gets zero weights and finite gradients, not NaN (pytorch issue 41508).
    """
    if mask is None:
        return scores.softmax(-1)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) * mask  # a row without keys is uniform before the product


class Score(nn.Module):
    """Base class. A decoder calls `project_key` once, and `compare` at each step."""

    def __init__(self, query_width: int = 0, key_width: int = 0):
        super().__init__()

    def project_key(self, key: Tensor) -> Tensor:
        """Returns the part of the score that depends on the keys alone."""
        return key

    def compare(self, query: Tensor, projected: Tensor) -> Tensor:
        """(..., Q, d) and the projected keys (..., K, d) -> scores (..., Q, K)."""
        raise NotImplementedError

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """(..., Q, d) and (..., K, d) -> scores (..., Q, K)."""
        return self.compare(query, self.project_key(key))


MakeScore = Callable[[int, int], Score]  # called with the widths of query and key


class Dot(Score):
    """score(q, k) = q . k, for equal widths  (Luong et al. 2015, section 3.1, "dot")."""

    scale = 1.0

    def project_query(self, query: Tensor) -> Tensor:
        """Projects the query; subclasses override it. The score is scale * projected . key."""
        return query

    def compare(self, query: Tensor, projected: Tensor) -> Tensor:
        return self.project_query(query) @ projected.transpose(-2, -1) * self.scale


class ScaledDot(Dot):
    """score(q, k) = q . k / sqrt(d)  (Vaswani et al. 2017, equation 1)."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__(query_width, key_width)
        self.scale = 1 / math.sqrt(key_width)


class Bilinear(Dot):
    """score(q, k) = q^T W k  (Luong et al. 2015, section 3.1, "general")."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__(query_width, key_width)
        self.weight = nn.Linear(query_width, key_width, bias=False)

    def project_query(self, query: Tensor) -> Tensor:
        return self.weight(query)


# The scores that are scale * project_query(query) . key. A subclass may compute another score.
PRODUCT_SCORES = (Dot, ScaledDot, Bilinear)


class Additive(Score):
    """score(q, k) = v^T tanh(W_q q + W_k k)  (Bahdanau et al. 2015, A.1.2). It needs memory for
    Q x K x hidden numbers.
    """

    def __init__(self, query_width: int, key_width: int, hidden: int | None = None):
        super().__init__()
        hidden = hidden or key_width
        self.query = nn.Linear(query_width, hidden, bias=False)
        self.key = nn.Linear(key_width, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)

    def project_key(self, key: Tensor) -> Tensor:
        return self.key(key)

    def compare(self, query: Tensor, projected: Tensor) -> Tensor:
        query, key = self.query(query)[..., :, None, :], projected[..., None, :, :]
        if query.device.type != "cpu":
            return self.v(torch.tanh(query + key)).squeeze(-1)
        return fast_additive_score(query, key, self.v.weight)  # this computes the same faster
