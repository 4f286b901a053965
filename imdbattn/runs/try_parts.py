"""The check of custom parts before training.

Shape suffixes: B items of a batch, T positions, D vector width.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from imdbattn.errors import wrapping_errors
from imdbattn.nn.ladder import Attention, Classifier
from imdbattn.runs.attention_over_time import fixed_batches


class TryParts(L.Callback):
    """Evaluates two validation items before anything is written.

    Raises UserError naming the part that fails or returns a wrong shape, which torch could
    broadcast without an error.
    """

    @torch.no_grad()
    def on_fit_start(self, trainer: Any, module: Any) -> None:
        (batch,) = fixed_batches(trainer.datamodule, count=2, size=2)
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        precision = trainer.precision_plugin.val_step_context()
        with ExitStack() as checks, precision, isolate_rng(), evaluation_mode(module.net):
            for part in parts_of(module.net):
                checks.enter_context(part.checked())
            module.outputs_of(batch)


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Sets evaluation mode, and afterwards restores the mode of each module."""
    before = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


class NamedPart(NamedTuple):
    """A part of a network (docs/own_parts.md).

    setting: the setting that names it. shape: returns the output's shape, given the inputs. method:
    the method that is called.
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
