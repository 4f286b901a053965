"""What makes a CPU faster and changes no result beyond the last bits: oneDNN's matrix products, memory that is kept."""

import ctypes
import platform
from typing import Any

import torch
from torch import Tensor

EXACT = 1e-5  # largest error of a product relative to |a| |b|; float32 stays below 1e-6, bfloat16 is at 1e-3


def errors() -> float:
    """Largest error, relative to |a| |b|, of products of the shapes that attention is made of, against float64."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens, weight, query, key, scores = (
        draw(2048, 50),
        draw(50, 50),
        draw(8, 256, 50),
        draw(8, 256, 50),
        draw(8, 256, 256),
    )
    products = [
        (tokens, weight),
        (tokens.T, tokens),
        (query, key.transpose(1, 2)),
        (scores, key),
        (scores.transpose(1, 2), key),
    ]
    return max(((a @ b - a.double() @ b.double()).abs() / (a.abs() @ b.abs())).max().item() for a, b in products)


def _choice() -> Any:
    """Torch's setting, or None: older versions have no such choice."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def products() -> str:
    """Who multiplies float32 matrices, for the record of a run."""
    return "oneDNN" if getattr(_choice(), "fp32_precision", "") == "bf16" else "torch's default"


def use_onednn() -> bool:
    """Lets oneDNN multiply float32 matrices, if that costs no accuracy; returns whether it does from now on.

    Not where a GPU trains: torch then refuses to say its precision of products, which Lightning asks for.
    On AMD processors torch's MKL computes with AVX2 where oneDNN computes with AVX-512, about twice as fast. Torch
    offers that only together with the permission to round to bfloat16, which oneDNN makes use of on processors with
    AMX. So there it stays off, and everywhere else products are compared with float64 before it stays on.
    """
    matmul = _choice()
    if matmul is None or not torch.backends.mkldnn.is_available() or torch.cpu._is_amx_tile_supported():
        return False
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    if errors() > EXACT:
        matmul.fp32_precision = before
    return matmul.fp32_precision == "bf16"


def keep_memory() -> None:
    """Lets the C library keep what was freed: else every step asks the system for some ten megabytes anew.

    Where it is glibc's; elsewhere nothing happens. A step of residual_pe on two cores gains about 8 %.
    """
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        library = ctypes.CDLL(None)
        # Older versions allow 32 MB only. Without the first call the second would make things worse.
        if library.mallopt(mmap_threshold, 2**30) or library.mallopt(mmap_threshold, 2**25):
            library.mallopt(trim_threshold, 2**31 - 1)
