"""Rules of decoders: the textbook's with attention, and the encoder-decoder lab's model.

Both are called with all words of the target at once. What a decoder may use at each step is found
by changing one of its inputs at a time. Shape suffixes: B reviews, S steps of the decoder, T words
of the encoder, L layers, H width of the state, V words of the vocabulary.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from imdbattn.tools.check import rules
from imdbattn.tools.check.adapter import hidden_size
from imdbattn.tools.check.numbers import NotChecked, StudentError, mistake, named, normal, same
from imdbattn.tools.check.part import Part, Recorder, Rule, net_of, randomize, student
from imdbattn.tools.check.sheets import parameters_of

REVIEWS, STEPS, WORDS = 3, 4, 5
LENGTHS = (5, 2, 3)  # of the encoder's reviews
LAYERS, WIDTH, VOCABULARY = 2, 8, 11
EXACT = 1e-6  # a smaller effect is none
WITHOUT_WEIGHTS = "no weights (B, T) were recognized"
LENGTH = re.compile(".*(len|seq|steps|max).*", re.IGNORECASE)  # names of a number of steps
# patterns of the names of arguments
TOKENS = re.compile("y|.*([xX]|tok|word|mot|char|inp|ids|entree|jeton|tgt|trg|target|cible).*")
HIDDEN = re.compile("[hs]|h_.*|.*(hid|stat|etat|état|memo).*")


class Memory(NamedTuple):
    """What the textbook's decoder is given: (B, T, H), the states (L, B, H), and the lengths."""

    outputs_BTH: Tensor
    states: list[Tensor]  # the hidden state, and for an LSTM the cell
    lengths_B: Tensor | None


def memory_of(net: nn.Module) -> Memory:
    count = 2 if any(isinstance(child, nn.LSTM) for child in net.modules()) else 1
    states = [normal(LAYERS, REVIEWS, WIDTH, seed=7 + number) for number in range(count)]
    return Memory(normal(REVIEWS, WORDS, WIDTH, seed=5), states, torch.tensor(LENGTHS))


def made(part: Part, seed: int = 0) -> Any:
    """The module, with its own forward again."""
    net = net_of(part, seed=seed)
    vars(net).pop("forward", None)
    return net


def target(vocabulary: int, seed: int = 0) -> Tensor:
    """(B, S) tokens."""
    tokens = torch.arange(REVIEWS * STEPS).view(REVIEWS, STEPS) * 3 + 1 + seed
    return tokens % vocabulary


def changed_at(tokens_BS: Tensor, step: int, vocabulary: int) -> Tensor:
    """The tokens with another one at this step, in all reviews."""
    tokens_BS = tokens_BS.clone()
    tokens_BS[:, step] = (tokens_BS[:, step] + 1) % vocabulary
    return tokens_BS


class Decoding:
    """A module that turns tokens (B, S) into logits (B, S, V), however it is called."""

    def __init__(self, part: Part, seed: int = 0) -> None:
        self.part, self.net = part, made(part, seed)
        self.is_textbook = part.kind.name == "Decoder"
        self.vocabulary, self.source_BT, self.constant = VOCABULARY, torch.empty(0), ""
        if self.is_textbook:
            self.memory = memory_of(self.net)
            student(self.once)  # the parameters of lazy layers exist now, if they are used
            made_now = [p for p in self.net.parameters() if not nn.parameter.is_lazy(p)]
            randomize(nn.ParameterList(made_now), seed)
            return
        sizes = [m.num_embeddings for m in self.net.modules() if isinstance(m, nn.Embedding)]
        tables = [p for p in self.net.parameters(recurse=False) if p.ndim == 2]
        sizes = sizes or [len(table) for table in tables]  # one of which is indexed by tokens
        if not sizes:
            raise NotChecked("It was not checked: the model has no nn.Embedding.")
        self.vocabulary = min(sizes)
        words = torch.arange(REVIEWS * WORDS).view(REVIEWS, WORDS) * 7 + 2
        self.source_BT = words % self.vocabulary
        lengths = [name for name, x in self.part.own.items() if isinstance(x, int) and x > STEPS]
        for name in ("", *filter(LENGTH.fullmatch, lengths), ""):
            self.constant = name
            with suppress(StudentError):
                student(self.once)
                break

    @contextmanager
    def steps_of(self, tokens_BS: Tensor) -> Iterator[None]:
        """Within a with block, the constant of the file, such as SEQ_LENGTH, is the number of these
        steps, if the model decodes so many and cannot decode fewer.
        """
        before = self.part.own.get(self.constant)
        try:
            if self.constant:
                self.part.own[self.constant] = tokens_BS.shape[1]
            yield
        finally:
            if self.constant:
                self.part.own[self.constant] = before

    def once(self) -> Any:
        return self(target(self.vocabulary))

    def start(self, memory: Memory) -> Any:
        states = memory.states[0] if len(memory.states) == 1 else tuple(memory.states)
        return self.net.init_state((memory.outputs_BTH.transpose(0, 1), states), memory.lengths_B)

    def with_gradients(self, tokens_BS: Tensor, given: Any = None) -> Any:
        """The result as it is returned, not detached."""
        if self.is_textbook:
            state = student(self.start, self.memory if given is None else given)
            y = student(self.net, tokens_BS, state)
        else:
            with self.steps_of(tokens_BS):
                y = student(self.net, self.source_BT if given is None else given, tokens_BS)
        return y[0] if isinstance(y, tuple | list) and y else y

    def __call__(self, tokens_BS: Tensor, given: Any = None) -> Tensor:
        """given: other memory, or another source, than the usual one."""
        y = self.with_gradients(tokens_BS, given)
        if not self.is_textbook and isinstance(y, Tensor) and y.ndim == 2:
            # as the lab returns them; a model that decodes the encoder's words returns (B * T, V)
            for words in (tokens_BS, self.source_BT if given is None else given):
                if len(y) == words.numel():
                    y = y.view(*words.shape, -1)
                    break
        if not isinstance(y, Tensor) or y.ndim != 3:
            shape = (*tokens_BS.shape, self.vocabulary)
            rules.require_shape(
                y, shape, f"For tokens {tuple(tokens_BS.shape)}, the result", self.part
            )
        return y.detach()


def require_effect(finding: str, first: Tensor, second: Tensor, **values: object) -> None:
    if same(first, second, EXACT):
        raise mistake(finding, first, **values)


def logits_shape(part: Part) -> None:
    """The result has the documented shape: reviews, steps, words of the vocabulary."""
    decoding = Decoding(part)
    for reviews, steps in ((REVIEWS, STEPS), (REVIEWS, 1)):
        y = decoding(target(decoding.vocabulary)[:reviews, :steps])
        if y.shape[1] == WORDS and not decoding.is_textbook:  # the encoder's words are decoded
            raise mistake("decoder-input-not-used", y[0, 0], step=1)
        right = (reviews, steps, VOCABULARY if decoding.is_textbook else y.shape[-1])
        if y.shape[:2] == right[:2] and y.shape != right:
            registered(part)
        rules.require_shape(y, right, f"For tokens ({reviews}, {steps}), the result", part)


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    decoding = Decoding(part)
    first, again = decoding.once(), decoding.once()
    if not same(first, again, 1e-5):
        raise mistake("random-in-evaluation", first, again)


def registered(part: Part) -> None:
    """Every layer and every weight is registered, and used."""
    decoding = Decoding(part)
    net = decoding.net
    rules.require_no_lists(net)
    rules.require_parameters(net, Decoding(part, seed=1).net, decoding.once)
    decoding = Decoding(part)
    calls: set[nn.Module] = set()
    with nn.modules.module.register_module_forward_hook(lambda module, *_: calls.add(module)):
        y = decoding.with_gradients(target(decoding.vocabulary))
    if not y.requires_grad:
        raise mistake("no-gradient", count="All", names="the result has no gradient")
    student(lambda: y.square().sum().backward())
    for name, module in decoding.net.named_modules():
        own = list(module.parameters(recurse=False))
        is_layer = isinstance(module, nn.Linear | nn.RNNBase | nn.RNNCellBase | nn.Embedding)
        if is_layer and all(p.grad is None for p in own if p.requires_grad) and own:
            if decoding.is_textbook and is_without_attention(decoding):
                return  # the rule of the context says it
            if module not in calls:
                raise mistake("layer-not-used", name=name)


def gradients(part: Part) -> None:
    """Every parameter receives a gradient."""
    decoding = Decoding(part)
    y = decoding.with_gradients(target(decoding.vocabulary))
    student(lambda: y.square().sum().backward())
    every = decoding.net.named_parameters()
    without = [name for name, p in every if p.requires_grad and p.grad is None]
    if without:
        raise mistake("no-gradient", count=len(without), names=", ".join(without[:4]))


def is_without_attention(decoding: Decoding) -> bool:
    """Whether the context is the same for all states."""
    return context_without_attention(decoding) != ""


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax or another function."""
    y = Decoding(part).once()
    if any(same(z.sum(n), torch.ones_like(z.sum(n))) for z in (y, y.exp()) for n in (0, 1, 2)):
        raise mistake("softmax-twice", y[0, 0])
    if bool((y >= 0).all()) and bool((y <= 1).all() or (y == 0).any()):
        raise mistake("logits-not-negative", y[0, 0])


def batch(part: Part) -> None:
    """A review gives the same result alone and in a batch with other reviews."""
    decoding = Decoding(part)
    tokens = target(decoding.vocabulary)
    together = decoding(tokens)
    results: list[Tensor] = []
    for row in range(REVIEWS):
        one = slice(row, row + 1)
        given: Any = decoding.source_BT[one]
        if decoding.is_textbook:
            outputs, states, lengths = decoding.memory
            assert lengths is not None
            given = Memory(outputs[one], [x[:, one] for x in states], lengths[one])
        results.append(decoding(tokens[one], given))
    alone = torch.cat(results)
    if same(together, alone):
        return
    if same(together, alone.transpose(0, 1).reshape(together.shape)):
        raise mistake("results-reshaped", alone, together)
    raise named("depends-on-batch", "depends-on-batch-in-decoder", alone, together)


def steps(part: Part) -> None:
    """Each step reads its own token and, by the state, earlier ones, but no later ones."""
    decoding = Decoding(part)
    tokens = target(decoding.vocabulary)
    y = decoding(tokens)
    if same(y, y[:, :1].expand_as(y), EXACT):
        raise mistake("same-at-each-step", y[0, 0])
    others = [decoding(changed_at(tokens, n, decoding.vocabulary)) for n in range(STEPS)]
    for step, other in enumerate(others):
        if not same(y[:, :step], other[:, :step], 1e-5):
            raise mistake("sees-later-tokens", y[:, :step], other[:, :step], step=step + 1)
    for step, other in enumerate(others):
        is_late = step + 1 < STEPS and not same(y[:, step + 1], other[:, step + 1], EXACT)
        if is_late and same(y[:, step], other[:, step], EXACT):
            raise mistake("one-step-late", y[:, step], step=step + 1)
        require_effect("decoder-input-not-used", y[:, step], other[:, step], step=step + 1)
        if step + 1 < STEPS:
            later, z = y[:, step + 1 :], other[:, step + 1 :]
            require_effect("state-not-carried", later, z, step=step + 1)


def encoder(part: Part) -> None:
    """The result depends on the encoder."""
    decoding = Decoding(part)
    tokens = target(decoding.vocabulary)
    y, given = decoding(tokens), decoding.source_BT
    if decoding.is_textbook:
        outputs, states, lengths = decoding.memory
        other: Any = Memory(outputs + 1, states, lengths)
        require_effect("context-not-used", y, decoding(tokens, other))
        other = Memory(outputs, [x + normal(*x.shape, seed=9) for x in states], lengths)
        require_effect("encoder-not-used", y[:, 0], decoding(tokens, other)[:, 0])
        return
    others = [decoding(tokens, changed_at(given, n, decoding.vocabulary)) for n in range(WORDS)]
    without = [n for n, other in enumerate(others) if same(y, other, EXACT)]
    if without and without != [*range(WORDS)]:
        words = ", ".join(str(n + 1) for n in without)
        raise mistake("encoder-words-not-used", y, words=words, count=WORDS)
    if without:
        raise mistake("encoder-not-used", y)


# --- states ---------------------------------------------------------------------------------------


class Calls:
    """What the methods and recurrent layers of a model are given and return, within a with block.

    contexts: of get_context_vector, the state that it is given and its result. states: of each call
    of a recurrent layer or cell, the states before and after it, (h,) or (h, c), and its outputs.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.contexts: list[tuple[Tensor, Tensor]] = []
        self.states: list[tuple[nn.Module, list[Tensor], list[Tensor]]] = []
        self.outputs: list[tuple[Any, Any]] = []

    def __enter__(self) -> "Calls":
        register = nn.modules.module.register_module_forward_hook
        self.handle = register(self.keep, with_kwargs=True)
        method = getattr(self.net, "get_context_vector", None)
        if method is not None:
            object.__setattr__(self.net, "get_context_vector", partial(self.context, method))
        return self

    def __exit__(self, *error: object) -> None:
        self.handle.remove()
        vars(self.net).pop("get_context_vector", None)

    def context(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        y = method(*given, **named)
        state = [*given, *named.values()][-1]
        state = state[0] if isinstance(state, tuple | list) else state
        if isinstance(y, Tensor) and isinstance(state, Tensor):
            self.contexts.append((state.detach().clone(), y.detach().clone()))
        return y

    def keep(self, module: nn.Module, given: Any, named: Any, y: Any) -> None:
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            rest = [*given[1:], *named.values()]
            after = y if isinstance(module, nn.RNNCellBase) else y[1]
            before = rest[0] if rest else None
            self.states.append((module, state_kept(before), state_kept(after)))
            self.outputs.append((module, y))


def state_kept(state: Any) -> list[Tensor]:
    """Copies of h, or of h and c; none if there is no state."""
    tensors = [x for x in tree_leaves(state) if isinstance(x, Tensor)]
    return [x.detach().clone() for x in tensors]


def state_carried(part: Part) -> None:
    """Each step of the decoder starts with the state after the step before, the first with that of
    the encoder.
    """
    decoding = Decoding(part)
    with Calls(decoding.net) as calls:
        decoding.once()
    by_layer: dict[int, list[tuple[list[Tensor], list[Tensor]]]] = {}
    for module, before, after in calls.states:
        by_layer.setdefault(id(module), []).append((before, after))
    for rows in by_layer.values():
        if len(rows) != STEPS:
            continue
        for step, ((_, after), (before, _)) in enumerate(itertools.pairwise(rows), 2):
            before = before or [torch.zeros_like(x) for x in after]
            for what, old, new in zip(("hidden state", "cell"), after, before, strict=False):
                if old.shape == new.shape and not same(old, new, 1e-6):
                    raise mistake("state-of-another-step", new, old, step=step, what=what)
    if not decoding.is_textbook and len({id(module) for module, _, _ in calls.states}) == 2:
        encoder, _, last = calls.states[0]
        _, before, _ = next(one for one in calls.states if one[0] is not encoder)
        require_encoder_state(last, before)


def require_encoder_state(last: list[Tensor], before: list[Tensor]) -> None:
    """Raises Mistake if the decoder does not start with the encoder's last state, and cell."""
    if not before or not any(bool(x.any()) for x in before):
        raise mistake("encoder-state-not-used", what="state")
    if len(last) == len(before) == 2:
        for x, what in zip(before, ("hidden state", "cell"), strict=True):
            if not bool(x.any()):
                raise mistake("encoder-state-not-used", what=what)
        h, c, new_h, new_c = (x.flatten() for x in (*last, *before))
        if same(h, new_c) and same(c, new_h):
            raise mistake("encoder-state-exchanged", new_h, h)


def carried(part: Part) -> None:
    """One call for all words gives the results of calls word by word, with the returned state."""
    decoding = Decoding(part)
    tokens = target(decoding.vocabulary)
    y, state = decoding(tokens), student(decoding.start, decoding.memory)
    single = []
    for step in range(STEPS):
        result = student(decoding.net, tokens[:, step : step + 1], state)
        if not isinstance(result, tuple | list) or len(result) < 2:
            raise mistake("state-not-returned", y[0, 0], y[0, 1])
        state = result[1]
        single.append(result[0].detach())
    if not same(z := torch.cat(single, 1), y):
        raise mistake("state-not-returned", z, y)


# --- attention ------------------------------------------------------------------------------------


def weights_of(decoding: Decoding, given: Any = None, tokens: Tensor | None = None) -> list[Tensor]:
    """The weights over the encoder's words, (B, T), of each step: tensors that are not negative and
    sum to 1 along an axis of T words. Equal ones count once.
    """
    with Recorder() as recorder:
        decoding(target(decoding.vocabulary) if tokens is None else tokens, given)
    found: list[Tensor] = []
    for x in recorder.made:
        for x_BT in steps_of(x):
            is_weights = bool((x_BT >= 0).all()) and same(x_BT.sum(1), torch.ones(REVIEWS).to(x))
            if is_weights and not any(same(x_BT, y, 1e-9) for y in found):
                found.append(x_BT)
    return found


def steps_of(x: Tensor) -> list[Tensor]:
    """The tensor as (B, T) for one step, or for each of several; [] if it has another shape."""
    if x.shape == (REVIEWS, STEPS, WORDS):
        return [*x.unbind(1)]
    if x.shape == (REVIEWS, WORDS, STEPS):
        return [*x.unbind(2)]
    if x.numel() != REVIEWS * WORDS or not {REVIEWS, WORDS} <= {*x.shape}:
        return []
    x_BT = x.squeeze()
    return [x_BT if x_BT.shape[-1] == WORDS else x_BT.mT]


def distinct(tensors: list[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for x in tensors:
        if not any(same(x, y) for y in found):
            found.append(x)
    return found


def context(part: Part) -> None:
    """The context is computed anew at each step, from the state of that step."""
    decoding = Decoding(part)
    with Calls(decoding.net) as calls:
        decoding.once()
    found = weights_of(decoding)
    if len(calls.contexts) >= STEPS:  # it is called at each step: are the states those of the step?
        found = distinct([state for state, _ in calls.contexts])
    if not found and not calls.contexts:
        if not decoding.is_textbook and not hasattr(decoding.net, "get_context_vector"):
            raise NotChecked("The model has no attention: its context was not checked.")
        if decoding.is_textbook and (what := context_without_attention(decoding)):
            raise mistake("context-without-attention", decoding.once(), what=what)
        raise NotChecked(f"The context was not checked: {WITHOUT_WEIGHTS}.")
    if len(found) < STEPS:
        weights = weights_of(decoding) or [y for _, y in calls.contexts]
        values = {"count": len(distinct(weights)), "steps": STEPS}
        raise mistake("context-computed-once", weights[0].flatten(1)[0], **values)
    cells = [after[1] for _, _, after in calls.states if len(after) == 2]
    for state, _ in calls.contexts:
        if any(state.shape == cell.shape and same(state, cell, 1e-6) for cell in cells):
            raise mistake("query-of-the-cell", state, cells[0])


def context_without_attention(decoding: Decoding) -> str:
    """What the context is, if it is the same for all states: the mean of the outputs, or one of
    them; "" if it is not.
    """
    outputs, states, lengths_B = decoding.memory
    assert lengths_B is not None
    is_word = (torch.arange(WORDS) < lengths_B[:, None])[..., None].to(outputs)
    same_for_all = {
        "the mean of the outputs": outputs.mean(1, keepdim=True),
        "the mean of the words": (outputs * is_word).sum(1, keepdim=True) / is_word.sum(1)[:, None],
        "the last output": outputs[:, -1:],
        "the first output": outputs[:, :1],
        "the output of the last word": outputs[torch.arange(REVIEWS), lengths_B - 1][:, None],
    }
    y, tokens = decoding.once(), target(decoding.vocabulary)
    for what, context in same_for_all.items():
        memory = Memory(context.expand_as(outputs), states, lengths_B)
        if same(y, decoding(tokens, memory)):
            return what
    return ""


def lengths(part: Part) -> None:
    """Words beyond a review's length have no effect, and None stands for all words."""
    decoding = Decoding(part)
    tokens = target(decoding.vocabulary)
    outputs, states, lengths_B = decoding.memory
    assert lengths_B is not None
    padding = torch.arange(WORDS) >= lengths_B[:, None]
    other = outputs.masked_fill(padding[..., None], 3.0)
    y, z = decoding(tokens), decoding(tokens, Memory(other, states, lengths_B))
    if not same(y, z, 1e-5):
        raise named("lengths-ignored", "lengths-not-used", y, z)
    every = decoding(tokens, Memory(outputs, states, None))
    full = decoding(tokens, Memory(outputs, states, torch.full((REVIEWS,), WORDS)))
    if not same(every, full, 1e-5):
        raise mistake("none-hides-words", every, full)


def query(part: Part) -> None:
    """The query is the state of the decoder's last layer."""
    decoding = Decoding(part)
    outputs, states, lengths_B = decoding.memory
    tokens = target(decoding.vocabulary)[:, :1]

    def first(*moved: Tensor) -> Tensor:
        found = weights_of(decoding, Memory(outputs, [*moved], lengths_B), tokens)
        if not found:
            raise NotChecked(f"The query was not checked: {WITHOUT_WEIGHTS}.")
        return found[0]

    def moved(number: int, layer: int) -> list[Tensor]:
        made = [x.clone() for x in states]
        made[number][layer] += normal(REVIEWS, WIDTH, seed=11)
        return made

    before = first(*states)
    tokens = (tokens + 1) % decoding.vocabulary
    if not same(before, other := first(*states), EXACT):
        raise mistake("query-of-the-word", before[0], other[0])
    if not same(before, other := first(*moved(0, 0)), EXACT):
        raise mistake("query-of-another-layer", before[0], other[0])
    if len(states) > 1 and not same(before, other := first(*moved(1, -1)), EXACT):
        raise mistake("query-of-the-cell", before[0], other[0])
    require_effect("state-not-used", before[0], first(*moved(0, -1))[0], fix="Use state[-1].")


def context_used(part: Part) -> None:
    """The context has an effect on the logits."""
    decoding = Decoding(part)
    method = getattr(decoding.net, "get_context_vector", None)
    if method is None:
        raise NotChecked("The model has no get_context_vector: its context was not checked.")
    with Calls(decoding.net) as calls:
        y = decoding.once()
    if not calls.contexts and weights_of(decoding):
        raise NotChecked("forward does not call get_context_vector: its context was not checked.")
    object.__setattr__(decoding.net, "get_context_vector", lambda *a, **k: method(*a, **k) * 0)
    require_effect("context-not-used", y, decoding.once())


# --- the prediction of the lab's model ------------------------------------------------------------


def encoded(decoding: Decoding) -> tuple[Tensor, Any]:
    """The encoder's outputs (B, T, H) and its state: of the first recurrent layer called."""
    with Calls(decoding.net) as calls:
        decoding.once()
    found = [(module, y) for module, y in calls.outputs if isinstance(module, nn.RNNBase)]
    if found and isinstance(found[0][1][0], Tensor):
        module, (outputs, state) = found[0]
        outputs = outputs if module.batch_first else outputs.transpose(0, 1)
        if outputs.shape[:2] == (REVIEWS, WORDS):
            return outputs.detach(), state
    size = hidden_size(decoding.net)
    return normal(REVIEWS, WORDS, size, seed=6), normal(1, REVIEWS, size, seed=7)


def next_token(decoding: Decoding, values: list[Any]) -> Any:
    """The result of get_next_token for the encoder's outputs, tokens (B, 1) and a state."""
    method = decoding.net.get_next_token
    names = [*parameters_of(method)]
    values = values[-len(names) :]
    kinds = kinds_of(names)
    wanted = [1, 2] if len(values) == 2 else [0, 1, 2]
    if sorted(kinds) == wanted:  # in the order of the method's arguments
        values = [values[wanted.index(kind)] for kind in kinds]
    return student(method, *values)


def kinds_of(names: list[str]) -> list[int]:
    """For each argument 1 for tokens, 2 for a state, and 0 for the encoder's outputs."""
    return [2 if HIDDEN.fullmatch(name) else 1 if TOKENS.fullmatch(name) else 0 for name in names]


def prediction(part: Part) -> None:
    """get_next_token, word by word, gives the largest logits of forward for the same words."""
    decoding = Decoding(part)
    if getattr(decoding.net, "get_next_token", None) is None:
        raise NotChecked("The model has no get_next_token: the prediction was not compared.")
    for seed in range(3):
        decoding = Decoding(part, seed)
        tokens = target(decoding.vocabulary, seed)
        y = decoding(tokens)
        outputs, state = encoded(decoding)
        for step in range(STEPS):
            values = [outputs, tokens[:, step : step + 1], state]
            result = next_token(decoding, values)
            found = list(result) if isinstance(result, tuple | list) else [result]
            best, token = y[:, step].argmax(-1), token_of(found, y.shape[-1])
            if torch.equal(token, y[:, step].argmin(-1)):
                raise mistake("prediction-not-largest", token, best, step=step + 1)
            if not torch.equal(token, best):
                raise mistake("prediction-differs", token, best, step=step + 1)
            state = state_of(found, decoding)
            if len(found) < 2 or state is None:
                break  # without the state there is no next step


def token_of(found: list[Any], size: int) -> Tensor:
    """(B,), the token among the results, or that of the largest logit."""
    for x in found:
        if isinstance(x, Tensor) and not x.is_floating_point():
            return x.reshape(-1)
        if isinstance(x, Tensor) and x.shape[-1] == size:
            return x.reshape(-1, size).argmax(-1)
    raise NotChecked("The prediction was not compared: it has neither a token nor logits.")


def state_of(found: list[Any], decoding: Decoding) -> Any:
    """The state among the results of get_next_token; None if there is none."""
    size = hidden_size(decoding.net)

    def is_state(x: Any) -> bool:
        return isinstance(x, Tensor) and x.is_floating_point() and x.shape[-1] == size

    states = [x for x in found if isinstance(x, tuple) or is_state(x)]
    return states[-1] if states else None


FOR_ALL = [
    Rule("shape", logits_shape),
    Rule("repeatable", repeatable),
    Rule("registered", registered, ("repeatable",)),
    Rule("logits", returns_logits, ("repeatable",)),
    Rule("batch", batch, ("repeatable", "logits")),
    Rule("encoder", encoder, ("repeatable", "batch")),
    Rule("steps", steps, ("repeatable", "batch", "encoder")),
    Rule("state-carried", state_carried, ("repeatable", "steps", "encoder")),
    Rule("context", context, ("repeatable", "steps", "encoder", "state-carried")),
    Rule("gradients", gradients, ("registered", "encoder", "steps", "context")),
]
DECODER = [
    *FOR_ALL,
    Rule("lengths", lengths, ("repeatable", "batch", "context")),
    Rule("query", query, ("repeatable", "context", "encoder")),
    Rule("state", carried, ("repeatable", "steps", "context", "state-carried")),
]
SEQ2SEQ = [
    *FOR_ALL,
    Rule("context-used", context_used, ("repeatable", "context")),
    Rule("prediction", prediction, ("steps", "encoder", "context", "state-carried")),
]
