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

import imdbattn.tools.check.instead as instead
from imdbattn.tools.check.numbers import (
    Mistake,
    NotChecked,
    StudentError,
    mistake,
    named,
    normal,
    same,
)
from imdbattn.tools.check.operations import (
    Operation,
    Operations,
    is_of_attention,
    require_known,
    require_scale,
    require_softmax,
    softmaxes,
)
from imdbattn.tools.check.part import Part, Recorder, net_of, student
from imdbattn.tools.check.rules import require_no_lists, require_shape
from imdbattn.tools.check.tables import describe

REVIEWS, STEPS, WORDS = 3, 4, 5
LENGTHS = (5, 2, 3)  # of the encoder's reviews
LAYERS, WIDTH, VOCABULARY = 2, 8, 11
SHAPE = {"B": REVIEWS, "T": WORDS, "H": 2}  # as for require_known
EXACT = 1e-6  # a smaller effect is none
ATTENTIONS = ("AdditiveAttention", "scaled_dot_product_attention")
WITHOUT_WEIGHTS = "no weights (B, T) were recognized"
LENGTH = re.compile(".*(len|seq|steps|max).*", re.IGNORECASE)  # names of a number of steps


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

    def __init__(self, part: Part) -> None:
        self.part, self.net = part, made(part)
        self.is_textbook = part.kind == "Decoder"
        self.vocabulary, self.source_BT, self.constant = VOCABULARY, torch.empty(0), ""
        if self.is_textbook:
            self.memory = memory_of(self.net)
            student(self.once)
            self.net = materialized(self.net)
            return
        sizes = [m.num_embeddings for m in self.net.modules() if isinstance(m, nn.Embedding)]
        tables = [p for p in self.net.parameters(recurse=False) if p.ndim == 2]
        sizes = sizes or [len(table) for table in tables]  # one of which is indexed by tokens
        if not sizes:
            raise NotChecked("It was not checked: the model has no nn.Embedding.")
        self.vocabulary = min(sizes)
        self.source_BT = (torch.arange(REVIEWS * WORDS).view(REVIEWS, WORDS) * 7 + 2) % (
            self.vocabulary
        )
        self.find_constant()

    def find_constant(self) -> None:
        """Finds the constant of the file, such as SEQ_LENGTH, that is the number of steps, if the
        model decodes so many and cannot decode fewer.
        """
        try:
            student(self.once)
        except StudentError:
            for name, value in self.part.own.items():
                if isinstance(value, int) and value > STEPS and LENGTH.fullmatch(name):
                    self.constant = name
                    with suppress(StudentError):
                        student(self.once)
                        return
            self.constant = ""

    @contextmanager
    def steps_of(self, tokens_BS: Tensor) -> Iterator[None]:
        """The constant is the number of these steps within a with block."""
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

    def with_gradients(self) -> Tensor:
        """The result as it is returned, not detached."""
        tokens_BS = target(self.vocabulary)
        if self.is_textbook:
            y = self.net(tokens_BS, self.start(self.memory))
        else:
            with self.steps_of(tokens_BS):
                y = self.net(self.source_BT, tokens_BS)
        first: Tensor = y[0] if isinstance(y, tuple | list) else y
        return first

    def start(self, memory: Memory) -> Any:
        states = memory.states[0] if len(memory.states) == 1 else tuple(memory.states)
        return self.net.init_state((memory.outputs_BTH.transpose(0, 1), states), memory.lengths_B)

    def __call__(self, tokens_BS: Tensor, given: Any = None) -> Tensor:
        """given: other memory, or another source, than the usual one."""
        if self.is_textbook:
            state = student(self.start, self.memory if given is None else given)
            y = student(self.net, tokens_BS, state)
        else:
            with self.steps_of(tokens_BS):
                y = student(self.net, self.source_BT if given is None else given, tokens_BS)
        y = y[0] if isinstance(y, tuple | list) and y else y
        if not self.is_textbook and isinstance(y, Tensor) and y.ndim == 2:
            y = by_review(y, tokens_BS, self.source_BT if given is None else given)
        if not isinstance(y, Tensor) or y.ndim != 3:
            shape = (*tokens_BS.shape, self.vocabulary)
            require_shape(y, shape, f"For tokens {tuple(tokens_BS.shape)}, the result", self.part)
        return y.detach()


def by_review(y: Tensor, tokens_BS: Tensor, source_BT: Tensor) -> Tensor:
    """Logits (B * S, V), as the lab returns them, are returned as (B, S, V); others unchanged.

    A model that decodes the encoder's words returns (B * T, V), which becomes (B, T, V).
    """
    for words in (tokens_BS, source_BT):
        if len(y) == words.numel():
            return y.view(*words.shape, -1)
    return y


def materialized(net: nn.Module) -> nn.Module:
    """The module with random parameters; those of lazy layers exist now, if they are used."""
    for number, parameter in enumerate(net.parameters()):
        if nn.parameter.is_lazy(parameter):
            continue
        torch.default_generator.manual_seed(100 + number)
        nn.init.normal_(parameter, std=(1, *parameter.squeeze().shape)[-1] ** -0.5)
    return net


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
        require_shape(y, right, f"For tokens ({reviews}, {steps}), the result", part)


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    decoding = Decoding(part)
    first, again = decoding.once(), decoding.once()
    if not same(first, again, 1e-5):
        raise mistake("random-in-evaluation", first, again)


def registered(part: Part) -> None:
    """Every layer is registered, and used."""
    decoding = Decoding(part)
    require_no_lists(decoding.net)
    calls: set[nn.Module] = set()
    with nn.modules.module.register_module_forward_hook(lambda module, *_: calls.add(module)):
        y = student(decoding.with_gradients)
    if not y.requires_grad:
        return
    student(lambda: y.square().sum().backward())
    method = getattr(type(decoding.net), "get_context_vector", None)
    if method is not None and method.__module__ == instead.__name__:
        return  # it was replaced by a right one, which does not use them
    for name, module in decoding.net.named_modules():
        is_linear = isinstance(module, nn.Linear) and module not in calls
        if is_linear and module.weight.grad is None:
            if decoding.is_textbook and is_without_attention(decoding):
                return  # the rule of the context says it
            raise mistake("layer-not-used", name=name)


def is_without_attention(decoding: Decoding) -> bool:
    """Whether the context is the same for all states."""
    try:
        require_weights(decoding)
    except Mistake:
        return True
    return False


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
    if decoding.is_textbook:
        outputs = decoding.memory.outputs_BTH
        reshaped = outputs.transpose(0, 1).reshape(outputs.shape)
        state = student(decoding.start, decoding.memory)
        if any(isinstance(x, Tensor) and same(x, reshaped) for x in tree_leaves(state)):
            raise mistake("outputs-reshaped", alone, together)
    require_batch_first(decoding, alone, together)
    with Operations() as operations:
        decoding.once()
    require_known(operations.made, SHAPE, [WORDS] * REVIEWS, is_scaled=False)
    raise named("depends-on-batch", "depends-on-batch-in-decoder", alone, together)


def require_batch_first(decoding: Decoding, alone: Tensor, together: Tensor) -> None:
    """Raises Mistake if a recurrent layer takes the axis of reviews for that of words."""

    def keep(module: nn.Module, given: tuple[Any, ...]) -> None:
        is_time_first = isinstance(module, nn.RNNBase) and not module.batch_first
        x = given[0] if given else None
        if is_time_first and isinstance(x, Tensor) and x.shape[:2] in reviews_first:
            name = next(key for key, one in decoding.net.named_modules() if one is module)
            raise mistake("not-batch-first", alone, together, name=name)

    reviews_first = [(REVIEWS, WORDS), (REVIEWS, STEPS), (REVIEWS, 1)]
    with nn.modules.module.register_module_forward_pre_hook(keep):
        decoding.once()


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


# --- attention ------------------------------------------------------------------------------------


def weights_of(decoding: Decoding, given: Any = None, tokens: Tensor | None = None) -> list[Tensor]:
    """The weights over the encoder's words, (B, T), of each step: tensors that are not negative and
    sum to 1 along an axis of T words. Equal ones that follow each other count once.
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


class Calls:
    """What the methods and recurrent layers of a model are given and return, within a with block.

    contexts: of get_context_vector, the state that it is given and its result. states: of each call
    of a decoder's recurrent layer or cell, the states before and after it, (h,) or (h, c).
    """

    def __init__(self, decoding: Decoding) -> None:
        self.net = decoding.net
        self.contexts: list[tuple[Tensor, Tensor]] = []
        self.states: list[tuple[nn.Module, list[Tensor], list[Tensor]]] = []
        self.outputs: list[Tensor | None] = []  # of each call of a recurrent layer, (B, T, H)

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
        if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
            return
        rest = [*given[1:], *named.values()]
        after = y if isinstance(module, nn.RNNCellBase) else y[1]
        before = rest[0] if rest else None
        self.states.append((module, state_kept(before), state_kept(after)))
        is_batched = isinstance(module, nn.RNNBase) and isinstance(y[0], Tensor) and y[0].ndim == 3
        outputs = y[0].detach() if is_batched else None
        if outputs is not None and not module.batch_first:
            outputs = outputs.transpose(0, 1)
        self.outputs.append(outputs)


def state_kept(state: Any) -> list[Tensor]:
    """Copies of h, or of h and c; none if there is no state."""
    tensors = [x for x in tree_leaves(state) if isinstance(x, Tensor)]
    return [x.detach().clone() for x in tensors]


@contextmanager
def known_attention(part: Part) -> Iterator[bool]:
    """Within a with block, the file's classes of attention are right ones, whose weights are
    recognized. Yields whether there are any.
    """
    before = dict(part.own)
    for other in part.others:
        if isinstance(other.make, type) and other.kind in ATTENTIONS:
            right = instead.instead(other)
            part.own.update({name: right for name, one in before.items() if one is other.make})
    try:
        yield any(part.own[name] is not one for name, one in before.items())
    finally:
        part.own.update(before)


def of_weights(rule: Callable[[Part], None], part: Part) -> None:
    """The rule; with a right attention in the file if no weights are recognized with its own."""
    try:
        rule(part)
    except NotChecked as reason:
        if WITHOUT_WEIGHTS in str(reason):
            with known_attention(part) as is_replaced:
                if is_replaced:
                    return rule(part)
        raise


def context(part: Part) -> None:
    """The context is computed anew at each step, from the state of that step."""
    of_weights(new_context, part)


def new_context(part: Part) -> None:
    """As context, for an attention whose weights are recognized."""
    decoding = Decoding(part)
    with Calls(decoding) as calls:
        decoding.once()
    found = weights_of(decoding)
    if len(calls.contexts) >= STEPS:  # it is called at each step: are the states those of the step?
        found = distinct([state for state, _ in calls.contexts])
    if not found and not calls.contexts:
        if not decoding.is_textbook and not hasattr(decoding.net, "get_context_vector"):
            raise NotChecked("The model has no attention: its context was not checked.")
        if decoding.is_textbook:
            require_weights(decoding)
            require_known_attention(decoding)
        raise NotChecked(f"The context was not checked: {WITHOUT_WEIGHTS}.")
    if len(found) < STEPS:
        weights = weights_of(decoding) or [y for _, y in calls.contexts]
        values = {"count": len(distinct(weights)), "steps": STEPS}
        raise mistake("context-computed-once", weights[0].flatten(1)[0], **values)
    cells = [after[1] for _, _, after in calls.states if len(after) == 2]
    for state, _ in calls.contexts:
        if any(state.shape == cell.shape and same(state, cell, 1e-6) for cell in cells):
            raise mistake("query-of-the-cell", state, cells[0])
    if decoding.is_textbook:
        with Operations() as operations:
            decoding.once()
        require_outputs_averaged(decoding, operations.made, found)
        require_known_scale(operations.made)


def require_known_scale(made: list[Operation]) -> None:
    """Raises Mistake if products of queries and keys are multiplied by another number than
    1 / sqrt(d); they may have no scale.
    """
    for one in softmaxes(made):
        if is_of_attention(one, SHAPE):
            try:
                require_scale(one, made[: one.place], SHAPE)
            except Mistake as found:
                if found.args[0] == "wrong-scale":
                    raise


def require_outputs_averaged(
    decoding: Decoding, made: list[Operation], weights: list[Tensor]
) -> None:
    """Raises Mistake if the weights (B, T) are applied to what is added to the query for the
    scores: the projected keys.
    """
    averaged = [
        x
        for one in made
        if one.name in ("bmm", "mul") and has_one_of(one.given, weights)
        for x in one.given
        if isinstance(x, Tensor) and x.numel() == decoding.memory.outputs_BTH.numel()
    ]
    for one in made:
        for x in one.given if one.name == "add" else ():
            keys = [y for y in averaged if isinstance(x, Tensor) and is_equal(x, y)]
            if keys and not is_equal(keys[0], decoding.memory.outputs_BTH):
                raise mistake("keys-not-outputs", keys[0], decoding.memory.outputs_BTH)


def has_one_of(given: list[Any], weights: list[Tensor]) -> bool:
    """Whether one of these arguments is one of the weights, in another shape."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    return any(is_equal(x, y) for x in tensors for y in weights)


def is_equal(x: Tensor, y: Tensor) -> bool:
    """Whether they have the same numbers in the same order."""
    if not x.is_floating_point() or x.numel() != y.numel():
        return False
    return same(x.flatten(), y.flatten(), EXACT)


def require_known_attention(decoding: Decoding) -> None:
    """Raises Mistake if the operations show why no weights are recognized."""
    with Operations() as operations:
        decoding.once()
    require_softmax(operations.made)
    require_known(operations.made, SHAPE, [WORDS] * REVIEWS, is_scaled=False)


def require_weights(decoding: Decoding) -> None:
    """Raises Mistake if the context is the same for all states: the mean of the outputs, or one."""
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
    y = decoding.once()
    tokens = target(decoding.vocabulary)
    for what, context in same_for_all.items():
        memory = Memory(context.expand_as(outputs), states, lengths_B)
        if same(y, decoding(tokens, memory)):
            raise mistake("context-without-attention", y, what=what)


def distinct(tensors: list[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for x in tensors:
        if not any(same(x, y) for y in found):
            found.append(x)
    return found


def state_carried(part: Part) -> None:
    """Each step of the decoder starts with the state after the step before, the first with that of
    the encoder.
    """
    decoding = Decoding(part)
    with Calls(decoding) as calls:
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
        require_encoder_state(calls.outputs[0], last, before)


def require_encoder_state(outputs: Tensor | None, last: list[Tensor], before: list[Tensor]) -> None:
    """Raises Mistake if the decoder does not start with the encoder's last state.

    outputs: the encoder's, (B, T, H). last, before: the state, and the cell.
    """
    if not before or not any(bool(x.any()) for x in before):
        raise mistake("encoder-state-not-used", what="state")
    if len(last) == len(before) == 2:
        for x, what in zip(before, ("hidden state", "cell"), strict=True):
            if not bool(x.any()):
                raise mistake("encoder-state-not-used", what=what)
        h, c, new_h, new_c = (x.flatten() for x in (*last, *before))
        if same(h, new_c) and same(c, new_h):
            raise mistake("encoder-state-exchanged", new_h, h)
    if outputs is None or last[0].numel() != before[0].numel():
        return
    start, right = before[0].flatten(), last[0].flatten()
    if start.numel() == outputs[:, 0].numel() and not same(start, right):
        if same(start, outputs[:, 0].flatten()):
            raise mistake("encoder-first-state", start, right, what="state after the first word")
        if same(start, outputs.mean(1).flatten()):
            raise mistake("encoder-first-state", start, right, what="mean of the outputs")


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
    of_weights(query_of_last_layer, part)


def query_of_last_layer(part: Part) -> None:
    """As query, for an attention whose weights are recognized."""
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


def carried(part: Part) -> None:
    """One call for all words gives the results of calls word by word, with the returned state."""
    decoding = Decoding(part)
    tokens = target(decoding.vocabulary)
    y, state = decoding(tokens), student(decoding.start, decoding.memory)
    single = []
    for step in range(STEPS):
        result = student(decoding.net, tokens[:, step : step + 1], state)
        if not isinstance(result, tuple | list) or len(result) < 2:
            raise Mistake(*describe("state-not-returned", "one result", "another state"))
        state = result[1]
        single.append(result[0].detach())
    if not same(z := torch.cat(single, 1), y):
        raise mistake("state-not-returned", z, y)
