"""Rules of Classifier: vectors -> + positions -> layers -> masked mean or CLS -> logits.

Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check import rules
from imdbattn.check.references import sinusoids
from imdbattn.check.rules import TABLES, Names, Part, Rule, diagnose, inputs, mistake, same, student, vectors_VD
from imdbattn.check.rules import net_of as model

SEEDS = range(3)  # of models; a change that has no effect in any of them is taken to have none
EXACT = 1e-5  # a smaller effect is none
REVIEW = [[4, 2, 9]]


def logits(net: nn.Module, tokens: Any, lengths: Any = None) -> Tensor:
    """Detached, (B, C). lengths: all of the tokens by default."""
    tokens_BT = torch.as_tensor(tokens)
    lengths_B = torch.full(tokens_BT.shape[:1], tokens_BT.shape[1]) if lengths is None else torch.as_tensor(lengths)
    return student(net, tokens_BT, lengths_B).detach()


def calls(net: nn.Module, tokens: Any, lengths: Any = None) -> list[tuple[nn.Module, list[Tensor], Tensor]]:
    """Each call of a module that returns a tensor, with the tensors it receives; the last one is that of net."""
    made: list[tuple[nn.Module, list[Tensor], Tensor]] = []

    def watch(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        if isinstance(output, Tensor):
            made.append((module, [x for x in (*given, *options.values()) if isinstance(x, Tensor)], output))

    for module in net.modules():
        if not isinstance(module, torch.jit.ScriptModule):  # which has no hooks
            module.register_forward_hook(watch, with_kwargs=True)
    logits(net, tokens, lengths)
    return made


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax or another function after the last Linear."""
    *inner, (_, _, y_BC) = calls(model(part), [[a, b] for a in range(4) for b in (5, 8)])
    linears = [z for module, _, z in inner if isinstance(module, nn.Linear) and z.shape == y_BC.shape]
    bindings = [("", "", lambda z=z: {"z": z}) for z in linears]
    if diagnose(part, lambda: y_BC, bindings, {"8 reviews": ()}, table=TABLES["logits"], otherwise=None):
        return
    if any(same(z.sum(1), torch.ones(len(z))) for z in (y_BC, y_BC.exp())):
        raise mistake("softmax-twice", y_BC[0])


def frozen_vectors(part: Part) -> None:
    """The vectors are not trained."""
    for name, parameter in model(part).named_parameters():
        if parameter.requires_grad and tuple(parameter.shape) == (rules.VOCABULARY, rules.VECTORS):
            raise mistake("vectors-trained", name=name, shape=tuple(parameter.shape))


def ids(part: Part) -> None:
    """Every id is a word: only the lengths determine what is padding."""
    first, second = (logits(model(part, table_VD), REVIEW)[0] for table_VD in (vectors_VD(), vectors_VD().flip(0)))
    if same(first, second, EXACT):
        raise mistake("vectors-not-used", first)
    for token in (0, 1, 2, 3, rules.VOCABULARY - 1, rules.VOCABULARY - 2, rules.VOCABULARY - 3):
        third, *others = ((token + step) % rules.VOCABULARY for step in (6, 9, 10))
        before, after = logits(model(part), [[third, token]]), []
        for other in others:
            table_VD = vectors_VD()
            table_VD[[token, other]] = table_VD[[other, token]]
            after.append(logits(model(part, table_VD), [[third, other]]))
        if not any(same(before, one, EXACT) for one in after):
            name = "word-as-padding" if token else "id-0-as-padding"
            raise mistake(name, before, after[0], first=third, token=token, other=others[0])


def reversed_logits(part: Part, **options: Any) -> tuple[Tensor, ...]:
    """Two logits that differ although only the order of the words does, if there are such."""
    for net in (model(part, seed=seed, **options) for seed in SEEDS):
        forwards, backwards = logits(net, REVIEW)[0], logits(net, [REVIEW[0][::-1]])[0]
        if not same(forwards, backwards, 1e-4):
            return forwards, backwards
    return ()


def order(part: Part) -> None:
    """Without positions, the order of the words has no effect."""
    if pair := reversed_logits(part):
        raise mistake("depends-on-order", *pair)


def read(part: Part, cls: bool) -> bool:
    """Whether the head reads what the reference reads of the last layer. Raises Mistake for another reading."""
    options: dict[str, Any] = {"cls": True} if cls else {}
    made = calls(model(part, **options), [[4, 2, 9, 1], [3, 8, 1, 6]], [4, 2])
    n_B = torch.tensor([4 + cls, 2 + cls])
    w_BT1 = (torch.arange(4 + cls) < n_B[:, None])[..., None].to(torch.get_default_dtype())
    long = [y for _, _, y in made if y.shape == (2, 4 + cls, rules.VECTORS)][-4:]
    pooled = [x for _, given, _ in made[:-1] for x in given[:1] if x.shape == (2, rules.VECTORS)][:1]
    outputs = [z for y in reversed(long) for z in (y, y.relu())] if pooled else []
    bindings = [("", "", lambda y=y: {"y": y, "w": w_BT1, "n": n_B}) for y in outputs]
    table, batches = TABLES["cls" if cls else "mean"], {"the last Linear and 2 reviews of 4 and 2 words": ()}
    return bool(outputs) and diagnose(part, lambda: pooled[0], bindings, batches, table=table, otherwise=None)


def mean(part: Part) -> None:
    """The head reads the mean of the words."""
    tokens_BT = torch.tensor([[4, 2, 9, 1], [3, 8, 1, 6]])
    if same(ignored := logits(model(part), tokens_BT), logits(model(part), tokens_BT, [4, 2]), EXACT):
        raise mistake("lengths-ignored", ignored[1])
    found = read(part, cls=False)
    for net in () if found else (model(part, seed=seed) for seed in SEEDS):
        once, thrice = logits(net, [[4]])[0], logits(net, [[4, 4, 4]])[0]
        if not same(once, thrice):
            raise mistake("not-a-mean", once, thrice)


def positions(part: Part) -> None:
    """The model with positions gives the results of one without them for vectors to which positions are added."""
    tokens_BT = torch.arange(3, 15).view(3, 4)
    net, table_VD = model(part, positions="sinusoidal"), vectors_VD()
    y_BC = logits(net, tokens_BT)

    def without(x_BTD: Tensor) -> Tensor:
        changed_VD = table_VD.clone()
        changed_VD[tokens_BT] = x_BTD
        return logits(model(part, changed_VD), tokens_BT)

    def bind(encode: Callable[..., Tensor]) -> Names:
        pe = encode(8, rules.VECTORS).to(table_VD.dtype)
        return {"v": table_VD[tokens_BT], "pe": pe, "T": 4, "logits": without}

    encodings = [sinusoids, *filter(None, [part.own.get("positional_encoding")])]
    bindings, table = [("", "", partial(bind, encode)) for encode in encodings], TABLES["positions"]
    batches: dict[str, Any] = {"3 reviews of 4 words": ()}
    if diagnose(part, lambda: y_BC, bindings, batches, table=table, otherwise=None):
        return
    if same(y_BC, logits(net, tokens_BT.flip(1)), EXACT):
        raise mistake("positions-after-layers", y_BC[0], fix=table.fix)
    right = rules.evaluate(table.steps, bind(sinusoids))
    assert right is not None
    raise mistake("wrong-positions", y_BC[0], right[0], fix=table.fix)


def cls_trained(part: Part) -> None:
    """CLS is a parameter that is trained."""
    used, before = (rules.trained(part, net, *inputs(part, 3, 3, 3, 3)) for net in (model(part, cls=True), model(part)))
    if not used - before:
        raise mistake("cls-not-trained", count=len(used))


def cls_read(part: Part) -> None:
    """CLS is read at position 0 after the last layer."""
    changed_VD = vectors_VD()
    changed_VD[REVIEW[0][0]] = changed_VD[0]
    pairs = [[logits(model(part, v, seed, cls=True), REVIEW) for v in (None, changed_VD)] for seed in SEEDS]
    if all(same(one, other, EXACT) for one, other in pairs):
        raise mistake("cls-over-first-word", pairs[0][0])
    found = read(part, cls=True)
    if pair := reversed_logits(part, cls=True):
        raise mistake("cls-not-read", *pair)
    if not found:
        raise rules.NotChecked("Where CLS is read was not checked: no module returns what the last Linear reads.")


def cls_key(part: Part) -> None:
    """Words attend to CLS, too."""
    made = calls(model(part, cls=True), REVIEW)
    first = [x for _, given, _ in made for x in given if x.shape == (1, 4, rules.VECTORS)]
    if not first:
        raise rules.NotChecked("Whether words attend to CLS was not checked: no module receives CLS and the words.")
    table_VD = vectors_VD()
    table_VD[4] = first[0][0, 0]  # the word 4 equals CLS: twice CLS and twice the word 2 have the mean of one of each
    net = model(part, table_VD, cls=True)
    once, twice = logits(net, [[2]])[0], logits(net, [[4, 2, 2]])[0]
    if not same(once, twice):
        raise mistake("cls-masked", twice, once)


def layers(part: Part) -> None:
    """Each layer is used once."""
    net = model(part)
    made = [called for called, _, y in calls(net, REVIEW) if y.ndim == 3]
    for name, called in net.named_modules():  # a layer comes before its parts
        if made.count(called) > 1 and any(p.ndim > 1 and p.requires_grad for p in called.parameters()):
            raise mistake("one-layer-shared", name=name, count=made.count(called))


RULES = [
    Rule("shape", rules.shape),
    Rule("repeatable", rules.repeatable),
    Rule("input-unchanged", rules.unchanged),
    Rule("logits", returns_logits, ("repeatable",)),
    Rule("frozen-vectors", frozen_vectors),
    Rule("ids", ids, ("repeatable", "frozen-vectors")),
    Rule("mean", mean, ("ids", "repeatable")),
    Rule("order", order, ("ids", "repeatable", "mean")),
    Rule("layers", layers),
    Rule("gradients", rules.gradients, ("logits", "repeatable", "input-unchanged", "layers")),
    Rule("positions", positions, ("repeatable", "order", "gradients"), option="positions"),
    Rule("cls-trained", cls_trained, ("repeatable", "ids", "gradients"), option="cls"),
    Rule("cls-read", cls_read, ("repeatable", "order", "gradients", "cls-trained"), option="cls"),
    Rule("cls-key", cls_key, ("cls-read",), option="cls"),
    Rule("batch", rules.batch, ("ids", "repeatable", "mean", "order", "positions", "cls-trained", "cls-read")),
    Rule("finite", rules.finite, ("batch", "input-unchanged")),
]
