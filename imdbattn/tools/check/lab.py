"""Rules of the encoder-decoder lab's model alone: its context, its prediction and its scores.

Those that it shares with the textbook's decoder are in decoder.py.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.tools.check.adapter import hidden_size
from imdbattn.tools.check.context import scores_of
from imdbattn.tools.check.decoder import (
    EXACT,
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
from imdbattn.tools.check.numbers import NotChecked, StudentError, mistake, normal, same
from imdbattn.tools.check.part import Part, Recorder, call, inputs, net_of, student
from imdbattn.tools.check.sheets import parameters_of

# patterns of the names of arguments
TOKENS = re.compile("y|.*([xX]|tok|word|mot|char|inp|ids|entree|jeton|tgt|trg|target|cible).*")
HIDDEN = re.compile("[hs]|h_.*|.*(hid|stat|etat|état|memo).*")


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

    def hook(module: nn.Module, given: object, result: Any) -> None:
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
    names = step_methods(decoding.net)
    for name in (*names, "get_next_token"):
        if hasattr(decoding.net, name):
            require_new_state_of(decoding, name)
    if getattr(decoding.net, "get_next_token", None) is None:
        for name in names:
            require_same_step(decoding, name)
        raise NotChecked("The model has no get_next_token: the prediction was not compared.")
    for seed in range(3):
        decoding.net = made(part, seed)
        tokens = target(decoding.vocabulary, seed)
        y = decoding(tokens)
        outputs, state = encoded(decoding)
        for step in range(STEPS):
            values = [outputs, tokens[:, step : step + 1], state]
            result = next_token(decoding, values)
            found = result if isinstance(result, tuple | list) else [result]
            best, size = y[:, step].argmax(-1), y.shape[-1]
            token = token_of(found, size)
            if not torch.equal(token, best):
                if torch.equal(token, y[:, step].argmin(-1)):
                    raise mistake("prediction-not-largest", token, best, step=step + 1)
                compare_steps(decoding, outputs)
                raise mistake("prediction-differs", token, best, step=step + 1)
            if step == 0 and not gives_logits(decoding, values, y[:, 0]):
                compare_steps(decoding, outputs)
            state = state_of(found, decoding)
            if len(found) < 2 or state is None:
                break  # without the state there is no next step


def next_token(decoding: Decoding, values: list[Any], name: str = "get_next_token") -> Any:
    """The result of a method for the encoder's outputs, tokens (B, 1) and a state."""
    method = getattr(decoding.net, name)
    names = [*parameters_of(method)]
    return student(method, *in_order(names, values[-len(names) :]))


def step_methods(net: nn.Module) -> list[str]:
    """The other methods of the class that are called with tokens and a state, such as decoding."""
    names = []
    for name, method in vars(type(net)).items():
        is_known = name in ("forward", "get_next_token", "get_context_vector")
        if not is_known and not name.startswith("_") and callable(method):
            given = [one for one in parameters_of(method) if one != "self"]
            if sorted(kinds_of(given)) in ([1, 2], [0, 1, 2]):
                names.append(name)
    return names


def require_new_state_of(decoding: Decoding, name: str) -> None:
    """Raises Mistake if the method returns the state, or the cell, that it is given."""
    tokens = target(decoding.vocabulary)
    try:
        outputs, state = encoded(decoding)
    except NotChecked:  # the encoder is no recurrent layer of torch
        outputs, state = random_memory(decoding)
    try:
        result = next_token(decoding, [outputs, tokens[:, :1], state], name)
    except (StudentError, NotChecked):  # it is called in another way
        return
    require_new_state(decoding, result, state, name)


def random_memory(decoding: Decoding) -> tuple[Tensor, Tensor]:
    """Outputs and a state of an encoder."""
    size = hidden_size(decoding.net)
    return normal(REVIEWS, WORDS, size, seed=6), normal(1, REVIEWS, size, seed=7)


def require_same_step(decoding: Decoding, name: str) -> None:
    """Raises Mistake if the method is a step of the decoder, with other logits than forward."""
    try:
        outputs, state = encoded(decoding)
        tokens = target(decoding.vocabulary)
        values = [outputs, tokens[:, :1], state]
        y = decoding(tokens)
        if gives_logits(decoding, values, y[:, 0], name):
            return
    except (StudentError, NotChecked):  # it is called in another way
        return
    with Inputs(decoding.net) as forward:
        decoding(tokens)
    with Inputs(decoding.net) as alone:
        next_token(decoding, values, name)
    require_recurrent(decoding.net, forward, alone, name)


def state_of(found: Iterable[object], decoding: Decoding) -> Any:
    """The state among the results of get_next_token; None if there is none."""
    states = [x for x in found if isinstance(x, tuple) or is_state(x, hidden_size, decoding)]
    return states[-1] if states else None


def gives_logits(
    decoding: Decoding, values: list[Any], right: Tensor, name: str = "get_next_token"
) -> bool:
    """Whether the method computes these logits (B, V), or their softmax."""
    with Recorder() as recorder:
        next_token(decoding, values, name)
    found = [x.reshape(-1, x.shape[-1]) for x in recorder.made if x.ndim > 1]
    found = [x for x in found if x.shape == right.shape]
    wanted = right, right.softmax(-1), right.log_softmax(-1)
    return not found or any(same(x, y, 1e-4) for x in found for y in wanted)


def layers_used(part: Part) -> None:
    """Both recurrent layers, and both embeddings, are called by forward."""
    decoding = Decoding(part)
    with Inputs(decoding.net) as calls:
        decoding.once()
    used = {id(module) for module, _ in calls.given}
    for kind in (nn.RNNBase | nn.RNNCellBase, nn.Embedding):
        layers = [name for name, one in decoding.net.named_modules() if isinstance(one, kind)]
        unused = [k for k in layers if id(decoding.net.get_submodule(k)) not in used]
        if len(layers) == 2 and unused:
            raise mistake("layer-not-used", name=unused[0])


def compare_steps(decoding: Decoding, outputs: Tensor) -> None:
    """Raises Mistake if it is found how get_next_token differs from the first step of forward."""
    tokens = target(decoding.vocabulary)
    with Inputs(decoding.net) as forward:
        decoding(tokens)
    outputs, state = encoded(decoding)
    values = [outputs, tokens[:, :1], state]
    with Inputs(decoding.net) as alone:
        result = next_token(decoding, values)
    require_new_state(decoding, result, state)
    require_recurrent(decoding.net, forward, alone, "get_next_token")
    require_layers(decoding.net, forward, alone)
    require_inputs(decoding, values)
    require_embedding(forward, alone, tokens)
    for module, given in alone.given:
        if isinstance(module, nn.Embedding):
            continue
        all_steps = [first_step(x, given) for one, x in forward.given if one is module]
        others = [x for x in all_steps if x is not None]
        if not others or any(same(given, x) for x in others):
            continue
        if any(same(given.sort(-1).values, x.sort(-1).values) for x in others):
            x = others[0].reshape(-1, given.shape[-1])[0]
            name = name_of(decoding.net, module)
            raise mistake(
                "prediction-other-order", given.reshape(-1, given.shape[-1])[0], x, name=name
            )
    with Calls(decoding) as calls:
        decoding(tokens)
    with Calls(decoding) as single:
        next_token(decoding, values)
    if calls.contexts and single.contexts:
        right, (state_used, _) = calls.contexts[0][0], single.contexts[0]
        is_known = any(same(one.flatten(), state_used.flatten()) for one, _ in calls.contexts)
        if right.shape == state_used.shape and not is_known:
            raise mistake("prediction-other-context", state_used, right)


def first_step(x: Tensor, given: Tensor) -> Tensor | None:
    """What a module is given at the first step, in the shape of the other; None if it is not."""
    if x.shape == given.shape:
        return x
    if x.ndim == 3 and x.shape[1] == STEPS and x[:, :1].numel() == given.numel():
        return x[:, :1].reshape(given.shape)
    return x.reshape(given.shape) if x.numel() == given.numel() else None


def name_of(net: nn.Module, module: nn.Module) -> str:
    """The name of a module in the model."""
    return next(name for name, one in net.named_modules() if one is module)


class Inputs:
    """What the modules with parameters of their own are given, within a with block."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.given: list[tuple[nn.Module, Tensor]] = []

    def __enter__(self) -> "Inputs":
        self.handle = nn.modules.module.register_module_forward_hook(self.keep)
        return self

    def __exit__(self, *error: object) -> None:
        self.handle.remove()

    def keep(self, module: nn.Module, given: tuple[Any, ...], y: object) -> None:
        is_leaf = any(True for _ in module.parameters(recurse=False))
        if is_leaf and given and isinstance(given[0], Tensor):
            self.given.append((module, given[0].detach().clone()))


def require_new_state(
    decoding: Decoding, result: Any, state: Any, name: str = "get_next_token"
) -> None:
    """Raises Mistake if the method returns the state, or the cell, that it is given."""
    new = state_of(result, decoding) if isinstance(result, tuple | list) else None
    if new is None:
        return
    pairs = zip(as_list(new), as_list(state), ("hidden state", "cell"), strict=False)
    for after, before, what in pairs:
        if after.numel() == before.numel() and same(after.flatten(), before.flatten()):
            raise mistake("prediction-old-state", after, name=name, what=what)


def as_list(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [*state]


def require_inputs(decoding: Decoding, values: list[Any]) -> None:
    """Raises Mistake if the token, the state or the outputs have no effect on the logits of
    get_next_token.
    """

    def logits(*changed: Any) -> Tensor | None:
        with Recorder() as recorder:
            next_token(decoding, [*changed])
        found = [x for x in recorder.made if x.shape[-1] == size]
        return found[-1] if found else None

    outputs, tokens, state = values
    size = decoding(target(decoding.vocabulary)).shape[-1]  # of the decoder's vocabulary
    before = logits(*values)
    if before is None:
        return
    moved = [x + normal(*x.shape, seed=4) for x in as_list(state)]
    others = {
        "token": (outputs, (tokens + 1) % decoding.vocabulary, state),
        "state": (outputs, tokens, moved[0] if isinstance(state, Tensor) else tuple(moved)),
    }
    if hasattr(decoding.net, "get_context_vector"):
        others["context"] = (outputs + normal(*outputs.shape, seed=5), tokens, state)
    for what, changed in others.items():
        after = logits(*changed)
        if after is not None and same(after, before, EXACT):
            raise mistake(f"prediction-without-{what}", before)


def require_recurrent(net: nn.Module, forward: Inputs, alone: Inputs, name: str) -> None:
    """Raises Mistake if the recurrent layer of a step is not the last one that forward calls."""
    kinds = (nn.RNNBase, nn.RNNCellBase)
    of_forward = [module for module, _ in forward.given if isinstance(module, kinds)]
    used = [module for module, _ in alone.given if isinstance(module, kinds)]
    if of_forward and used and of_forward[-1] not in used:
        right = name_of(net, of_forward[-1])
        values = {"method": name, "name": name_of(net, used[0]), "right": right}
        raise mistake("prediction-other-layer", **values)


def require_layers(net: nn.Module, forward: Inputs, alone: Inputs) -> None:
    """Raises Mistake if get_next_token calls no Linear that forward calls."""
    called = [module for module, _ in alone.given]
    for module, _ in forward.given:
        if isinstance(module, nn.Linear) and module not in called:
            names = ", ".join(dict.fromkeys(name_of(net, one) for one in called))
            raise mistake("prediction-without-layer", name=name_of(net, module), called=names)


def require_embedding(forward: Inputs, alone: Inputs, tokens: Tensor) -> None:
    """Raises Mistake if get_next_token embeds its token with another nn.Embedding than forward."""

    def of_target(module: nn.Module, given: Tensor) -> bool:
        columns = tokens.unbind(1)
        is_column = any(torch.equal(given.flatten(), one) for one in columns)
        return isinstance(module, nn.Embedding) and (
            torch.equal(given.flatten(), tokens.flatten()) or is_column
        )

    right = [module for module, given in forward.given if of_target(module, given)]
    used = [module for module, given in alone.given if of_target(module, given)]
    if right and used and not any(used[0] is module for module in right):
        names = [name_of(forward.net, module) for module in (used[0], right[0])]
        raise mistake("prediction-other-embedding", name=names[0], right=names[1])


def in_order(names: list[str], values: list[Any]) -> list[Any]:
    """The values, (outputs,) tokens and state, in the order of the method's arguments."""
    kinds, wanted = kinds_of(names), [1, 2] if len(values) == 2 else [0, 1, 2]
    if sorted(kinds) != wanted:
        return values
    return [values[wanted.index(kind)] for kind in kinds]


def kinds_of(names: list[str]) -> list[int]:
    """For each argument 1 for tokens, 2 for a state, and 0 for the encoder's outputs."""
    kinds = []
    for name in names:
        is_state = HIDDEN.fullmatch(name)
        kinds.append(2 if is_state else 1 if TOKENS.fullmatch(name) else 0)
    return kinds


def is_state(x: object, size: Callable[[nn.Module], int], decoding: Decoding) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.shape[-1] == size(decoding.net)


def token_of(found: Iterable[object], size: int) -> Tensor:
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
    louder_BTD = 2 * outputs_BTD

    def of_louder(rows: slice, places: list[int], mask: Tensor) -> Tensor:
        return call(part, net, state_BD[rows], louder_BTD[rows][:, places], mask).detach()

    if not same(scores_of(part, of_louder, louder_BTD), 2 * one, 1e-2):
        raise mistake("function-of-outputs", one[0])
    dot = (outputs_BTD * state_BD[:, None]).sum(-1)
    dot = dot - dot[:, :1]
    if same(one, dot * ((one * dot).sum() / dot.square().sum())):
        raise mistake("no-projection", one[0])
