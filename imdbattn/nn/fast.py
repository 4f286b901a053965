"""Faster computations of the ladder's formulas, equal up to rounding. The formulas themselves are
in ladder.py and scores.py.

Shape suffixes: N sequences and heads, Q queries, K keys, d width of queries and keys, V of values.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CACHE_SCORES = 600_000  # scores that fit a CPU's caches: 2.4 MB
SAVED_SCORES = 2**25  # scores that a layer may keep for its backward pass: 134 MB


def additive_score(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Computes v . tanh(q + k) with tanh(x) = 2 sigmoid(2x) - 1, which is faster on a CPU. query,
    key: (..., d). weight: v, (1, d).
    """
    hidden = (2 * query).add(key, alpha=2).sigmoid_()
    return 2 * F.linear(hidden, weight).squeeze(-1) - weight.sum()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    extra_columns: Sequence[Tensor] | None = None,
) -> Tensor:
    """Computes softmax(scale * query key^T + extra_query extra_key^T) value over the keys where
    `mask`, which broadcasts to the scores, is True, or over all keys if it is None. extra_columns:
    extra_query and extra_key.
    """
    if extra_columns is not None:  # a product with more columns costs less than a second product
        pairs = zip((query * scale, key), extra_columns, strict=True)
        query, key = (torch.cat([x, extra.expand(*x.shape[:-1], -1)], -1) for x, extra in pairs)
        scale = 1.0
    if mask is None:
        mask = torch.ones(1, key.shape[-2], dtype=torch.bool, device=key.device)
    mask = torch.atleast_2d(mask)
    if use_blocks(query, key, value):
        return blocked_attention(query, key, value, mask, scale)
    width = value.shape[-1]
    # CUDA kernels need multiples of 8 as widths; zeros change neither scores nor other columns.
    if query.is_cuda:
        query, key, value = (
            F.pad(tensor, (0, -tensor.shape[-1] % 8)) for tensor in (query, key, value)
        )
    y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return y[..., :width]


def use_blocks(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Returns whether `blocked_attention` is applicable, and faster than torch's kernel."""
    plain = (
        query.device.type == "cpu"
        and query.dtype == torch.float32
        and not torch.is_autocast_cpu_enabled()
    )
    if not plain or query.ndim < 3 or torch.compiler.is_compiling() or not uses_onednn():
        return False
    scores = query.shape[-2] * key.shape[-2]
    saved = query.shape[:-1].numel() * key.shape[-2] if torch.is_grad_enabled() else 0
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    return alike and len(query) > 0 and 0 < scores <= CACHE_SCORES and saved <= SAVED_SCORES


def uses_onednn() -> bool:
    """Returns whether oneDNN multiplies float32 matrices, see runs/environment.use_onednn. With
    other products, blocks are slower than torch's kernel.
    """
    return getattr(matmul_backend(), "fp32_precision", "") == "bf16"


def matmul_backend() -> Any:
    """Returns torch's settings for products by oneDNN; None in versions without them."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def blocked_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Computes F.scaled_dot_product_attention faster, on a CPU for texts of a few hundred words: in
    blocks of sequences and heads whose scores fit the caches.
    """
    lead = query.shape[:-2]
    # The bias is finite, so that a query without keys does not result in NaN.
    bias = query.new_zeros(mask.shape).masked_fill_(~mask, torch.finfo(query.dtype).min)
    bias = bias.expand(*lead, *mask.shape[-2:])
    size = max(1, CACHE_SCORES // (query.shape[-2] * key.shape[-2]))
    parts = (tensor.flatten(0, -3).split(size) for tensor in (query * scale, key, value, bias))
    outputs = []
    for query_NQd, key_NKd, value_NKV, bias_NQK in zip(*parts, strict=True):
        scores_NQK = torch.baddbmm(bias_NQK, query_NQd, key_NKd.transpose(1, 2))
        outputs.append(scores_NQK.softmax(-1) @ value_NKV)
    return torch.cat(outputs).unflatten(0, lead) * mask.any(-1, keepdim=True)
