"""Lightning's Trainer, and one step before training."""

import copy
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from imdbattn.errors import UserError, naming
from imdbattn.runs.callbacks import Progress
from imdbattn.runs.environment import keep_memory, use_onednn
from imdbattn.runs.resume import AtomicCheckpointIO
from imdbattn.settings.objects import load_class, make
from imdbattn.settings.schema import Trainer, Training
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.recorded import obstacle_in_settings

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
    "GPU available but not used",  # ddp_cpu
)


def quiet() -> None:
    """Silences Lightning's hints about unused devices, workers and similar."""
    for message in IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", f".*{message}.*")
    for name in (
        "lightning.pytorch.utilities.rank_zero",
        "lightning.pytorch.accelerators.cuda",
        "lightning.fabric",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)


def build_trainer(
    settings: Trainer,
    callbacks: Sequence[L.Callback] = (),
    **arguments: object,
) -> L.Trainer:
    """Returns the Trainer that the `trainer` settings describe; `arguments` are further ones."""
    values = settings.given()
    trainer_class = load_class(values.pop("_target_"), "trainer._target_", L.Trainer)
    own_callbacks = make(values.pop("callbacks", None) or [], "trainer.callbacks", L.Callback)
    own_plugins = make(values.pop("plugins", None) or [], "trainer.plugins", object)
    # such as a strategy that is given with its own arguments
    values = make(values, "trainer", object)
    # With `deterministic` torch fills new memory with NaN; nothing here reads uninitialized memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    callbacks = [
        *callbacks,
        *own_callbacks,
        *([Progress()] if settings.enable_progress_bar else []),
    ]
    plugins: list[object] = [AtomicCheckpointIO(), *own_plugins]
    if SLURMEnvironment.detect():
        # ResumeCheckpoint requeues, between two steps
        plugins.append(SLURMEnvironment(auto_requeue=False))
    arguments |= {"callbacks": callbacks, "plugins": plugins, "enable_progress_bar": False}
    ours: dict[str, Any] = {"use_distributed_sampler": False, "logger": False, **arguments}
    with naming("trainer"):
        trainer = trainer_class(**(values | ours))
    if isinstance(trainer.accelerator, CPUAccelerator):
        use_onednn()
        keep_memory()
    return trainer


def check_hardware(cfg: Training) -> None:
    """Raises UserError if the settings need a GPU or a job of SLURM that is not there, or
    recorded steps where they are not possible.

    It is called before data are read.
    """
    instead = "use trainer=ddp_cpu, or trainer=cpu for one process"
    accelerator, machines = cfg.trainer.accelerator, cfg.trainer.num_nodes
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
    if cfg.record_steps is True and (obstacle := obstacle_in_settings(cfg)):
        raise UserError(f"record_steps=true: {obstacle}")


def compile_net(net: torch.nn.Module, backend: str) -> None:
    """Compiles the net at its first step; the names of its weights do not change."""
    how = {"mode": backend} if backend == "reduce-overhead" else {"backend": backend}
    net.compile(dynamic=True, **how)


# --- a step before training: the model and its optimizer may be of one's own ----------------------


def try_step(module: Learner, data: BatchData, trainer: L.Trainer) -> None:
    """Evaluates a copy of the module on two training items, and trains it on them for one step.

    Raises UserError that names the part which fails or returns a wrong shape, which could be
    broadcast without an error. The module and the random states stay the same.
    """
    # Buffers that are not in checkpoints are constants, such as memory-mapped vectors: they are not
    # copied.
    saved = module.state_dict().keys()
    constants = {id(buffer): buffer for name, buffer in module.named_buffers() if name not in saved}
    batches, device = data.train_batches(), trainer.strategy.root_device
    with isolate_rng():
        trial = copy.deepcopy(module, constants).to(device)
        trial.trainer = trainer
        for key, part, shape, method in trial.parts():
            name = f"{key} ({type(part).__module__}.{type(part).__qualname__})"
            with naming(name):
                setattr(part, method, partial(checked, getattr(part, method), name, shape))
        with naming(f"model={module.cfg.model.name} fails on two training items"):
            items = batches[0, np.arange(min(2, len(batches)))]
            batch = trial.transfer_batch_to_device(items, device, 0)
            trial.eval().evaluate_batch(batch)
            loss: Tensor = trial.train().training_step(batch, 0)
            loss.backward()
        with naming("optim"):
            optimizer: Any = trial.make_optimizer(trial.parameter_groups())
            optimizer.step(lambda: loss)


def checked(
    method: Callable[..., object], name: str, shape: Callable[..., tuple[int, ...]], *inputs: Tensor
) -> Tensor:
    """Calls a method of the part `name`. shape: of its output, given its inputs."""
    with naming(name):
        output, expected = method(*inputs), tuple(shape(*inputs))
        if not isinstance(output, Tensor) or output.shape != expected:
            returned = type(output).__name__
            if isinstance(output, Tensor):
                returned = f"shape {tuple(output.shape)}"
            raise ValueError(f"it returns {returned} instead of {expected}")
        return output
