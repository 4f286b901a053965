"""Several seeds of a classifier as one Lightning module, whose steps are computed by one `torch.vmap`.

Shape suffixes: S seeds, B reviews of a batch, N reviews of a split, C classes.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from imdbattn.data.ragged import Batch
from imdbattn.tasks.review_scores import Scores
from imdbattn.tasks.reviews import ReviewClassifier

NORM_EPSILON = 1e-6  # that of torch.nn.utils.clip_grad_norm_


@dataclass
class Course:
    """The training of one seed, up to the epoch in which it stopped."""

    seed: int
    epochs: int = 0
    steps: int = 0
    best: float | None = None  # the score that selects an epoch
    weights: dict[str, Tensor] | None = None  # of that epoch
    worse: int = 0  # epochs since
    stopped: bool = False
    failure: str = ""

    def stop(self, failure: str = "") -> None:
        self.stopped, self.failure = True, failure


@dataclass(frozen=True)
class SeedScores:
    """The scores of each seed on the same reviews."""

    scores: list[Scores]

    def values(self) -> dict[str, float]:
        """Means over the seeds."""
        values = [one.values() for one in self.scores]
        return {name: sum(each[name] for each in values) / len(values) for name in values[0]}


def stacked_net(nets: Sequence[nn.Module]) -> nn.Module:
    """A copy of the first net whose parameters (S, ...) are those of all nets; its buffers are not copied."""
    first = nets[0]
    net = copy.deepcopy(first, {id(buffer): buffer for buffer in first.buffers()})
    for name, parameter in first.named_parameters():
        values = torch.stack([one.get_parameter(name).detach() for one in nets])
        owner, _, leaf = name.rpartition(".")
        setattr(net.get_submodule(owner), leaf, nn.Parameter(values, parameter.requires_grad))
    return net


class SeedStack(ReviewClassifier):
    """Trains classifiers of the same settings and different seeds as each would be trained alone, in one process.

    Each seed has its own batches, gradient norm, best epoch and early stopping. Dropout within the net, and mixout,
    draw other numbers than in a run alone; the ladder has neither. All nets have the same buffers, which depend on the
    data alone.

    members: the classifiers, with initial weights. choose_by: validation score that selects the best epoch of each,
    "accuracy" or "loss". patience: epochs without improvement before a seed stops; None never stops early.
    """

    scores: Any

    def __init__(self, members: Sequence[ReviewClassifier], seeds: Sequence[int], choose_by: str, patience: int | None):
        first = members[0]
        targets = {"folds_N": first.folds_N, "targets_NC": first.targets_NC}
        super().__init__(stacked_net([one.net for one in members]), first.cfg, {}, **targets)
        self.courses = [Course(seed) for seed in seeds]
        self.choose_by, self.patience = choose_by, patience
        self.seed_sums: list[Tensor] = []  # of each step of this epoch, (2, S): sum of losses, and correct answers

    def forward(self, batch: Batch) -> Tensor:
        """Logits (S, B, C). batch: one for all seeds, or fields (S, B, ...) with one for each."""
        own = 0 if batch.rows_B.ndim == 2 else None
        axes = Batch(*(own if isinstance(field, Tensor) else None for field in batch))  # type: ignore[arg-type]

        def logits(parameters: dict[str, Tensor], batch: Batch) -> Tensor:
            return functional_call(self.net, parameters, (batch,))

        return vmap(logits, in_dims=(0, axes), randomness="different")(dict(self.net.named_parameters()), batch)

    # --- training ----------------------------------------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        losses_SB, right_SB = self.losses(batch)
        self.add_to_epoch(losses_SB, right_SB, losses_SB.numel())  # for the progress bar
        self.seed_sums.append(torch.stack([losses_SB.detach().float().sum(1), right_SB.float().sum(1)]))
        return losses_SB.sum() / batch.reviews  # the gradient of each seed is that of its own loss

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None, *_: Any, **__: Any) -> None:
        """Clips the norm of each seed's gradient."""
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        if not gradient_clip_val or not gradients:
            return
        parts = [own for gradient in gradients for own in gradient.unbind(0)]
        norm_S = torch.stack(torch._foreach_norm(parts)).view(len(gradients), -1).norm(dim=0)
        factor_S = (gradient_clip_val / (norm_S + NORM_EPSILON)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor_S.view(-1, *[1] * (gradient.ndim - 1)))

    def on_train_epoch_end(self) -> None:
        loss_S, right_S = self.seed_means()
        for course, loss, right in zip(self.courses, loss_S, right_S, strict=True):
            if not course.stopped or course.epochs == self.trainer.current_epoch + 1:  # this was its last epoch
                self.log_dict({f"{course.seed}/train/loss": loss, f"{course.seed}/train/accuracy": right})
        self.epoch_sums.clear()
        self.seed_sums.clear()

    def seed_means(self) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of each seed in this epoch, (S,) both."""
        answers = torch.stack(self.epoch_sums).sum(0)[2] / len(self.courses)
        loss_S, right_S = torch.stack(self.seed_sums).sum(0) / answers
        return loss_S, right_S

    # --- validation --------------------------------------------------------------------------------------------------

    def evaluate_batch(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.rows_B, batch.labels_B, batch.lengths_B, self(batch).float().transpose(0, 1)

    def make_scores(self, outputs: tuple[Tensor, ...]) -> Any:
        *columns, logits_NSC = outputs
        return SeedScores([Scores(*columns, logits_NC) for logits_NC in logits_NSC.unbind(1)])  # type: ignore[call-arg]

    def log_scores(self, name: str) -> None:
        self.scores = self.make_scores(self.gather())
        for course, scores in zip(self.courses, self.scores.scores, strict=True):
            if not course.stopped:
                self.log_dict({f"{course.seed}/{name}/{key}": value for key, value in scores.values().items()})

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        if self.trainer.sanity_checking:
            return
        finite_S = self.seed_means()[0].isfinite() & self.finite_weights()
        for number, (course, finite) in enumerate(zip(self.courses, finite_S.tolist(), strict=True)):
            if not course.stopped:
                self.follow(course, number, finite)
        if all(course.stopped for course in self.courses):  # never set to False: trainer.max_time also sets it
            self.trainer.should_stop = True

    def finite_weights(self) -> Tensor:
        """Whether all weights of each seed are finite, (S,)."""
        return torch.stack([p.detach().flatten(1).isfinite().all(1) for p in self.net.parameters()]).all(0)

    def count(self, course: Course, epochs: int, finite: bool) -> None:
        """Records how long a seed has been trained. finite: whether its loss and weights are; otherwise it stops."""
        course.epochs, course.steps = epochs, self.trainer.global_step
        if not finite:
            course.stop(f"loss or weights are not finite in epoch {course.epochs}: try a lower optim.lr")

    def follow(self, course: Course, number: int, finite: bool) -> None:
        """Updates the course after a validation. number: of its seed in the stack."""
        self.count(course, self.trainer.current_epoch + 1, finite)
        if course.stopped:
            return
        score = self.scores.scores[number].values()[self.choose_by]
        better = course.best is None or (score < course.best if self.choose_by == "loss" else score > course.best)
        course.worse = 0 if better else course.worse + 1
        if better:
            course.best, course.weights = score, self.weights_of(number)
        elif self.patience and course.worse >= self.patience:
            course.stop()

    def end(self) -> None:
        """Updates the courses after training, which may end without a validation, as with trainer.max_steps."""
        for number, (course, finite) in enumerate(zip(self.courses, self.finite_weights().tolist(), strict=True)):
            if not course.stopped:
                self.count(course, self.trainer.current_epoch, finite)
                course.weights = course.weights or self.weights_of(number)

    def weights_of(self, number: int) -> dict[str, Tensor]:
        """A copy of the weights of the seed with this number in the stack."""
        return {name: parameter[number].detach().cpu().clone() for name, parameter in self.net.named_parameters()}
