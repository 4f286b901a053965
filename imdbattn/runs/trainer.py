"""Lightning's Trainer, and the check of custom parts before training.

Shape suffixes: B items of a batch, T positions, D vector width.
"""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.nn.ladder import Attention, Classifier
from imdbattn.runs.callbacks import Progress, evaluation_mode, fixed_batches
from imdbattn.runs.resume import AtomicCheckpointIO
from imdbattn.settings.objects import import_class, make
from imdbattn.settings.schema import TrainerSettings, TrainingSettings

RECORDED_ON = (CUDAAccelerator,)  # training steps are recorded on these
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
    settings: TrainerSettings,
    callbacks: Sequence[L.Callback] = (),
    **arguments: object,
) -> L.Trainer:
    """Returns the Trainer that the `trainer` settings describe, with further `arguments`."""
    values = settings.given()
    trainer_class = import_class(values.pop("_target_"), "trainer._target_", L.Trainer)
    user_callbacks = callbacks_of(values.pop("callbacks", None))
    user_plugins = make(values.pop("plugins", None) or [], "trainer.plugins", object)
    # A strategy, for example, may be given with its own arguments.
    values = make(values, "trainer", object)
    has_user_bar = any(isinstance(callback, ProgressBar) for callback in user_callbacks)
    callbacks = [*callbacks, *user_callbacks]
    callbacks.append(Progress(has_bar=settings.enable_progress_bar and not has_user_bar))
    plugins: list[object] = [AtomicCheckpointIO(), *user_plugins]
    if SLURMEnvironment.detect():
        # RunState requeues the job between two steps.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    arguments |= {"callbacks": callbacks, "plugins": plugins, "enable_progress_bar": has_user_bar}
    ours: dict[str, Any] = {
        "use_distributed_sampler": False,
        "logger": False,
        "num_sanity_val_steps": 0,  # CheckParts checks before anything is written
        **arguments,
    }
    with wrapping_errors("trainer"):
        trainer = trainer_class(**(values | ours))
    if isinstance(trainer.accelerator, RECORDED_ON):
        from imdbattn.tasks.recorded import RecordSteps

        trainer.callbacks.append(RecordSteps())  # type: ignore[attr-defined]
    return trainer


def callbacks_of(settings: Any) -> list[L.Callback]:
    """Returns the callbacks of trainer.callbacks: a list, a mapping of names, or one callback."""
    made = make(settings or [], "trainer.callbacks", L.Callback)
    if isinstance(made, Mapping):
        made = [callback for callback in made.values() if callback is not None]
    return made if isinstance(made, list) else [made]


def check_hardware(settings: TrainingSettings) -> None:
    """Raises UserError if the settings need a GPU or a job of SLURM that is not there, or
    recorded steps where they are not possible.

    It is called before data are read.
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
    has_cuda = accelerator != "cpu" and torch.cuda.is_available()
    kind = CUDAAccelerator if has_cuda else CPUAccelerator
    if settings.record_steps is True and kind not in RECORDED_ON:
        raise UserError("record_steps=true: only steps on a CUDA device can be recorded")


# --- custom parts ---------------------------------------------------------------------------------


class CheckParts(L.Callback):
    """Evaluates two validation items before anything is written.

    Raises UserError that names the part which fails or returns a wrong shape, which could be
    broadcast without an error.
    """

    @torch.no_grad()
    def on_fit_start(self, trainer: Any, module: Any) -> None:
        (batch,) = fixed_batches(trainer.datamodule, 2)
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        precision = trainer.precision_plugin.val_step_context()
        with ExitStack() as checks, precision, isolate_rng(), evaluation_mode(module.net):
            for part in parts_of(module.net):
                checks.enter_context(part.checked())
            module.evaluate_batch(batch)


class NamedPart(NamedTuple):
    """A part of a network (docs/own_parts.md).

    setting: the setting that names it. shape: shape of the output, given the inputs. method: the
    method that is called.
    """

    setting: str
    module: nn.Module
    shape: Callable[..., tuple[int, ...]]
    method: str = "forward"

    @contextmanager
    def checked(self) -> Iterator[None]:
        """In this context, each call of the part checks the shape of the output."""
        kind = type(self.module)
        name = f"{self.setting} ({kind.__module__}.{kind.__qualname__})"
        with wrapping_errors(name):  # a score, for example, may have no `compare`
            method = getattr(self.module, self.method)
        own = vars(self.module).get(self.method)  # such as a compiled `forward`

        def call(*inputs: Tensor) -> Tensor:
            with wrapping_errors(name):
                output, expected = method(*inputs), self.shape(*inputs)
                if output.shape != expected:
                    raise ValueError(
                        f"it returns shape {tuple(output.shape)} instead of {tuple(expected)}"
                    )
            return output

        setattr(self.module, self.method, call)
        try:
            yield
        finally:
            if own is None:
                delattr(self.module, self.method)  # the method of its class is called again
            else:
                setattr(self.module, self.method, own)


def parts_of(net: nn.Module) -> Iterator[NamedPart]:
    """Yields the parts of a network that settings name."""
    for owner in net.modules():
        score = getattr(owner, "score", None)
        if isinstance(owner, Classifier):
            yield NamedPart("model.net.positions", owner.positions, same_shape)
            for layer in owner.layers:
                yield NamedPart("model.net.layer", layer, same_shape)
            if type(owner.head) is nn.Linear:  # another head may read several vectors
                yield NamedPart("model.net.pooling", owner.pooling, pooled_shape)
            if (mixer := getattr(owner.context, "mixer", None)) is not None:
                yield NamedPart("model.mixer", mixer, same_shape)
        elif isinstance(owner, Attention):
            yield NamedPart("score", owner.score, shape_of_scores)
        elif isinstance(score, nn.Module):  # the decoder of pairs
            yield NamedPart("model.net.score", score, shape_of_scores, "compare")


def same_shape(x_BTD: Tensor, *_: object) -> tuple[int, ...]:
    return x_BTD.shape


def pooled_shape(x_BTD: Tensor, *_: object) -> tuple[int, ...]:
    return x_BTD.shape[::2]


def shape_of_scores(query: Tensor, key: Tensor) -> tuple[int, ...]:
    return *query.shape[:-1], key.shape[-2]
