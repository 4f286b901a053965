"""One step of a copy of a model before training, because the model and its optimizer may be of one's own."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from imdbattn.errors import UserError
from imdbattn.nn.beyond.context import Context
from imdbattn.nn.encoder_decoder import Decoder
from imdbattn.nn.ladder import Attention, Classifier
from imdbattn.tasks.build import reason
from imdbattn.tasks.learner import Learner, parameter_groups
from imdbattn.tasks.loaders import BatchData

Shape = Callable[..., tuple[int, ...]]  # of the output of a part, given its inputs


def try_step(module: Learner, data: BatchData, trainer: L.Trainer) -> None:
    """Evaluates a copy of the module on two training items, and trains it on them for one step.

    Raises UserError that names the part which fails or returns a wrong shape. The module and the random states stay
    the same.
    """
    # Buffers that are not in checkpoints are constants, such as memory-mapped vectors: they are not copied.
    saved = module.state_dict().keys()
    constants = {id(buffer): buffer for name, buffer in module.named_buffers() if name not in saved}
    batches, device = data.train_batches(), trainer.strategy.root_device
    place = f"model={module.cfg.model.name} fails on two training items: "
    with isolate_rng():
        trial = copy.deepcopy(module, constants).to(device)
        trial.trainer = trainer
        calls = watch(trial.net)
        try:
            items = batches[0, np.arange(min(2, len(batches)))]
            batch = trial.transfer_batch_to_device(items, device, 0)
            trial.eval().evaluate_batch(batch)
            loss: Any = trial.train().training_step(batch, 0)
            loss.backward()
            place = "optim: "
            optimizer: Any = trial.make_optimizer(parameter_groups(trial.net, trial.cfg.embedding_lr))
            optimizer.step(lambda: loss)
        except Exception as error:
            raise UserError(f"{place}{''.join(calls[-1:])}{reason(error)}") from error


def watch(net: nn.Module) -> list[str]:
    """The parts of the net that are being called, the innermost last. A wrong shape is a ValueError from now on."""
    calls: list[str] = []

    def call(method: Callable[..., Any], name: str, shape: Shape, *inputs: Any) -> Any:
        calls.append(name)
        output, expected = method(*inputs), shape(*inputs)
        found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        if found != f"shape {tuple(expected)}":
            raise ValueError(f"it returns {found} instead of {tuple(expected)}")
        calls.pop()
        return output

    for key, part, shape, method in [*parts(net)]:
        name = f"{key} ({type(part).__module__}.{type(part).__qualname__}): "
        setattr(part, method, partial(call, getattr(part, method), name, shape))
    return calls


def parts(net: nn.Module) -> Iterator[tuple[str, nn.Module, Shape, str]]:
    """The setting that names a part, the part, the shape of its output (docs/own_parts.md), and the method."""

    def scores(query: Tensor, key: Tensor) -> tuple[int, ...]:
        return *query.shape[:-1], key.shape[-2]

    for owner in net.modules():
        if isinstance(owner, Classifier):
            width, context = owner.head.in_features, owner.context
            sequences: list[tuple[str, Any]] = [("model.positions", owner.positions)]
            sequences += [("model.layer", layer) for layer in owner.layers]
            if isinstance(context, Context):
                sequences += [(f"model.channels.{name}", channel) for name, channel in context.channels.items()]
                sequences += [("model.convolution", context.convolution)] * (context.convolution is not None)
            for key, part in sequences:
                yield key, part, lambda x, *_, width=width: (*x.shape[:2], width), "forward"
            if type(owner.head) is nn.Linear:  # another head may read several vectors
                yield "model.pooling", owner.pooling, lambda x, *_, width=width: (len(x), width), "forward"
        elif isinstance(owner, Attention):
            yield "score", owner.score, scores, "forward"
        elif isinstance(owner, Decoder) and owner.score is not None:
            yield "model.score", owner.score, scores, "compare"
