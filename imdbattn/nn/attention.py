"""Masked softmax, the four scoring functions of the field, attention, and multi-head self-attention.

Shape suffixes: B reviews, T positions, D width, H heads, Q queries, K keys, d width of one head, V width of values, W
columns more.
`...` stands for any leading dimensions: (B,) or (B, H).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def padding_mask(lengths_B: Tensor, size: int) -> Tensor:
    """(B, size) bool, True where a position holds a word and False where it is padding."""
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the last dimension of `scores` (..., Q, K), only over the keys where `mask` is True.

    `mask` broadcasts against `scores`. A row without any key gets zero weights, not NaN, and passes finite
    gradients (pytorch issue 41508 tells what happens otherwise).
    """
    if mask is None:
        return scores.softmax(-1)
    # The lowest finite number instead of -inf: a row without keys becomes uniform, and the second line clears it.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) * mask


class Dot(nn.Module):
    """score(q, k) = q . k  (Luong et al. 2015, section 3.1, "dot")."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__()
        if query_width != key_width:
            raise ValueError(f"a dot product needs one width, got query {query_width} and key {key_width}")
        self.scale = 1.0

    def project(self, query: Tensor) -> Tensor:
        """The query as it meets the keys: all scores of this family are `scale * project(query) . key`."""
        return query

    def project_key(self, key: Tensor) -> Tensor:
        """What of the keys serves every query: a decoder, which asks at each step, computes it once."""
        return key

    def compare(self, query: Tensor, projected: Tensor) -> Tensor:
        """(..., Q, d) and what `project_key` made of the keys -> scores (..., Q, K)."""
        return self.project(query) @ projected.transpose(-2, -1) * self.scale

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """(..., Q, d) and (..., K, d) -> scores (..., Q, K)."""
        return self.compare(query, self.project_key(key))


class ScaledDot(Dot):
    """score(q, k) = q . k / sqrt(d)  (Vaswani et al. 2017, equation 1)."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__(query_width, key_width)
        self.scale = 1 / math.sqrt(key_width)


class Bilinear(Dot):
    """score(q, k) = q^T W k  (Luong et al. 2015, section 3.1, "general")."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__(key_width, key_width)
        self.weight = nn.Linear(query_width, key_width, bias=False)

    def project(self, query: Tensor) -> Tensor:
        return self.weight(query)


class Additive(nn.Module):
    """score(q, k) = v^T tanh(W_q q + W_k k)  (Bahdanau et al. 2015, appendix A.1.2).

    Holds a tensor of Q x K x `hidden` per review (and head): meant for few queries or short texts.
    Computed by tanh x = 2 sigmoid(2x) - 1, for on a CPU torch's sigmoid takes a tenth of its tanh's time.
    """

    def __init__(self, query_width: int, key_width: int, hidden: int | None = None):
        super().__init__()
        hidden = hidden or key_width
        self.query = nn.Linear(query_width, hidden, bias=False)
        self.key = nn.Linear(key_width, hidden, bias=False)
        self.value = nn.Linear(hidden, 1, bias=False)

    def project_key(self, key: Tensor) -> Tensor:
        """2 W_k k, which serves every query."""
        return 2 * self.key(key)

    def compare(self, query: Tensor, projected: Tensor) -> Tensor:
        """(..., Q, query_width) and what `project_key` made of the keys -> scores (..., Q, K)."""
        hidden = (2 * self.query(query)).unsqueeze(-2) + projected.unsqueeze(-3)
        return 2 * self.value(hidden.sigmoid()).squeeze(-1) - self.value.weight.sum()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """(..., Q, query_width) and (..., K, key_width) -> scores (..., Q, K)."""
        return self.compare(query, self.project_key(key))


IN_CACHE = 600_000  # scores that a CPU's caches hold: 2.4 MB
IN_MEMORY = 2**25  # scores that a layer may hold for its backward pass: 134 MB


class InPieces(torch.autograd.Function):
    """softmax(Q K^T + bias) V by plain matrix products over a few reviews at a time, forward and backward.

    So few that their scores stay in the cache between the products and the softmax. N reviews and heads:
    query_NQd, key_NKd, value_NKV; bias_N1K or bias_NQK is added to the scores, without a gradient.
    """

    @staticmethod
    def forward(ctx, query_NQd: Tensor, key_NKd: Tensor, value_NKV: Tensor, bias_N1K: Tensor) -> Tensor:
        size = max(1, IN_CACHE // (query_NQd.shape[1] * key_NKd.shape[1]))
        output_NQV = value_NKV.new_empty(*query_NQd.shape[:2], value_NKV.shape[2])
        pieces = zip(*(t.split(size) for t in (query_NQd, key_NKd, value_NKV, bias_N1K, output_NQV)), strict=True)
        weights = []
        for query, key, value, bias, output in pieces:
            weight = torch.baddbmm(bias, query, key.transpose(1, 2)).softmax(-1)
            torch.bmm(weight, value, out=output)
            if any(ctx.needs_input_grad):
                weights.append(weight)
        ctx.size = size
        ctx.save_for_backward(query_NQd, key_NKd, value_NKV, *weights)
        return output_NQV

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output_NQV: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weights = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        gradients = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs]
        pieces = zip(*(t.split(ctx.size) for t in (*inputs, d_output_NQV, *gradients)), weights, strict=True)
        for query, key, value, d_output, d_query, d_key, d_value, weight in pieces:
            # (d^T P)^T instead of P^T d: to turn a (T, d) matrix costs less than to turn a (T, T) one.
            d_value.copy_((d_output.transpose(1, 2) @ weight).transpose(1, 2))
            d_weight = d_output @ value.transpose(1, 2)
            d_scores = torch._softmax_backward_data(d_weight, weight, -1, weight.dtype)
            torch.bmm(d_scores, key, out=d_query)
            d_key.copy_((query.transpose(1, 2) @ d_scores).transpose(1, 2))
        return *gradients, None


def attention_in_pieces(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """What F.scaled_dot_product_attention returns, on a CPU and for texts of some hundred words in less time."""
    lead = query.shape[:-2]
    mask = query.new_ones(1, key.shape[-2], dtype=torch.bool) if mask is None else mask
    # Added by the product itself; the lowest finite number, so that a query without any key makes no NaN.
    bias = query.new_zeros(mask.shape).masked_fill_(~mask, torch.finfo(query.dtype).min)
    bias = bias.expand(*lead, *mask.shape[-2:])
    parts = (tensor.flatten(0, -3) for tensor in (query * scale, key, value, bias))
    return InPieces.apply(*parts).unflatten(0, lead) * mask.any(-1, keepdim=True)


def fits_in_pieces(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `attention_in_pieces` takes these and is the better choice."""
    plain = query.device.type == "cpu" and query.dtype == torch.float32 and not torch.is_autocast_cpu_enabled()
    if not plain or torch.compiler.is_compiling() or query.ndim < 3:
        return False
    scores = query.shape[-2] * key.shape[-2]
    kept = query.shape[:-1].numel() * key.shape[-2] if torch.is_grad_enabled() else 0
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    return alike and len(query) > 0 and 0 < scores <= IN_CACHE and kept <= IN_MEMORY


def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """F.scaled_dot_product_attention; on a GPU with zeros behind widths that its fused kernels do not take."""
    width = value.shape[-1]
    if query.is_cuda:  # they want multiples of 8; zeros change neither the scores nor the other columns
        query, key, value = (F.pad(tensor, (0, -tensor.shape[-1] % 8)) for tensor in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)[..., :width]


def join(columns: Tensor, more: Tensor) -> Tensor:
    """(..., T, d) and (..., T, W) -> (..., T, d + W); dimensions of size 1 of the second are repeated."""
    return torch.cat([columns, more.expand(*columns.shape[:-1], -1)], -1)


class Attention(nn.Module):
    """Weighted sum of values, weights = masked softmax of the scores over the keys.

    Unless the weights themselves are asked for, the dot-product family runs on torch's fused kernel, or on a CPU in
    pieces where the scores of one review fit its cache.
    """

    def __init__(self, score: nn.Module):
        super().__init__()
        self.score = score

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        record: list[Tensor] | None = None,
        added: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """(..., Q, d), (..., K, d), (..., K, V) -> (..., Q, V).

        mask: bool, broadcasts to (..., Q, K), True where a key may be attended to; a query without any key gets 0.
        record: a list to which the weights (..., Q, K) are appended; None where nobody looks.
        added: (..., Q, W) and (..., K, W), whose products are added to the scores.
        """
        if record is None and isinstance(self.score, Dot):
            query, scale = self.score.project(query), self.score.scale
            if added is not None:  # one product gives both: more columns cost less than more scores
                query, key, scale = join(query * scale, added[0]), join(key, added[1]), 1.0
            kernel = attention_in_pieces if fits_in_pieces(query, key, value) else fused_attention
            return kernel(query, key, value, mask, scale)
        scores = self.score(query, key)
        if added is not None:
            scores = scores + added[0] @ added[1].transpose(-2, -1)
        weights = masked_softmax(scores, mask)
        if record is not None:
            record.append(weights.detach())
        return weights @ value


class SelfAttention(nn.Module):
    """Multi-head self-attention f: every word asks all words of its review (Vaswani et al. 2017, section 3.2.2).

    Without the output projection W_O of that paper: on every rung the next thing is g, a Linear of the same shape.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        score: Callable[[int, int], nn.Module] = ScaledDot,
        distances: Callable[[int], nn.Module] | None = None,
    ):
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"model.layer.heads={heads} does not divide the width {width}")
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention = Attention(score(width // heads, width // heads))
        self.distances = distances(heads) if distances else None

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor,
        record: list[Tensor] | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D); `mask_BT` is the padding mask, `record` receives the weights (B, H, T, T).

        positions_BT: where each word stands, which only `distances` ask for.
        """

        def split(x_BTD: Tensor) -> Tensor:
            return x_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q_BHTd, k_BHTd, v_BHTd = split(self.query(x_BTD)), split(self.key(x_BTD)), split(self.value(x_BTD))
        # (B, 1, 1, K) broadcasts over heads and queries; an expanded mask doubles the time on CPU.
        added = self.distances(positions_BT) if self.distances is not None else None
        y_BHTd = self.attention(q_BHTd, k_BHTd, v_BHTd, mask_BT[:, None, None], record, added)
        return y_BHTd.transpose(1, 2).flatten(2)


def rollout(record: list[Tensor], skips: list[bool]) -> Tensor:
    """How much of each input position reaches the pooled vector, by attention rollout (Abnar & Zuidema 2020, eq. 1).

    record: weights (B, H, T, T) of each layer, then (B, 1, 1, T) of the pooling, as `Classifier.forward` fills it.
    skips: for each layer whether x is added to what it attends to; such a layer counts as (A + I) / 2.
    Returns (B, T), each row summing to 1.
    """
    *layers, share_B1T = (weights.mean(1) for weights in record)
    for weights_BTT, skip in zip(reversed(layers), reversed(skips), strict=True):
        passed_B1T = share_B1T @ weights_BTT
        share_B1T = (passed_B1T + share_B1T) / 2 if skip else passed_B1T
    return share_B1T.squeeze(1)
