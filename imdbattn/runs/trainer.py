"""Lightning's Trainer, and settings of torch that make a CPU faster without changing results beyond the last bits."""

import ctypes
import logging
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.seed import isolate_rng

from imdbattn.runs.callbacks import Progress
from imdbattn.runs.checkpoint import AtomicCheckpointIO
from imdbattn.settings.keys import as_dict
from imdbattn.tasks.build import make

MAX_ERROR = 1e-5  # of a product, relative to |a| |b|; float32 stays below 1e-6, bfloat16 is at 1e-3
IGNORED_WARNINGS = (
    "does not have many workers",
    "is smaller than the logging interval",
    "but have no `val_dataloader`",
    "your dataloader is not resumable",  # our sampler is
    "You requested to overfit but enabled .* shuffling",  # the items are the same in every epoch
    "sync_dist=True",  # the logged values are the same in all processes
    "Checkpoint directory .* exists and is not empty",
    "Experiment logs directory .* exists and is not empty",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
)


def quiet() -> None:
    """Silences Lightning's hints about unused devices, workers and similar."""
    for message in IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", f".*{message}.*")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def preserved_torch_settings() -> Iterator[None]:
    """Restores what a run changes: random states, number of threads, deterministic kernels, and matrix products."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    matmul, products = _matmul_backend(), getattr(_matmul_backend(), "fp32_precision", None)
    try:
        with isolate_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        if matmul is not None:
            matmul.fp32_precision = products


def build_trainer(
    settings: Any,
    callbacks: Sequence[L.Callback] = (),
    checkpoint_io: AtomicCheckpointIO | None = None,
    **arguments: Any,
) -> L.Trainer:
    """The Trainer that the `trainer` settings describe; `arguments` are further ones."""
    trainer_class = make({**as_dict(settings), "_partial_": True}, "trainer", L.Trainer)
    # With `deterministic` torch fills new memory with NaN; nothing here reads uninitialized memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    callbacks = [*callbacks, *(trainer_class.keywords.get("callbacks") or ())]
    if settings["enable_progress_bar"]:
        callbacks.append(Progress())
    plugins: list[Any] = [checkpoint_io or AtomicCheckpointIO()]
    if SLURMEnvironment.detect():
        plugins.append(SLURMEnvironment(auto_requeue=False))  # ResumeCheckpoint requeues, between two steps
    arguments |= {"callbacks": callbacks, "plugins": plugins, "enable_progress_bar": False}
    trainer = trainer_class(use_distributed_sampler=False, logger=False, **arguments)
    if isinstance(trainer.accelerator, CPUAccelerator):
        use_onednn()
        keep_memory()
    return trainer


def compile_net(net: torch.nn.Module, backend: str) -> None:
    """Compiles the net at its first step; the names of its weights do not change."""
    how = {"mode": backend} if backend == "reduce-overhead" else {"backend": backend}
    net.compile(dynamic=True, **how)


def use_onednn() -> bool:
    """Lets oneDNN multiply float32 matrices if that keeps their precision; returns whether it does.

    Not where there is a GPU: torch then raises an error when Lightning reads the precision of products.
    On AMD processors torch's MKL uses AVX2 where oneDNN uses AVX-512, about twice as fast. Torch offers oneDNN only
    together with the permission to round to bfloat16, which oneDNN uses on processors with AMX: those are excluded,
    and elsewhere products are first compared with float64.
    """
    matmul = _matmul_backend()
    unsuitable = torch.cuda.is_available() or torch.cpu._is_amx_tile_supported()
    if matmul is None or unsuitable or not torch.backends.mkldnn.is_available():
        return False
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    if product_error() > MAX_ERROR:
        matmul.fp32_precision = before
    return matmul.fp32_precision == "bf16"


def float32_products() -> str:
    """Which library multiplies float32 matrices, for environment.json."""
    return "oneDNN" if getattr(_matmul_backend(), "fp32_precision", "") == "bf16" else "torch's default"


def _matmul_backend() -> Any:
    """Torch's setting; None in older versions."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def product_error() -> float:
    """Largest error, relative to |a| |b|, of products with the shapes of attention, against float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2048, 50), (50, 50), (8, 256, 50), (8, 256, 50), (8, 256, 256))
    tokens, weight, query, key, scores = (torch.randn(*shape, generator=generator) for shape in shapes)
    products = [(tokens, weight), (tokens.T, tokens), (query, key.mT), (scores, key), (scores.mT, key)]
    return max(((a @ b - a.double() @ b.double()).abs() / (a.abs() @ b.abs())).max().item() for a, b in products)


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
