"""Faster products and memory on a CPU, with the same results up to rounding of float32."""

import ctypes
import platform
from typing import Any

import torch

MAX_ERROR = 1e-5  # of a product, relative to |a| |b|; float32 stays below 1e-6, bfloat16 is at 1e-3


def use_onednn() -> bool:
    """Lets oneDNN multiply float32 matrices if that keeps their precision; returns whether it does.

    Not where there is a GPU: torch then raises an error when Lightning reads the precision of
    products. On AMD processors torch's MKL uses AVX2 where oneDNN uses AVX-512, about twice as
    fast. Torch offers oneDNN only together with the permission to round to bfloat16, which oneDNN
    uses on processors with AMX: those are excluded, and elsewhere products are first compared with
    float64.
    """
    matmul = matmul_backend()
    unsuitable = torch.cuda.is_available() or torch.cpu._is_amx_tile_supported()
    if matmul is None or unsuitable or not torch.backends.mkldnn.is_available():
        return False
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    if product_error() > MAX_ERROR:
        matmul.fp32_precision = before
    return matmul.fp32_precision == "bf16"


def float32_products() -> str:
    """Returns which library multiplies float32 matrices, for environment.json."""
    return (
        "oneDNN" if getattr(matmul_backend(), "fp32_precision", "") == "bf16" else "torch's default"
    )


def matmul_backend() -> Any:
    """Returns torch's setting; None in older versions."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def product_error() -> float:
    """Returns the largest error, relative to |a| |b|, of products with the shapes of attention,
    against float64.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = ((2048, 50), (50, 50), (8, 256, 50), (8, 256, 50), (8, 256, 256))
    tokens, weight, query, key, scores = (
        torch.randn(*shape, generator=generator) for shape in shapes
    )
    products = [
        (tokens, weight),
        (tokens.T, tokens),
        (query, key.mT),
        (scores, key),
        (scores.mT, key),
    ]
    return max(
        ((a @ b - a.double() @ b.double()).abs() / (a.abs() @ b.abs())).max().item()
        for a, b in products
    )


def keep_memory() -> None:
    """Lets glibc keep freed memory; otherwise every step requests about ten megabytes again.

    A step of residual_pe on two cores becomes about 8% faster. Does nothing with other C libraries.
    """
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        library = ctypes.CDLL(None)
        # Older versions allow 32 MB only. The second call alone would make things slower.
        if library.mallopt(mmap_threshold, 2**30) or library.mallopt(mmap_threshold, 2**25):
            library.mallopt(trim_threshold, 2**31 - 1)
