"""Decoders: the textbook's with attention, and the encoder-decoder lab's model.

Both are called with all words of the target at once. What a decoder may use at each step is found
by changing one of its inputs at a time. Shape suffixes: B reviews, S steps of the decoder, T words
of the encoder, V words of the vocabulary.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.findings import NotChecked, mistake
from imdbattn.tools.check.numbers import same
from imdbattn.tools.check.part import Kind, Part, Rule, call_student
from imdbattn.tools.check.watching import ModuleCall, module_calls, record

STEPS = 4
LENGTHS = (5, 2, 3)  # lengths of the encoder's reviews
NO_EFFECT = 1e-6  # a smaller effect is none
# Kind -> findings, if what comes before the decoder, its first arguments, has no effect.
UNUSED_INPUT_FINDINGS = {
    "Decoder": ("context-not-used", "encoder-not-used"),
    "Seq2Seq": ("encoder-not-used",),
}


class DecoderKind(Kind):
    """The textbook's: the encoder's outputs, state and lengths are given."""

    is_given_lengths = True

    def rules(self) -> list[Rule]:
        return [*rules.FIRST, *DECODER_RULES]

    def adapt(self, part: Part, called: Callable[..., Any], module: Any) -> Callable[..., Any]:
        has_cell = any(isinstance(child, nn.LSTM) for child in module.modules())

        def decode(outputs: Tensor, state: Tensor, lengths: Tensor, tokens: Tensor) -> Any:
            h = state.transpose(0, 1).contiguous()
            start = module.init_state(
                (outputs.transpose(0, 1), (h, h.flip(-1)) if has_cell else h), lengths
            )
            y = called(tokens, start)
            return y[0] if isinstance(y, tuple | list) else y

        return decode


class Seq2SeqKind(Kind):
    """The lab's model, with its own encoder."""

    def rules(self) -> list[Rule]:
        needed = ("steps", "encoder", "context", "state-carried")
        first = [Rule("shape", decoded), *rules.FIRST[1:]]
        return [*first, *DECODER_RULES, Rule("prediction", prediction, needed)]

    def adapt(self, part: Part, called: Callable[..., Any], module: Any) -> Callable[..., Any]:
        def decode(source_BT: Tensor, target_BS: Tensor) -> Any:
            y = called(source_BT, target_BS)
            y = y[0] if isinstance(y, tuple | list) and y else y
            if isinstance(y, Tensor) and y.ndim == 2 and len(y) == target_BS.numel():
                y = y.view(*target_BS.shape, -1)  # some labs return them flat
            last = y.shape[-1] if isinstance(y, Tensor) and y.ndim else 0
            text = f"For a target {tuple(target_BS.shape)}, the result"
            rules.require_shape(y, (*target_BS.shape, last), text, part)
            return y

        return decode


def decoded(part: Part) -> None:
    """The result has the documented shape: reviews, steps, words of the vocabulary."""
    for lengths in (LENGTHS, (1,)):
        part.call(part.net(), *part.inputs(*lengths))


def require_effect(finding: str, first: Tensor, second: Tensor, **values: object) -> None:
    if same(first, second, NO_EFFECT):
        raise mistake(finding, first, **values)


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax."""
    y = part.call(part.net(), *part.inputs(*LENGTHS))
    if any(same(z.sum(-1), torch.ones_like(z.sum(-1))) for z in (y, y.exp())):
        raise mistake("softmax-twice", y[0, 0])


def steps(part: Part) -> None:
    """Each step reads its own token and, through the state, earlier ones, but no later ones."""
    net, (*before, tokens_BS) = part.net(), part.inputs(*LENGTHS)
    y = part.call(net, *before, tokens_BS)
    for step in range(STEPS):
        other_BS = tokens_BS.clone()
        other_BS[:, step] = (other_BS[:, step] + 1) % part.sizes["V"]
        z = part.call(net, *before, other_BS)
        if not same(y[:, :step], z[:, :step], 1e-5):
            raise mistake("sees-later-tokens", y[:, :step], z[:, :step], step=step + 1)
        require_effect("decoder-input-not-used", y[:, step], z[:, step], step=step + 1)
        if step + 1 < STEPS:
            later = y[:, step + 1 :], z[:, step + 1 :]
            require_effect("state-not-carried", *later, step=step + 1)


def encoder(part: Part) -> None:
    """The result depends on the encoder."""
    net, arguments, others = part.net(), part.inputs(*LENGTHS), part.inputs(*LENGTHS, seed=1)
    y = part.call(net, *arguments)
    for index, finding in enumerate(UNUSED_INPUT_FINDINGS[part.kind.name]):
        moved = [*arguments[:index], others[index], *arguments[index + 1 :]]
        require_effect(finding, y, part.call(net, *moved))


# --- states ---------------------------------------------------------------------------------------


def recurrent_calls(part: Part, net: nn.Module, arguments: list[Tensor]) -> list[ModuleCall]:
    """Returns the calls of recurrent layers and cells. The state, h, or h and c, comes after the
    input, and after the result of a layer.
    """
    kinds = nn.RNNBase | nn.RNNCellBase
    return [made for made in module_calls(part, net, *arguments) if isinstance(made[0], kinds)]


def state_carried(part: Part) -> None:
    """Each step of the decoder starts with the state after the step before, the first with that of
    the encoder.
    """
    found = [
        (module, before[1:], after[isinstance(module, nn.RNNBase) :])
        for module, before, after in recurrent_calls(part, part.net(), part.inputs(*LENGTHS))
    ]
    modules = list(dict.fromkeys(module for module, *_ in found))
    for module in modules:
        rows = [(before, after) for called, before, after in found if called is module]
        pairs = itertools.pairwise(rows if len(rows) == STEPS else [])
        for step, ((_, after), (before, _)) in enumerate(pairs, 2):
            before = before or [torch.zeros_like(x) for x in after]
            for what, old, new in zip(("hidden state", "cell"), after, before, strict=False):
                if old.shape == new.shape and not same(old, new, 1e-6):
                    raise mistake("state-of-another-step", new, old, step=step, what=what)
    if part.kind.name == "Seq2Seq" and len(modules) == 2:
        first = next(before for module, before, *_ in found if module is modules[1])
        if not any(bool(x.any()) for x in first):
            raise mistake("encoder-state-not-used", what="state")


# --- attention ------------------------------------------------------------------------------------


def weights_of(part: Part, net: nn.Module, arguments: list[Tensor]) -> list[Tensor]:
    """Returns the weights over the encoder's words, (B, T), of each step: tensors that are not
    negative and sum to 1 along an axis of T words. Equal ones count once.
    """
    shape = len(LENGTHS), LENGTHS[0]
    found: list[Tensor] = []
    for x in record(part, net, *arguments):
        if sorted(n for n in x.shape if n > 1) == sorted(shape):
            x_BT = x.squeeze()
            x_BT = x_BT if x_BT.shape == shape else x_BT.mT
            is_weights = bool((x_BT >= 0).all()) and same(x_BT.sum(1), torch.ones(len(x_BT)).to(x))
            if is_weights and not any(same(x_BT, y, 1e-9) for y in found):
                found.append(x_BT)
    return found


def context(part: Part) -> None:
    """The context is computed anew at each step, from the state of that step."""
    found = weights_of(part, part.net(), part.inputs(*LENGTHS))
    if not found:
        raise NotChecked("The context was not checked: no weights (B, T) were recognized.")
    if len(found) < STEPS:
        raise mistake("context-computed-once", found[0][0], count=len(found), steps=STEPS)


# --- the prediction of the lab's model ------------------------------------------------------------


def prediction(part: Part) -> None:
    """get_next_token, word by word, gives the largest logits of forward for the same words."""
    for seed in range(3):
        net = part.net(seed=seed)
        if not hasattr(net, "get_next_token"):
            raise NotChecked("The model has no get_next_token: the prediction was not compared.")
        arguments = part.inputs(*LENGTHS, seed=seed)
        (module, _, (outputs, *states)), *others = recurrent_calls(part, net, arguments)
        if getattr(module, "bidirectional", False):  # the encoder; the decoder starts with a state
            states = next(before[1:] for other, before, _ in others if other is not module)
        y, state = part.call(net, *arguments), states[0] if len(states) == 1 else tuple(states)
        if outputs.shape[:2] != arguments[0].shape:
            outputs = outputs.transpose(0, 1)
        for step in range(STEPS):
            words = arguments[1][:, step : step + 1]
            token, state = call_student(net.get_next_token, outputs, words, state)
            best = y[:, step].argmax(-1)
            if not torch.equal(token.reshape(-1), best):
                raise mistake("prediction-differs", token, best, step=step + 1)


DECODER_RULES = [
    rules.REGISTERED,
    Rule("logits", returns_logits, ("repeatable",)),
    Rule("batch", rules.batch, ("repeatable", "logits")),
    Rule("encoder", encoder, ("repeatable", "batch")),
    Rule("steps", steps, ("repeatable", "batch", "encoder")),
    Rule("state-carried", state_carried, ("repeatable", "steps", "encoder")),
    Rule("context", context, ("repeatable", "steps", "encoder", "state-carried")),
    Rule("gradients", rules.gradients, ("registered", "encoder", "steps", "context")),
]
