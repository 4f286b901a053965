"""The Lightning modules: loss, metrics, exact evaluation, optimiser and schedule.

Shape suffixes: B reviews of a batch, T positions, N reviews of a split, C classes.
"""

import inspect
import math
from collections.abc import Callable, Sequence
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

    def values(self) -> dict[str, float]:
        """What is logged, and stands in metrics.json."""
        return {"accuracy": self.accuracy, "loss": self.loss}

    def columns(self) -> dict[str, Any]:
        """What predictions.parquet says of each review: label, predicted class, its probability, all, tokens read."""
        probabilities_NC = self.logits_NC.double().softmax(1)
        probability_N, predicted_N = probabilities_NC.max(1)
        return {
            "label": self.labels_N.numpy(),
            "predicted": predicted_N.numpy(),
            "probability": probability_N.numpy(),
            "probabilities": list(probabilities_NC.numpy()),
            "length": self.lengths_N.numpy(),
        }


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors one behind the other; of sequences (B, T) that differ in length the shorter ones get zeros."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, longest - part.shape[-1])) if part.ndim == 2 else part for part in parts])


def from_all(trainer: L.Trainer, mine: Any) -> list[Any]:
    """What each process calls this with, by rank; to be called in all of them."""
    if trainer.world_size == 1:
        return [mine]
    everyone = [None] * trainer.world_size
    torch.distributed.all_gather_object(everyone, mine)
    return everyone


TABLES = ("offset_RD", "table_HD")  # parameters of which a batch touches few rows: words' and phrases' vectors


def tables_apart(net: nn.Module, lr: float | None) -> list[dict[str, Any]]:
    """Parameter groups: all of the net that train, but for tables of vectors, which have a learning rate of their own.

    lr: theirs; None takes the optimiser's. LazyAdamW moves only the rows that a batch has used; others know no `lazy`.
    """
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            groups[name.rpartition(".")[2] in TABLES].append(parameter)
    rest, tables = groups
    found: list[dict[str, Any]] = [{"params": rest}]
    return [*found, {"params": tables, "lazy": True, **({} if lr is None else {"lr": lr})}] if tables else found


class Learner(L.LightningModule):
    """What all tasks have in common: optimiser, schedule, the sums of an epoch, and exact evaluation.

    Args:
        net: what is trained.
        optimizer: called with parameter groups.
        facts: plain values that belong to the weights and go into checkpoints, the config among them.
        warmup: share of all steps in which the learning rate rises from 0.
        decay: how it falls after that: "cosine", "linear" or "none".
        label_smoothing: of the training loss (Szegedy et al. 2016, section 7).
        embedding_lr: learning rate of tables of vectors, if the net has any; None takes the optimiser's own.
    """

    scores: Any  # of the last validation or test, each item once: what `read_scores` made of it

    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        facts: dict[str, Any],
        warmup: float = 0.0,
        decay: str = "none",
        label_smoothing: float = 0.0,
        embedding_lr: float | None = None,
    ):
        super().__init__()
        self.net = net
        self.make_optimizer = optimizer
        self.warmup, self.decay = warmup, decay
        self.label_smoothing, self.embedding_lr = label_smoothing, embedding_lr
        self.save_hyperparameters(facts, logger=False)
        # Our buffers are constants, alike in all processes; DDP must not broadcast into memory-mapped vectors.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]
        self.trained: list[Tensor] = []  # of each step of this epoch: sum of losses, right answers, answers
        self.shown: list[tuple[Tensor, ...]] = []  # of each batch of this evaluation: what `show` returned

    def show(self, batch: Any) -> tuple[Tensor, ...]:
        """What evaluation keeps of each item: tensors (B, ...), the first of which are the items' rows."""
        raise NotImplementedError

    def read_scores(self, shown: tuple[Tensor, ...]) -> Any:
        """What all batches have shown, each item once and in the order of the split, as an object with `values()`."""
        raise NotImplementedError

    def note(self, losses: Tensor, right: Tensor, answers: Tensor | int) -> None:
        """Adds a step to the sums of the epoch: losses, which answers were right, how many answers there were."""
        total = losses.detach().float().sum()  # half precision cannot count an epoch's reviews
        self.trained.append(torch.stack([total, right.sum().float(), total.new_zeros(()) + answers]))

    def on_train_epoch_end(self) -> None:
        # Lightning's own averaging would cost a millisecond a step.
        sums_3 = torch.stack(self.trained).sum(0)
        self.trained.clear()
        loss, right, answers = self.trainer.strategy.reduce(sums_3, reduce_op="sum")
        values = {"train/loss": loss / answers, "train/accuracy": right / answers}
        self.log_dict(values, rank_zero_only=False, sync_dist=False)

    # Evaluation keeps what was shown of every item and puts it together by row: exact for any number of processes, and
    # the predictions are at hand for the comparison.

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if len(batch.rows_B):
            self.shown.append(self.show(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def gather(self) -> tuple[Tensor, ...]:
        """All that `shown` holds in all processes, each item once, sorted by row."""
        mine = tuple(joined(parts).cpu() for parts in zip(*self.shown, strict=True)) if self.shown else None
        self.shown.clear()
        everyone = filter(None, from_all(self.trainer, mine))
        rows, *rest = (joined(parts) for parts in zip(*everyone, strict=True))
        order = rows.argsort()
        if len(rows.unique()) < len(rows):
            raise RuntimeError("a review was scored twice")
        return (rows[order], *(part[order] for part in rest))

    def log_scores(self, name: str) -> None:
        self.scores = self.read_scores(self.gather())
        values = {f"{name}/{key}": value for key, value in self.scores.values().items()}
        self.log_dict(values, prog_bar=name == "val", rank_zero_only=False, sync_dist=False)

    def on_validation_epoch_end(self) -> None:
        self.log_scores("val")

    def on_test_epoch_end(self) -> None:
        self.log_scores("test")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses weights that belong to other vectors: the ids would point to other words."""
        theirs = checkpoint.get("hyper_parameters", {}).get("vectors")
        if theirs != (ours := self.hparams.get("vectors")):
            raise UserError(
                f"the checkpoint was trained on vectors with fingerprint {theirs}, but these have {ours}: "
                "set data.glove as in its run folder's config.yaml"
            )

    def groups(self) -> list[dict[str, Any]]:
        """The optimiser's parameter groups."""
        return tables_apart(self.net, self.embedding_lr)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.groups(), **self.fused())
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.lr_share(step, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def try_optimizer(self, device: torch.device) -> torch.optim.Optimizer:
        """An optimiser as `configure_optimizers` makes it, after a step on zeros of the parameters' shapes.

        Raises UserError for what its constructor or its step refuses, before anything is written.
        """
        groups = self.groups()
        for group in groups:
            group["params"] = [torch.zeros_like(p, device=device).requires_grad_() for p in group["params"]]
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        try:
            optimizer = self.make_optimizer(groups)
            optimizer.step(lambda: 0.0)
        except Exception as error:
            raise UserError(f"optim: {' '.join(str(error).split())}") from error
        return optimizer

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


class ReviewClassifier(Learner):
    """Trains and scores a classifier.

    net: called with a batch, returns logits (B, C), as nn.ladder.Classifier.
    folds_N: the fold of each training review, for a net with phrases (nn/beyond/phrases).
    facts: with the labels and the vectors' fingerprint. For the rest see Learner.
    """

    folds_N: Tensor | None

    def __init__(self, *args: Any, folds_N: Tensor | None = None, **more: Any):
        super().__init__(*args, **more)
        self.register_buffer("folds_N", folds_N, persistent=False)
        self._ddp_params_and_buffers_to_ignore.append("folds_N")

    def forward(self, batch: Batch) -> Tensor:
        return self.net(batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if self.folds_N is not None:
            batch = batch._replace(fold_B=self.folds_N[batch.rows_B])
        logits_BC = self(batch)
        losses_B = F.cross_entropy(logits_BC, batch.labels_B, reduction="none", label_smoothing=self.label_smoothing)
        self.note(losses_B, logits_BC.detach().argmax(1) == batch.labels_B, len(losses_B))
        # DDP averages over processes; so weighted, every review of the whole batch counts the same.
        return losses_B.sum() * (self.trainer.world_size / batch.reviews)

    def show(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.rows_B, batch.labels_B, batch.lengths_B, self(batch).float()

    def read_scores(self, shown: tuple[Tensor, ...]) -> Scores:
        return Scores(*shown)
