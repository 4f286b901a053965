"""Rules of the encoder-decoder lab's model alone: its context, its prediction and its scores.

Those that it shares with the textbook's decoder are in decoder.py.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.tools.check.adapter import hidden_size
from imdbattn.tools.check.context import scores_of
from imdbattn.tools.check.decoder import (
    REVIEWS,
    STEPS,
    WORDS,
    Calls,
    Decoding,
    made,
    require_effect,
    target,
    weights_of,
)
from imdbattn.tools.check.numbers import NotChecked, mistake, same
from imdbattn.tools.check.part import Part, call, inputs, net_of, student
from imdbattn.tools.check.sheets import parameters_of

# names of arguments
TOKENS, HIDDEN = ("input_X", "token", "x", "X", "input"), ("hidden_state", "hidden", "state", "h")


@contextmanager
def replaced(net: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """The method of the object is replaced, within a with block, by what make returns for it."""
    object.__setattr__(net, name, make(getattr(net, name)))
    try:
        yield
    finally:
        vars(net).pop(name)


def context_used(part: Part) -> None:
    """The context has an effect on the logits."""
    decoding = Decoding(part)
    if not hasattr(decoding.net, "get_context_vector"):
        raise NotChecked("The model has no get_context_vector: its context was not checked.")
    with Calls(decoding) as calls:
        y = decoding.once()
    if not calls.contexts and weights_of(decoding):
        raise NotChecked("forward does not call get_context_vector: its context was not checked.")
    with replaced(decoding.net, "get_context_vector", lambda f: lambda *a, **k: f(*a, **k) * 0):
        z = decoding.once()
    require_effect("context-not-used", y, z)


def encoded(decoding: Decoding) -> tuple[Tensor, Any]:
    """The encoder's outputs (B, T, H) and its state: of the first recurrent layer called."""
    calls: list[tuple[Any, Any]] = []

    def hook(module: nn.Module, given: Any, result: Any) -> None:
        if isinstance(module, nn.RNNBase):
            calls.append((module, result))

    with nn.modules.module.register_module_forward_hook(hook):
        decoding.once()
    if not calls or not isinstance(calls[0][1][0], Tensor):
        raise NotChecked("The prediction was not compared: the encoder is no recurrent layer.")
    module, (outputs, state) = calls[0]
    outputs = outputs if module.batch_first else outputs.transpose(0, 1)
    if outputs.shape[:2] != (REVIEWS, WORDS):
        raise NotChecked("The prediction was not compared: the encoder's outputs were not found.")
    return outputs.detach(), state


def prediction(part: Part) -> None:
    """get_next_token, word by word, gives the largest logits of forward for the same words."""
    decoding = Decoding(part)
    method = getattr(decoding.net, "get_next_token", None)
    if method is None:
        raise NotChecked("The model has no get_next_token: the prediction was not compared.")
    given = [*parameters_of(method)]
    for seed in range(3):
        decoding.net = made(part, seed)
        method = decoding.net.get_next_token
        tokens = target(decoding.vocabulary, seed)
        y = decoding(tokens)
        outputs, state = encoded(decoding)
        for step in range(STEPS):
            values = [outputs, tokens[:, step : step + 1], state][-len(given) :]
            values = in_order(given, values)
            result = student(method, *values)
            found = result if isinstance(result, tuple | list) else [result]
            best, size = y[:, step].argmax(-1), y.shape[-1]
            token = token_of(found, size)
            if not torch.equal(token, best):
                raise mistake("prediction-differs", token, best, step=step + 1)
            if len(found) < 2:
                break  # without the state there is no next step
            state = [x for x in found if isinstance(x, tuple) or is_state(x, hidden_size, decoding)]
            if not state:
                break
            state = state[-1]


def in_order(names: list[str], values: list[Any]) -> list[Any]:
    """The values, (outputs,) tokens and state, in the order of the method's arguments."""
    kinds = []
    for name in names:
        kind = 1 if name in TOKENS or name[-1:].lower() == "x" else 2 if "h" in name[:1] else 0
        kinds.append(2 if name in HIDDEN else kind)
    wanted = [1, 2] if len(values) == 2 else [0, 1, 2]
    if sorted(kinds) != wanted:
        return values
    return [values[wanted.index(kind)] for kind in kinds]


def is_state(x: Any, size: Callable[[nn.Module], int], decoding: Decoding) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.shape[-1] == size(decoding.net)


def token_of(found: Any, size: int) -> Tensor:
    """(B,), the token among the results, or that of the largest logit."""
    for x in found:
        if isinstance(x, Tensor) and not x.is_floating_point():
            return x.reshape(-1)
        if isinstance(x, Tensor) and x.shape[-1] == size:
            return x.reshape(-1, size).argmax(-1)
    raise NotChecked("The prediction was not compared: it has neither a token nor logits.")


def bilinear(part: Part) -> None:
    """The scores are linear in the state, and attention_W is used."""
    net = net_of(part)
    state_BD, outputs_BTD, _ = inputs(part, 4, 4, 4)

    def scores(states: Tensor) -> Tensor:
        def of(rows: slice, places: list[int], mask: Tensor) -> Tensor:
            return call(part, net, states[rows], outputs_BTD[rows][:, places], mask).detach()

        return scores_of(part, of, outputs_BTD)

    state_BD = state_BD / 4
    one, two, three = (scores(factor * state_BD) for factor in (1, 2, 3))
    if not same(three - two, two - one, 1e-2):
        raise mistake("function-of-scores", one[0], two[0])
    dot = (outputs_BTD * state_BD[:, None]).sum(-1)
    if same(one, dot - dot[:, :1]):
        raise mistake("no-projection", one[0])
