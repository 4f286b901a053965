"""The Lightning module: loss, metrics, exact evaluation, optimiser and schedule.

Shape suffixes: B reviews of a batch, T positions, N reviews of a split, C classes.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_accuracy

from imdbattn.data.ragged import Batch
from imdbattn.errors import UserError


@dataclass(frozen=True)
class Scores:
    """What a model said of each review of a split it was shown."""

    rows_N: Tensor  # places in the split, ascending
    labels_N: Tensor
    lengths_N: Tensor  # tokens the model read
    logits_NC: Tensor

    @property
    def accuracy(self) -> float:
        classes = self.logits_NC.shape[1]
        return multiclass_accuracy(self.logits_NC, self.labels_N, num_classes=classes, average="micro").item()

    @property
    def loss(self) -> float:
        return F.cross_entropy(self.logits_NC, self.labels_N).item()


def from_all(trainer: L.Trainer, mine: Any) -> list[Any]:
    """What each process calls this with, by rank; to be called in all of them."""
    if trainer.world_size == 1:
        return [mine]
    everyone = [None] * trainer.world_size
    torch.distributed.all_gather_object(everyone, mine)
    return everyone


class ReviewClassifier(L.LightningModule):
    """Trains and scores a classifier.

    Args:
        net: nn.classifier.Classifier, or anything called with (tokens_BT, lengths_B, positions_BT) for logits (B, C).
        optimizer: called with parameter groups.
        warmup: share of all steps in which the learning rate rises from 0.
        decay: how it falls after that: "cosine", "linear" or "none".
        embedding_lr: learning rate of tuned vectors; None takes the optimiser's own.
        label_smoothing: of the training loss (Szegedy et al. 2016, section 7).
        facts: plain values that belong to the weights and go into checkpoints: config, labels, vectors' fingerprint.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        facts: dict[str, Any],
        warmup: float = 0.0,
        decay: str = "none",
        embedding_lr: float | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.net = net
        self.make_optimizer = optimizer
        self.warmup, self.decay, self.embedding_lr = warmup, decay, embedding_lr
        self.label_smoothing = label_smoothing
        self.save_hyperparameters(facts, logger=False)
        # Our buffers are constants, alike in all processes; DDP must not broadcast into memory-mapped vectors.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]
        self.trained: list[Tensor] = []  # of each step of this epoch: sum of losses, right answers, reviews
        self.shown: list[tuple[Tensor, ...]] = []
        self.scores: Scores  # of the last validation or test

    def forward(self, batch: Batch) -> Tensor:
        return self.net(batch.tokens_BT, batch.lengths_B, batch.positions_BT)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits_BC = self(batch)
        losses_B = F.cross_entropy(logits_BC, batch.labels_B, reduction="none", label_smoothing=self.label_smoothing)
        # DDP averages over processes; so weighted, every review of the whole batch counts the same.
        loss = losses_B.sum() * (self.trainer.world_size / batch.reviews)
        right_B = logits_BC.detach().argmax(1) == batch.labels_B
        total = losses_B.detach().float().sum()  # half precision cannot count an epoch's reviews
        self.trained.append(torch.stack([total, right_B.sum().float(), total.new_full((), len(losses_B))]))
        return loss

    def on_train_epoch_end(self) -> None:
        # Lightning's own averaging would cost a millisecond a step.
        sums_3 = torch.stack(self.trained).sum(0)
        self.trained.clear()
        loss, right, reviews = self.trainer.strategy.reduce(sums_3, reduce_op="sum")
        values = {"train/loss": loss / reviews, "train/accuracy": right / reviews}
        self.log_dict(values, rank_zero_only=False, sync_dist=False)

    # Evaluation keeps (row, label, length, logits) of every review and puts them together by row: exact for any number
    # of processes, and the predictions are at hand for the comparison.

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.rows_B):
            self.shown.append((batch.rows_B, batch.labels_B, batch.lengths_B, self(batch).float()))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def gather_scores(self) -> Scores:
        """All that `shown` holds in all processes, each review once."""
        mine = tuple(torch.cat(parts).cpu() for parts in zip(*self.shown, strict=True)) if self.shown else None
        self.shown.clear()
        everyone = filter(None, from_all(self.trainer, mine))
        rows, labels, lengths, logits = (torch.cat(parts) for parts in zip(*everyone, strict=True))
        order = rows.argsort()
        if len(rows.unique()) < len(rows):
            raise RuntimeError("a review was scored twice")
        return Scores(rows[order], labels[order], lengths[order], logits[order])

    def log_scores(self, name: str) -> None:
        self.scores = self.gather_scores()
        values = {f"{name}/loss": self.scores.loss, f"{name}/accuracy": self.scores.accuracy}
        self.log_dict(values, prog_bar=name == "val", rank_zero_only=False, sync_dist=False)

    def on_validation_epoch_end(self) -> None:
        self.log_scores("val")

    def on_test_epoch_end(self) -> None:
        self.log_scores("test")

    def configure_optimizers(self) -> Any:
        tuned = getattr(self.net.embedding, "offset_RD", None)
        groups: list[dict[str, Any]] = [{"params": [p for p in self.net.parameters() if p is not tuned]}]
        if tuned is not None:
            lr = {} if self.embedding_lr is None else {"lr": self.embedding_lr}
            groups.append({"params": [tuned], **lr})
        try:
            optimizer = self.make_optimizer(groups, **self.fused())
        except (TypeError, ValueError) as error:
            raise UserError(f"optim: {error}") from error
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.lr_share(step, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def fused(self) -> dict[str, bool]:
        """`fused`, one kernel a step for all weights, for optimisers that have it and where it works."""
        known = "fused" in inspect.signature(self.make_optimizer).parameters
        chosen = "fused" in getattr(self.make_optimizer, "keywords", {})  # in optim.fused
        # Lightning does not clip the gradients of fused optimisers in mixed precision.
        works = self.trainer.precision == "32-true" and self.device.type in ("cpu", "cuda")
        recent = torch.torch_version.TorchVersion(torch.__version__) >= "2.4"
        return {"fused": True} if known and not chosen and works and recent else {}

    def lr_share(self, step: int, steps: int) -> float:
        """The share of the full learning rate at `step` of `steps`."""
        warm = round(self.warmup * steps)
        if step < warm:
            return (step + 1) / (warm + 1)
        if self.decay == "none":
            return 1.0
        done = min((step - warm) / max(steps - warm, 1), 1.0)
        return 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses weights that belong to other vectors: the ids would point to other words."""
        theirs = checkpoint.get("hyper_parameters", {}).get("vectors")
        if theirs != (ours := self.hparams["vectors"]):
            raise UserError(
                f"the checkpoint was trained on vectors with fingerprint {theirs}, but these have {ours}: "
                "set data.glove as in its run folder's config.yaml"
            )
