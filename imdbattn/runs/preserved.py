"""What a run changes in a Python program that called it, restored at its end."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch.utilities.seed import isolate_rng

from imdbattn.runs.cpu import matmul_backend


@contextmanager
def preserved_torch_settings() -> Iterator[None]:
    """Restores what a run changes: random states, number of threads, deterministic kernels, and
    matrix products.
    """
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    matmul, products = matmul_backend(), getattr(matmul_backend(), "fp32_precision", None)
    try:
        with isolate_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        if matmul is not None:
            matmul.fp32_precision = products
