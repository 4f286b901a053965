"""Lightning's Trainer."""

import logging
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
from imdbattn.runs.process import keep_memory, matmul_backend, use_onednn
from imdbattn.settings.keys import as_dict
from imdbattn.tasks.build import make

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
    matmul, products = matmul_backend(), getattr(matmul_backend(), "fp32_precision", None)
    try:
        with isolate_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        if matmul is not None:
            matmul.fp32_precision = products


def build_trainer(settings: Any, callbacks: Sequence[L.Callback] = (), **arguments: Any) -> L.Trainer:
    """The Trainer that the `trainer` settings describe; `arguments` are further ones."""
    settings = as_dict(settings)
    own_callbacks = make(settings.pop("callbacks", None) or [], "trainer.callbacks", L.Callback)
    trainer_class = make({**settings, "_partial_": True}, "trainer", L.Trainer)
    # With `deterministic` torch fills new memory with NaN; nothing here reads uninitialized memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    callbacks = [*callbacks, *own_callbacks, *([Progress()] if settings["enable_progress_bar"] else [])]
    plugins: list[Any] = [AtomicCheckpointIO()]
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
