"""Lightning's Trainer."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.plugins.environments import SLURMEnvironment

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.runs.callbacks import EpochLine
from imdbattn.runs.run_state import AtomicCheckpointIO
from imdbattn.settings.objects import import_class, instantiate
from imdbattn.settings.schema import TrainerSettings, TrainingSettings

IGNORED_WARNINGS = (
    "is smaller than the logging interval",
    "your dataloader is not resumable",  # our sampler is resumable
    "You requested to overfit but enabled .* shuffling",  # the items are the same in every epoch
    # A run may end before its first validation; the last weights are then scored.
    "could not find the monitored key",
    "Early stopping conditioned on metric",
    "sync_dist=True",  # the logged values are the same in all processes
    "Checkpoint directory .* exists and is not empty",
    "Experiment logs directory .* exists and is not empty",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    "GPU available but not used",  # trainer=ddp_cpu does so
)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences Lightning's hints about unused devices, workers and similar."""
    names = ("pytorch.utilities.rank_zero", "pytorch.accelerators.cuda", "fabric")
    loggers = [logging.getLogger(f"lightning.{name}") for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in IGNORED_WARNINGS:
            warnings.filterwarnings("ignore", f".*{message}.*")
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def build_trainer(
    settings: TrainerSettings, callbacks: Sequence[L.Callback] = (), **arguments: object
) -> L.Trainer:
    """Returns the Trainer that the `trainer` settings describe. `arguments`, and what the package
    needs, replace settings of the same names.
    """
    values = settings.dump()
    trainer_class = import_class(values.pop("_target_"), "trainer._target_", L.Trainer)
    user_callbacks = callbacks_of(values.pop("callbacks", None))
    user_plugins = instantiate(values.pop("plugins", None) or [], "trainer.plugins", object)
    # A strategy, for example, may be given with its own arguments.
    values = instantiate(values, "trainer", object)
    has_user_bar = any(isinstance(callback, ProgressBar) for callback in user_callbacks)
    callbacks = [*callbacks, *user_callbacks]
    if settings.enable_progress_bar and not has_user_bar and sys.stderr.isatty():
        from imdbattn.runs.epoch_bar import EpochBar

        callbacks.append(EpochBar())
    callbacks.append(EpochLine())
    plugins: list[object] = [AtomicCheckpointIO(), *user_plugins]
    if SLURMEnvironment.detect():
        # RunState requeues the job between two steps.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    arguments |= {"callbacks": callbacks, "plugins": plugins, "enable_progress_bar": has_user_bar}
    ours: dict[str, Any] = {
        "use_distributed_sampler": False,
        "logger": False,
        "num_sanity_val_steps": 0,  # TryParts checks custom parts before anything is written
        **arguments,
    }
    with wrapping_errors("trainer"):
        trainer = trainer_class(**(values | ours))
    if isinstance(trainer.accelerator, CUDAAccelerator):
        from imdbattn.tasks.recorded import RecordSteps

        trainer.callbacks.append(RecordSteps())  # type: ignore[attr-defined]
    return trainer


def callbacks_of(settings: Any) -> list[L.Callback]:
    """Returns the callbacks in trainer.callbacks: a list, a mapping of names, or one callback."""
    made = instantiate(settings or [], "trainer.callbacks", L.Callback)
    if isinstance(made, Mapping):
        made = [callback for callback in made.values() if callback is not None]
    return made if isinstance(made, list) else [made]


def check_hardware(settings: TrainingSettings) -> None:
    """Raises UserError if the settings need a GPU or a SLURM job that is missing. It is called
    before data are read.
    """
    instead = "use trainer=ddp_cpu, or trainer=cpu for one process"
    accelerator, machines = settings.trainer.accelerator, settings.trainer.num_nodes
    has_gpu = torch.cuda.is_available() or (
        accelerator == "gpu" and torch.backends.mps.is_available()
    )
    if accelerator in ("gpu", "cuda") and not has_gpu:
        raise UserError(f"trainer.accelerator={accelerator}: there is no GPU; {instead}")
    started = SLURMEnvironment.detect() or "MASTER_ADDR" in os.environ
    if machines > 1 and not started:
        raise UserError(
            f"trainer.num_nodes={machines}: this process was started by neither srun nor torchrun;"
            f" {instead}"
        )
