"""Rules of Classifier: vectors -> + positions -> layers -> masked mean or CLS -> logits.

Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes, S models.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check import generic
from imdbattn.check.core import (
    TABLES,
    Mistake,
    Names,
    NotChecked,
    Part,
    Rule,
    diagnose,
    differing,
    evaluate,
    same,
    show,
    student,
)
from imdbattn.check.generic import VECTORS, VOCABULARY, inputs, trained, vectors_VD
from imdbattn.check.generic import net_of as model
from imdbattn.check.references import sinusoids

SEEDS = range(3)  # of models; a change that has no effect in any of them is taken to have none
EXACT = 1e-5  # a smaller effect is none
REVIEW = [[4, 2, 9]]
LIST_FIX = "Make a new module for each: nn.ModuleList(Layer(width) for _ in range(3))."
CLS_FIX = "self.cls = nn.Parameter(torch.randn(width)); in forward torch.cat([cls, x], 1), cls of shape (B, 1, D)."
MASK_FIX = "Make the mask from the lengths, torch.arange(T) < lengths[:, None], and use it in f and in the mean."
POSITIONS_FIX = TABLES["positions"].fix


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


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax or another function after the last Linear."""
    reviews = [[a, b] for a in range(4) for b in (5, 8)]
    *inner, (_, _, y_BC) = calls(model(part), reviews)
    linears = [z for module, _, z in inner if isinstance(module, nn.Linear) and z.shape == y_BC.shape]
    fix = TABLES["logits"].fix
    if linears and diagnose(lambda: y_BC, TABLES["logits"], [lambda z=z: {"z": z} for z in linears], {"8 reviews": ()}):
        return
    if same(y_BC.sum(1), torch.ones(len(y_BC))) or same(y_BC.exp().sum(1), torch.ones(len(y_BC))):
        example = f"The classes of one review get {show(y_BC[0])}."
        raise Mistake("softmax-twice", "The results are probabilities or their logarithms.", example, fix)


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


def read(part: Part, cls: bool) -> bool:
    """Whether the head reads what the reference reads of the last layer. Raises Mistake for another reading."""
    made = calls(model(part, **({"cls": True} if cls else {})), [[4, 2, 9, 1], [3, 8, 1, 6]], [4, 2])
    length = 5 if cls else 4
    n_B = torch.tensor([4 + cls, 2 + cls])
    weights = (torch.arange(length) < n_B[:, None])[..., None] + torch.zeros(())
    long = [y for _, _, y in made if y.shape == (2, length, VECTORS)][-4:]
    pooled = [x for _, given, _ in made[:-1] for x in given[:1] if x.shape == (2, VECTORS)][:1]
    outputs = [z for y in reversed(long) for z in (y, y.relu())] if pooled else []
    bindings = [lambda y=y: {"y": y, "w": weights, "n": n_B} for y in outputs]
    table = TABLES["cls" if cls else "mean"]
    return bool(outputs) and diagnose(
        lambda: pooled[0], table, bindings, {"the Linear, 2 reviews of 4 and 2 words": ()}
    )


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


def positions(part: Part) -> None:
    """The model with positions gives the results of one without them for vectors to which positions are added."""
    tokens_BT = torch.arange(3, 15).view(3, 4)
    net, table_VD = model(part, positions="sinusoidal"), vectors_VD()
    y_BC, weights = logits(net, tokens_BT), net.state_dict()

    def without(x_BTD: Tensor) -> Tensor:
        changed_VD = table_VD.clone()
        changed_VD[tokens_BT] = x_BTD
        plain = model(part, changed_VD)
        state = {k: w for k, w in plain.state_dict().items() if k in weights and w.shape == weights[k].shape}
        tables = {k for k, w in state.items() if w.ndim == 2 and VOCABULARY <= len(w) <= VOCABULARY + 2}
        plain.load_state_dict({k: weights[k] for k in state.keys() - tables}, strict=False)
        return logits(plain, tokens_BT)

    def bind(encode: Callable[..., Tensor]) -> Names:
        pe = encode(8, VECTORS).to(table_VD.dtype)
        return {"v": table_VD[tokens_BT], "pe": pe, "T": 4, "logits": without}

    encodings = [sinusoids, *filter(None, [part.own.get("positional_encoding")])]
    if diagnose(lambda: y_BC, TABLES["positions"], [partial(bind, e) for e in encodings], {"3 reviews of 4 words": ()}):
        return
    if same(y_BC, logits(net, tokens_BT.flip(1)), EXACT):
        example = f"With positions='sinusoidal', the words 3, 4, 5, 6 and 6, 5, 4, 3 both give {show(y_BC[0])}."
        sentence = "Positions are added where their order is lost, such as after the layers."
        raise Mistake("positions-after-layers", sentence, example, POSITIONS_FIX)
    right = evaluate(TABLES["positions"].steps, bind(sinusoids))
    assert right is not None
    sentence = "The sinusoidal positions are not added to the vectors."
    example = "For the words 3, 4, 5, 6 the result is {}; that of vectors + pe is {}."
    raise differing("wrong-positions", sentence, example, y_BC[0], right[0], POSITIONS_FIX)


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


def cls_key(part: Part) -> None:
    """Words attend to CLS, too."""
    net = model(part, cls=True)
    first = [x for _, given, _ in calls(net, REVIEW) for x in given if x.shape == (1, 4, VECTORS)]
    if not first:
        raise NotChecked("Whether words attend to CLS was not checked: no module receives CLS and the words.")
    table_VD = vectors_VD()
    table_VD[4] = first[0][0, 0]  # the word 4 equals CLS: twice CLS and twice the word 2 have the mean of one of each
    net = model(part, table_VD, cls=True)
    once, twice = logits(net, [[2]])[0], logits(net, [[4, 2, 2]])[0]
    if not same(once, twice):
        sentence = "CLS is not attended to, as a word is: the mask of keys excludes it."
        example = "For a word equal to CLS and twice the word 2 the result is {}; right is that of the word 2, {}."
        raise differing("cls-masked", sentence, example, twice, once, CLS_FIX)


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
    used, before = (trained(part, each, *inputs(part, 3, 3, 3, 3)) for each in (net, other))
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
    Rule("cls-key", cls_key, ("cls-read",), option="cls"),
    Rule("batch", generic.batch, ("ids", "repeatable", "mean", "order", "positions", "cls-trained", "cls-read")),
    Rule("finite", generic.finite, ("batch", "input-unchanged")),
]
