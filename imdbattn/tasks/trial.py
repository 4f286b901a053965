"""Calls a model once before it is used, because it may have custom parts (docs/own_parts.md).

Shape suffixes: B items, T positions, D width, O phrases that end at a word; Q queries, K keys, d width of both.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from imdbattn.errors import UserError
from imdbattn.nn.beyond.context import Context
from imdbattn.nn.encoder_decoder import Decoder
from imdbattn.nn.ladder import Attention, Classifier
from imdbattn.tasks.build import reason
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData


class Role(NamedTuple):
    """Inputs and output of a kind of part. shape: of the output, given the inputs."""

    inputs: str
    output: str
    shape: Callable[..., tuple[int, ...]]
    method: str = "forward"


WORDS = Role("(x_BTD, words)", "(B, T, D)", lambda x_BTD, *_: x_BTD.shape)
POOLING = Role("(x_BTD, words)", "(B, D)", lambda x_BTD, *_: (x_BTD.shape[0], x_BTD.shape[2]))
SCORE = Role("a query (..., Q, d) and a key (..., K, d)", "(..., Q, K)", lambda q, k: (*q.shape[:-1], k.shape[-2]))


def channel_role(width: int) -> Role:
    return Role("(phrases_BTO, phrases, fold_B)", "(B, T, D)", lambda phrases_BTO, *_: (*phrases_BTO.shape[:2], width))


def roles(net: nn.Module) -> Iterator[tuple[str, Any, Role]]:
    """The key of the setting that names a part, the part, and its role."""
    for owner in net.modules():
        if isinstance(owner, Classifier):
            yield "model.positions", owner.positions, WORDS
            yield from (("model.layer", layer, WORDS) for layer in owner.layers)
            yield "model.pooling", owner.pooling, POOLING
            if isinstance(context := owner.context, Context):
                role = channel_role(owner.head.in_features)
                yield from ((f"model.channels.{name}", channel, role) for name, channel in context.channels.items())
                if context.convolution is not None:
                    yield "model.convolution", context.convolution, WORDS
        elif isinstance(owner, Attention):
            yield "score", owner.score, SCORE
        elif isinstance(owner, Decoder) and owner.score is not None:
            yield "model.score", owner.score, SCORE._replace(method="compare")


@contextmanager
def observed(net: nn.Module) -> Iterator[list[str]]:
    """Yields descriptions of the parts that are being called, the innermost last. A wrong shape is a ValueError."""
    calls: list[str] = []

    def call(method: Callable[..., Any], description: str, role: Role, *inputs: Any) -> Any:
        calls.append(description)
        output = method(*inputs)
        expected = tuple(role.shape(*inputs))
        if not isinstance(output, Tensor) or output.shape != expected:
            what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"it returns {what} instead of {expected}")
        calls.pop()
        return output

    with ExitStack() as stack:
        for key, part, role in roles(net):
            if role.method in vars(part):  # a part that is used twice
                continue
            description = f"{key} ({name_of(part)}) is called with {role.inputs} and must return {role.output}"
            setattr(part, role.method, partial(call, getattr(part, role.method), description, role))
            stack.callback(delattr, part, role.method)
        yield calls


def name_of(part: nn.Module) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def try_forward(module: Learner, data: BatchData, name: str, split: str = "validation") -> None:
    """Raises UserError, which names the part that is wrong, if the model `name` fails on two items of a split."""
    batches = data.eval_batches(split)
    items = np.arange(min(2, len(batches.lengths_N())))
    training = module.training
    with observed(module.net) as calls:
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                module.eval().evaluate_batch(batches[0, items])
        except Exception as error:
            place = f"{calls[-1]}: " if calls else ""
            raise UserError(f"model={name} fails on two {split} items: {place}{reason(error)}") from error
        finally:
            module.train(training)
