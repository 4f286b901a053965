"""The base class of the LightningModules: optimizer, schedule, sums of an epoch, evaluation."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.files import Metadata, SavedNet
from imdbattn.nn.ladder import HEAD
from imdbattn.nn.watch import BatchAttention
from imdbattn.settings.objects import instantiate
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.optim import Muon

if TYPE_CHECKING:
    from imdbattn.tasks.prediction import Prediction

Value = TypeVar("Value")
BFLOAT16 = "bf16-mixed"  # the mixed precision in which gradients are not scaled


@dataclass(frozen=True)
class SplitScores(ABC):
    """The outputs for the items of a split: what `Learner.make_scores` returns."""

    items_N: Tensor  # indices in the split, ascending

    @property
    def count(self) -> int:
        """The number of answers over which the scores are averaged: one for each item."""
        return len(self.items_N)

    @cached_property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The scores for the log and metrics.json, `loss` and `accuracy` among them."""

    def details(self) -> dict[str, object]:
        """Returns additional values for metrics.json."""
        return {}

    @abstractmethod
    def columns(self) -> Mapping[str, Any]:
        """Returns the columns of predictions.parquet: sequences of any type."""


class Step(NamedTuple):
    """A training step, or one of its batches. LossMonitor checks its loss later."""

    batch: Any
    loss: Tensor  # detached
    number: int  # number of the step, counted from 1
    epoch: int  # counted from 0
    lr: float  # learning rate of the first parameter group

    def __str__(self) -> str:
        return f"step {self.number} (epoch {self.epoch + 1}, learning rate {self.lr:.3g})"


def concatenate_padded(parts: Sequence[Tensor]) -> Tensor:
    """Concatenates tensors along dimension 0; pads matrices (B, T) with zeros to the same width."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat(
        [F.pad(part, (0, longest - part.shape[-1])) if part.ndim == 2 else part for part in parts]
    )


def from_all(trainer: L.Trainer, value: Value) -> list[Value]:
    """Gathers `value` from all processes, by rank. Must be called in all of them."""
    if trainer.world_size == 1:
        return [value]
    values: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def parameter_groups(
    net: nn.Module, embedding_lr: float | None, with_matrices: bool = False
) -> list[dict[str, Any]]:
    """Returns the parameter groups of a net. Trained vectors form a group with `lazy`, for
    LazyAdamW, and learning rate `embedding_lr`. If `with_matrices`, the matrices of hidden layers
    form a group with `matrices`, for Muon.
    """
    hidden = hidden_matrices(net) if with_matrices else []
    hidden_ids = {id(weight) for weight in hidden}
    # the offsets are in nn/beyond/tuned_vectors
    offset_ids = {id(part.offset_RD) for part in net.modules() if hasattr(part, "offset_RD")}
    others: list[Tensor] = []
    tables: list[Tensor] = []
    for parameter in net.parameters():
        if parameter.requires_grad and id(parameter) not in hidden_ids:
            (tables if id(parameter) in offset_ids else others).append(parameter)
    groups: list[dict[str, Any]] = [{"params": others}]
    if hidden:
        groups.append({"params": hidden, "matrices": True})
    if tables:
        lr = {} if embedding_lr is None else {"lr": embedding_lr}
        groups.append({"params": tables, "lazy": True} | lr)
    return groups


def hidden_matrices(net: nn.Module) -> list[Tensor]:
    """Returns the weights of all Linear layers except those named HEAD, in order: Muon is meant for
    these. Weights with one row or column count as vectors.
    """
    weights = [
        module.weight
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear)
        and name.rpartition(".")[2] != HEAD
        and min(module.weight.shape) > 1
        and module.weight.requires_grad
    ]
    return list(dict.fromkeys(weights))  # layers may share a weight


class Learner(L.LightningModule):
    """Trains a net. A subclass, named by the Task, implements `new`, `training_loss`,
    `outputs_of` and `make_scores`.

    Evaluation keeps the outputs of every item and sorts them in the order of the split: the scores
    are exact for any number of processes, and are the predictions that a run folder stores.
    Where steps are recorded, on a GPU, `training_step` makes the whole step with the recorder.

    settings: settings.schema.TrainingSettings. metadata: plain values that checkpoints contain.
    """

    curve_labels = ("training", "validation")  # of the accuracies in learning_curves.png
    scores: SplitScores  # result of `make_scores` in the last validation or test

    def __init__(self, net: nn.Module, settings: TrainingSettings, metadata: Metadata):
        super().__init__()
        self.net, self.settings = net, settings
        self.make_optimizer = instantiate(settings.optim, "optim", torch.optim.Optimizer)
        self.save_hyperparameters(metadata, logger=False)
        # Buffers are constants; DDP must not broadcast into memory-mapped vectors.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]
        # One for each batch of this epoch: sum of losses, correct answers, answers
        self.epoch_sums: list[Tensor] = []
        # The norm of the gradient in each step of this epoch, before clipping
        self.gradient_norms: list[Tensor] = []
        self.outputs: list[tuple[Tensor, ...]] = []  # the outputs of each batch
        # A tasks.recorded.StepRecorder makes the training steps where they are recorded.
        self.recorder: Any = None

    @classmethod
    def new(cls, settings: Any, corpus: Any, initial: SavedNet | None = None) -> Self:
        """Returns an untrained model. initial: the weights that will be loaded into it, if any."""
        raise NotImplementedError

    def training_loss(self, batch: Any) -> Tensor:
        """Returns the loss of a training batch, and calls `add_to_epoch` once."""
        raise NotImplementedError

    def outputs_of(self, batch: Any) -> tuple[Tensor, ...]:
        """Returns the outputs for the items of a batch: tensors (B, ...), the first of which
        contains the items' indices in their split.
        """
        raise NotImplementedError

    def make_scores(self, outputs: tuple[Tensor, ...]) -> SplitScores:
        """Returns the scores, given the outputs of a split in its order."""
        raise NotImplementedError

    def attention_and_answers(self, batch: Any) -> tuple[dict[str, BatchAttention], Tensor]:
        """Returns the attention of the net to a batch, by name, and which answers are right, (B,).
        Without attention, the dict is empty.
        """
        return {}, torch.ones(len(batch.items_B), dtype=torch.bool)

    def prediction_to_draw(self, data: Any) -> "Prediction | None":
        """Returns a prediction for an item of the scored split, to draw its attention; None draws
        nothing. data: the data module.
        """
        return None

    # --- training ---------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Returns the loss or, where steps are recorded, what `StepRecorder.train` returns."""
        return self.recorder.train(batch) if self.recorder else self.training_loss(batch)

    def backward(self, loss: Tensor, *arguments: Any, **options: Any) -> None:
        """Computes the gradients, unless the recorder has computed them already."""
        if self.recorder is None:
            super().backward(loss, *arguments, **options)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """Makes one step of the optimizer. Where steps are recorded, the closure makes all of it.

        LBFGS calls the closure several times: only the first loss and gradient norm count.
        """
        if self.recorder is not None:
            optimizer_closure()
            return
        sums, norms = len(self.epoch_sums), len(self.gradient_norms)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        del self.epoch_sums[sums + 1 :], self.gradient_norms[norms + 1 :]

    def add_to_epoch(self, losses: Tensor, right: Tensor, answers: Tensor | int) -> None:
        """Appends the sums of a batch to `epoch_sums`.

        right: whether each answer is correct. answers: the number of answers.
        """
        total = losses.detach().float().sum()  # half precision cannot count an epoch's reviews
        self.epoch_sums.append(
            torch.stack([total, right.sum().float(), total.new_zeros(()) + answers])
        )

    def epoch_means(self) -> dict[str, Tensor]:
        """Returns train/loss and train/accuracy of this epoch, over all processes; must be called
        in all of them. The result is empty if a custom training_step does not call `add_to_epoch`.
        """
        if not self.epoch_sums:
            return {}
        loss, right, answers = self.trainer.strategy.reduce(
            torch.stack(self.epoch_sums).sum(0), reduce_op="sum"
        )
        return {"train/loss": loss / answers, "train/accuracy": right / answers}

    def on_train_epoch_end(self) -> None:
        # The means are computed here: Lightning's own averaging takes a millisecond per step.
        values = self.epoch_means()
        self.epoch_sums.clear()
        if self.gradient_norms:
            norms = torch.stack(self.gradient_norms)
            values |= {"train/gradient_norm": norms.mean(), "train/gradient_norm_max": norms.max()}
            self.gradient_norms.clear()
        self.log_dict(values, rank_zero_only=False, sync_dist=False)

    # --- evaluation -------------------------------------------------------------------------------

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if len(batch.items_B):
            self.outputs.append(self.outputs_of(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def gather(self) -> tuple[Tensor, ...]:
        """Returns the outputs of all processes, in the order of the split."""
        outputs_of_rank = None
        if self.outputs:
            outputs_of_rank = tuple(
                concatenate_padded(parts).cpu() for parts in zip(*self.outputs, strict=True)
            )
        self.outputs.clear()
        gathered = filter(None, from_all(self.trainer, outputs_of_rank))
        items_N, *rest = (concatenate_padded(parts) for parts in zip(*gathered, strict=True))
        order = items_N.argsort()
        if len(items_N.unique()) < len(items_N):
            raise RuntimeError("an item was scored twice")
        return (items_N[order], *(part[order] for part in rest))

    def finish_evaluation(self, name: str) -> None:
        self.scores = self.make_scores(self.gather())
        values = {f"{name}/{key}": value for key, value in self.scores.metrics.items()}
        # `Tracker.publish` logs test scores, which are not part of the learning curve.
        is_val = name == "val"
        self.log_dict(values, is_val, logger=is_val, rank_zero_only=False, sync_dist=False)

    def on_validation_epoch_end(self) -> None:
        self.finish_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self.finish_evaluation("test")

    # --- the optimizer ----------------------------------------------------------------------------

    def configure_optimizers(self) -> Any:
        with wrapping_errors("optim"):
            optimizer = self.make_optimizer(self.optimizer_groups(), **self.fused_option())
        batches = self.trainer.estimated_stepping_batches
        if not math.isfinite(batches):
            raise UserError("the learning rate needs a number of steps: set trainer.max_epochs")
        steps = int(batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.lr_factor(step, steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Returns the parameter groups with which the optimizer is created."""
        with_matrices = issubclass(self.make_optimizer.func, Muon)
        return parameter_groups(self.net, self.settings.embedding_lr, with_matrices)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips as Lightning does, which refuses fused optimizers in mixed precision, even where
        gradients are not scaled; keeps the norm, which clipping computes.
        """
        plain = self.trainer.precision in ("32-true", "64-true", BFLOAT16)
        if not plain or (gradient_clip_algorithm or "norm") != "norm":  # an enum that is also a str
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
            norm = torch.nn.utils.clip_grad_norm_(parameters, gradient_clip_val)
            self.gradient_norms.append(norm.detach())

    def fused_option(self) -> dict[str, bool]:
        """Returns `fused`, one kernel per step for all weights, if it is supported."""
        available = "fused" in inspect.signature(self.make_optimizer).parameters
        chosen = "fused" in self.make_optimizer.keywords  # optim.fused is set
        works = self.trainer.precision in ("32-true", BFLOAT16) and self.device.type in (
            "cpu",
            "cuda",
        )
        recent = torch.__version__ >= "2.4"  # it compares numbers: it is a TorchVersion
        return {"fused": True} if available and not chosen and works and recent else {}

    def lr_factor(self, step: int, steps: int) -> float:
        """Returns the learning rate at `step` of `steps`, as a share of the full rate."""
        warm = round(self.settings.warmup * steps)
        if step < warm:
            return (step + 1) / (warm + 1)
        if self.settings.decay == "none":
            return 1.0
        done = min((step - warm) / max(steps - warm, 1), 1.0)
        return 1 - done if self.settings.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
