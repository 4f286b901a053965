"""The settings of torch that are restored after training from Python."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch.utilities.seed import isolate_rng

from imdbattn.nn.fast import matmul_backend


@contextmanager
def preserved_torch_settings() -> Iterator[None]:
    """Restores what a run changes: random states, the number of threads, deterministic kernels,
    whether new memory is filled, and the precision of matrix products.
    """
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    matmul, products = matmul_backend(), getattr(matmul_backend(), "fp32_precision", None)
    try:
        with isolate_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        if matmul is not None:
            matmul.fp32_precision = products
