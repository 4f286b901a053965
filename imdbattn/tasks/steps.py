"""A training step, as callbacks receive it."""

from typing import Any, NamedTuple

from torch import Tensor

BFLOAT16 = "bf16-mixed"  # the mixed precision in which gradients are not scaled


class Step(NamedTuple):
    """A training step that has been made."""

    batch: Any
    loss: Tensor  # detached
    number: int  # of steps made until then, with this one
    epoch: int  # counted from 0
    lr: float  # of the first group of parameters

    def __str__(self) -> str:
        return f"step {self.number} (epoch {self.epoch + 1}, learning rate {self.lr:.3g})"
