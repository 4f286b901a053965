"""Rules of Classifier: vectors -> + positions -> layers -> masked mean or CLS -> logits.

Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes, S models.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check import generic
from imdbattn.check.functions import sinusoids
from imdbattn.check.generic import VECTORS, VOCABULARY, inputs, trained, vectors_VD
from imdbattn.check.generic import module as model
from imdbattn.check.rules import Mistake, NotChecked, Part, Rule, diagnose, differing, same, show, student

SEEDS = range(3)  # of models; a change that has no effect in any of them is taken to have none
EXACT = 1e-5  # a smaller effect is none
REVIEW = [[4, 2, 9]]
LIST_FIX = "Make a new module for each: nn.ModuleList(Layer(width) for _ in range(3))."
CLS_FIX = "self.cls = nn.Parameter(torch.randn(width)); in forward torch.cat([cls, x], 1), cls of shape (B, 1, D)."
MASK_FIX = "Make the mask from the lengths, torch.arange(T) < lengths[:, None], and use it in f and in the mean."
HEAD_FIX = "Return the output of the last nn.Linear; for probabilities apply softmax outside of the model."
POSITIONS_FIX = "x = vectors[tokens] + positional_encoding(T, D), once, before the first layer, if they are wanted."


def logits(net: nn.Module, tokens: Any, lengths: Any = None) -> Tensor:
    """Detached, (B, C). lengths: all of the tokens by default."""
    tokens_BT = torch.as_tensor(tokens)
    lengths_B = torch.full(tokens_BT.shape[:1], tokens_BT.shape[1]) if lengths is None else torch.as_tensor(lengths)
    return student(net, tokens_BT, lengths_B).detach()


def calls(net: nn.Module, tokens: Any, lengths: Any = None) -> list[tuple[nn.Module, list[Tensor], Tensor]]:
    """Each call of a module that returns a tensor, with the tensors it receives; the last one is that of net."""
    made: list[tuple[nn.Module, list[Tensor], Tensor]] = []

    def watch(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        if isinstance(output, Tensor):
            made.append((module, [x for x in (*inputs, *options.values()) if isinstance(x, Tensor)], output))

    for module in net.modules():
        if not isinstance(module, torch.jit.ScriptModule):  # which has no hooks
            module.register_forward_hook(watch, with_kwargs=True)
    logits(net, tokens, lengths)
    return made


AFTER: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
    ("softmax-twice", "softmax", lambda z: z.softmax(-1)),
    ("softmax-twice", "log_softmax", lambda z: z.log_softmax(-1)),
    ("logits-not-negative", "ReLU", torch.relu),
    ("logits-not-negative", "a sigmoid", torch.sigmoid),
    ("function-after-linear", "tanh", torch.tanh),
]


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax or another function after the last Linear."""
    reviews = [[a, b] for a in range(4) for b in (5, 8)]
    *inner, (_, _, y_BC) = calls(model(part), reviews)
    linears = [z for module, _, z in inner if isinstance(module, nn.Linear) and z.shape == y_BC.shape]
    for z_BC, (name, text, function) in itertools.product(linears, AFTER):
        if same(y_BC, function(z_BC)) and not same(y_BC, z_BC):
            sentence = f"The last step is {text}; logits are the results of a Linear."
            example = "For one review the result is {}; the last Linear gives {}."
            raise differing(name, sentence, example, y_BC[0], z_BC[0], HEAD_FIX)
    if same(y_BC.sum(1), torch.ones(len(y_BC))) or same(y_BC.exp().sum(1), torch.ones(len(y_BC))):
        example = f"The classes of one review get {show(y_BC[0])}."
        raise Mistake("softmax-twice", "The results are probabilities or their logarithms.", example, HEAD_FIX)


def frozen_vectors(part: Part) -> None:
    """The vectors are not trained."""
    for name, parameter in model(part).named_parameters():
        if parameter.requires_grad and tuple(parameter.shape) == (VOCABULARY, VECTORS):
            example, fix = f"{name}, {tuple(parameter.shape)}, has requires_grad=True.", "Use from_pretrained(vectors)."
            raise Mistake("vectors-trained", "The vectors are trained.", example, fix)


def ids(part: Part) -> None:
    """Every id is a word: only the lengths determine what is padding."""
    first, second = (logits(model(part, table_VD), REVIEW)[0] for table_VD in (vectors_VD(), vectors_VD().flip(0)))
    if same(first, second, EXACT):
        example = f"The review {REVIEW[0]} has the logits {show(first)} whatever the vectors are."
        fix = "Take them from the argument: nn.Embedding.from_pretrained(vectors)."
        raise Mistake("vectors-not-used", "The vectors have no effect on the logits.", example, fix)
    net = model(part)
    for token in (0, 1, 2, 3, VOCABULARY - 1, VOCABULARY - 2, VOCABULARY - 3):
        third, others = (token + 6) % VOCABULARY, [(token + place) % VOCABULARY for place in (9, 10)]
        before, after = logits(net, [[third, token]]), []
        for other in others:
            table_VD = vectors_VD()
            table_VD[[token, other]] = table_VD[[other, token]]
            after.append(logits(model(part, table_VD), [[third, other]]))
        if not any(same(before, one, EXACT) for one in after):
            example = f"{third} and {token} give {{}}; with the same vectors, but id {others[0]} for {token}, {{}}."
            name, text = "word-as-padding", f"The word with id {token} is read as padding, such as all unknown words."
            if token == 0:
                name, text = "id-0-as-padding", 'The word with id 0, which in GloVe is "the", is treated as padding.'
            raise differing(name, text, example, before[0], after[0][0], MASK_FIX)


def reversed_logits(part: Part, **options: Any) -> tuple[Tensor, Tensor] | None:
    """Two logits that differ although only the order of the words does."""
    for net in (model(part, seed=seed, **options) for seed in SEEDS):
        forwards, backwards = logits(net, REVIEW)[0], logits(net, [REVIEW[0][::-1]])[0]
        if not same(forwards, backwards, 1e-4):
            return forwards, backwards
    return None


def order(part: Part) -> None:
    """Without positions, the order of the words has no effect."""
    if found := reversed_logits(part):
        sentence, example = "Without positions, the order of words has an effect.", "4, 2, 9 give {}; 9, 2, 4 give {}."
        raise differing("depends-on-order", sentence, example, *found, POSITIONS_FIX)


Reading = Callable[[Tensor, Tensor], Tensor]  # of y (B, T, D) and w (B, T, 1), 1 on words and CLS
ROW = torch.arange
MEAN: list[tuple[str, str, Reading]] = [
    ("", "the mean of the words", lambda y, w: (y * w).sum(1) / w.sum(1)),
    ("depends-on-padding", "the mean of words and padding", lambda y, w: y.mean(1)),
    ("divides-by-padded-length", "the sum divided by the padded length", lambda y, w: (y * w).mean(1)),
    ("not-a-mean", "the sum of the words", lambda y, w: (y * w).sum(1)),
    ("not-a-mean", "the largest of the words", lambda y, w: y.masked_fill(w == 0, -1e9).amax(1)),
    ("last-word-only", "the last word", lambda y, w: y[ROW(len(y)), w.sum(1)[:, 0].long() - 1]),
    ("last-word-only", "the last position", lambda y, w: y[:, -1]),
]
CLS: list[tuple[str, str, Reading]] = [
    ("", "position 0", lambda y, w: y[:, 0]),
    ("cls-read-elsewhere", "the mean of CLS and the words", lambda y, w: (y * w).sum(1) / w.sum(1)),
    ("cls-read-elsewhere", "the mean of the words", lambda y, w: (y * w)[:, 1:].sum(1) / w[:, 1:].sum(1)),
    ("cls-read-elsewhere", "the last position", lambda y, w: y[:, -1]),
    ("cls-read-elsewhere", "the last word", lambda y, w: y[ROW(len(y)), w.sum(1)[:, 0].long() - 1]),
]


def read(part: Part, cls: bool) -> bool:
    """Whether the head reads what the reference reads of the last layer. Raises Mistake for another reading."""
    options: dict[str, Any] = {"cls": True} if cls else {}
    made = calls(model(part, **options), [[4, 2, 9, 1], [3, 8, 1, 6]], [4, 2])
    length = 5 if cls else 4
    weights = (torch.arange(length) < torch.tensor([4 + cls, 2 + cls])[:, None])[..., None] + torch.zeros(())
    long = [y for _, _, y in made if y.shape == (2, length, VECTORS)][-4:]
    pooled = [x for _, inputs, _ in made[:-1] for x in inputs[:1] if x.shape == (2, VECTORS)][:1]
    table = CLS if cls else MEAN
    outputs = [z for y in reversed(long) for z in (y, y.relu())]
    for (name, text, formula), y in itertools.product(table, outputs if pooled else []):
        if same(pooled[0], formula(y, weights)):
            if not name:
                return True
            sentence, fix = f"The last Linear reads {text}, not {table[0][1]}.", f"Read {table[0][1]}."
            example = "For 2 reviews of 4 and 2 words it reads {}; right is {}."
            raise differing(name, sentence, example, pooled[0], table[0][2](y, weights), fix)
    return False


def mean(part: Part) -> None:
    """The head reads the mean of the words."""
    inputs = torch.tensor([[4, 2, 9, 1], [3, 8, 1, 6]])
    if same(ignored := logits(model(part), inputs), logits(model(part), inputs, [4, 2]), EXACT):
        example = f"The words 3, 8, 1, 6 give {show(ignored[1])} with length 4 and with length 2."
        raise Mistake("lengths-ignored", "The lengths have no effect: padding is read as words.", example, MASK_FIX)
    found = read(part, cls=False)
    for net in () if found else (model(part, seed=seed) for seed in SEEDS):
        once, thrice = logits(net, [[4]])[0], logits(net, [[4, 4, 4]])[0]
        if not same(once, thrice):
            sentence, example = "The words are not averaged.", "The review [4] gives {}; [4, 4, 4] gives {}."
            raise differing("not-a-mean", sentence, example, once, thrice, "Average with masked_mean.")


# Finding, sentence, and what is made of the vectors v (B, T, D) with the sinusoidal table pe (B or more, D).
ADDED: list[tuple[str, str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("", "", lambda v, pe: v + pe[: v.shape[1]]),
    ("no-positions", "Positions have no effect.", lambda v, pe: v),
    ("positions-twice", "The positions are added twice.", lambda v, pe: v + 2 * pe[: v.shape[1]]),
    ("vectors-scaled", "The vectors are doubled.", lambda v, pe: 2 * v + pe[: v.shape[1]]),
    ("vectors-scaled", "The vectors are multiplied by sqrt(d).", lambda v, pe: v * VECTORS**0.5 + pe[: v.shape[1]]),
    ("positions-of-reviews", "Positions are those of the reviews.", lambda v, pe: v + pe[: len(v), None]),
    ("same-position", "All words have position 0.", lambda v, pe: v + pe[:1]),
]


def positions(part: Part) -> None:
    """The model with positions gives the results of one without them for vectors to which positions are added."""
    tokens_BT = torch.arange(3, 15).view(3, 4)
    net, table_VD = model(part, positions="sinusoidal"), vectors_VD()
    y_BC, weights = logits(net, tokens_BT), net.state_dict()

    def formula(added: Callable[[Tensor, Tensor], Tensor], pe: Callable[..., Tensor], *_: Tensor) -> Tensor:
        changed_VD = table_VD.clone()
        changed_VD[tokens_BT] = added(table_VD[tokens_BT], pe(8, VECTORS).to(table_VD.dtype))
        plain = model(part, changed_VD)
        state = {k: w for k, w in plain.state_dict().items() if k in weights and w.shape == weights[k].shape}
        tables = {k for k, w in state.items() if w.ndim == 2 and VOCABULARY <= len(w) <= VOCABULARY + 2}
        plain.load_state_dict({k: weights[k] for k in state.keys() - tables}, strict=False)
        return logits(plain, tokens_BT)

    tables = [sinusoids, *filter(None, [part.own.get("positional_encoding")])]
    references = [partial(formula, ADDED[0][2], pe) for pe in tables]
    table = [(name, text, partial(formula, added, sinusoids), references[0]) for name, text, added in ADDED[1:]]
    if diagnose(lambda *_: y_BC, references, lambda: table, {"3 reviews of 4 words": ()}, POSITIONS_FIX):
        return
    if same(y_BC, logits(net, tokens_BT.flip(1)), EXACT):
        example = f"With positions='sinusoidal', the words 3, 4, 5, 6 and 6, 5, 4, 3 both give {show(y_BC[0])}."
        sentence = "Positions are added where their order is lost, such as after the layers."
        raise Mistake("positions-after-layers", sentence, example, POSITIONS_FIX)
    sentence = "The sinusoidal positions are not added to the vectors."
    example = "For the words 3, 4, 5, 6 the result is {}; that of vectors + pe is {}."
    raise differing("wrong-positions", sentence, example, y_BC[0], references[0]()[0], POSITIONS_FIX)


def cls_read(part: Part) -> None:
    """CLS is read at position 0 after the last layer."""
    nets = [model(part, seed=seed, cls=True) for seed in SEEDS]
    changed_VD = vectors_VD()
    changed_VD[REVIEW[0][0]] = changed_VD[0]
    others = [model(part, changed_VD, seed, cls=True) for seed in SEEDS]
    if all(same(logits(a, REVIEW), logits(b, REVIEW), EXACT) for a, b in zip(nets, others, strict=True)):
        example = f"With cls=True and the review {REVIEW[0]}, the vector of word {REVIEW[0][0]} has no effect."
        raise Mistake("cls-over-first-word", "CLS is written over the first word.", example, CLS_FIX)
    found = read(part, cls=True)
    if pair := reversed_logits(part, cls=True):
        sentence = "With CLS, the order of words has an effect: a word is read or hidden, or CLS is not position 0."
        example = "The words 4, 2, 9 give {}; 9, 2, 4 give {}."
        raise differing("cls-not-read", sentence, example, *pair, f"{CLS_FIX} Read x[:, 0].")
    if not found:
        raise NotChecked("Where CLS is read was not checked: no module returns the vectors that the last Linear reads.")


def layers(part: Part) -> None:
    """Each layer is used once."""
    net = model(part)
    made = [called for called, _, y in calls(net, REVIEW) if y.ndim == 3]
    for name, called in net.named_modules():  # a layer comes before its parts
        if made.count(called) > 1 and any(p.ndim > 1 and p.requires_grad for p in called.parameters()):
            example = f"{name} is called {made.count(called)} times for one review."
            raise Mistake("one-layer-shared", "One layer is used several times instead of several.", example, LIST_FIX)


def cls_trained(part: Part) -> None:
    """CLS is a parameter that is trained."""
    net, other = model(part, cls=True), model(part)
    used, before = (trained(each, *inputs(part, 3, 3, 3, 3)) for each in (net, other))
    if not used - before:
        example = f"The {len(used)} parameters that receive a gradient with cls=True receive one without it as well."
        raise Mistake("cls-not-trained", "CLS is never trained: no parameter belongs to it.", example, CLS_FIX)


RULES = [
    Rule("shape", generic.shape),
    Rule("repeatable", generic.repeatable),
    Rule("input-unchanged", generic.unchanged),
    Rule("logits", returns_logits, ("repeatable",)),
    Rule("frozen-vectors", frozen_vectors),
    Rule("ids", ids, ("repeatable", "frozen-vectors")),
    Rule("mean", mean, ("ids", "repeatable")),
    Rule("order", order, ("ids", "repeatable", "mean")),
    Rule("layers", layers),
    Rule("gradients", generic.gradients, ("logits", "repeatable", "input-unchanged", "layers")),
    Rule("positions", positions, ("repeatable", "order", "gradients"), option="positions"),
    Rule("cls-trained", cls_trained, ("repeatable", "ids", "gradients"), option="cls"),
    Rule("cls-read", cls_read, ("repeatable", "order", "gradients", "cls-trained"), option="cls"),
    Rule("batch", generic.batch, ("ids", "repeatable", "mean", "order", "positions", "cls-trained", "cls-read")),
    Rule("finite", generic.finite, ("batch", "input-unchanged")),
]
