"""Rules of Classifier: vectors -> + positions -> layers -> masked mean or CLS -> logits.

Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes.
"""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.nn import sinusoids
from imdbattn.tools.check.formulas import RIGHT, Names, diagnose
from imdbattn.tools.check.numbers import NotChecked, StudentError, mistake, same
from imdbattn.tools.check.part import (
    VECTORS,
    VOCABULARY,
    Part,
    inputs,
    net_of,
    record,
    student,
    vectors_VD,
)
from imdbattn.tools.check.rules import trained
from imdbattn.tools.check.tables import TABLES

Tokens = list[list[int]] | Tensor
Lengths = list[int] | Tensor | None
SEEDS = range(3)  # of models; a change that has no effect in any of them is taken to have none
EXACT = 1e-5  # a smaller effect is none
VECTORS_SCALED = "Differs from the sheet: the vectors are multiplied by sqrt(d)."
POSITIONS_PROJECTED = "Differs from the sheet: positions are added after a projection."
REVIEW = [[4, 2, 9]]
TWO = [[4, 2, 9, 1], [3, 8, 1, 6]]


def logits(
    part: Part,
    tokens: Any,
    *,
    lengths: Any = None,
    table: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Detached, (B, C). lengths: all of the tokens by default. table, options: of the model, see
    net_of.
    """
    tokens_BT = torch.as_tensor(tokens)
    if lengths is None:
        lengths = torch.full(tokens_BT.shape[:1], tokens_BT.shape[1])
    lengths_B = torch.as_tensor(lengths)
    return student(net_of(part, table, **options), tokens_BT, lengths_B).detach()


def tensors(
    part: Part, tokens: list[list[int]], lengths: list[int] | None = None, **options: Any
) -> list[Tensor]:
    """The tensors that the operations of a call make, in their order."""
    lengths_B = torch.tensor(lengths or [len(tokens[0])] * len(tokens))
    return record(part, net_of(part, **options), torch.tensor(tokens), lengths_B)


def shaped(tensors: list[Tensor], *shape: int) -> list[Tensor]:
    return [x for x in tensors if x.shape == shape]


def find(part: Part, table: str, result: Tensor, text: str, names: list[Names]) -> Any:
    """What diagnose returns for one result, and for names that may be right."""
    bindings = [(RIGHT, "", lambda one=one: one) for one in names]
    return diagnose(part, TABLES[table], [result], bindings, {text: ()})


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax or another function after the last Linear."""
    for seed in SEEDS:
        made = tensors(part, [[a, b] for a in range(4) for b in (5, 8)], seed=seed)
        *earlier, y_BC = shaped(made, 8, part.sizes["C"])
        if linears := [{"z": z} for z in earlier if not same(z, y_BC)]:
            find(part, "logits", y_BC, "8 reviews", linears)
        sums = [z.sum(n) for z in (y_BC, y_BC.exp()) for n in (0, 1)]
        if any(same(z, torch.ones_like(z)) for z in sums):
            raise mistake("softmax-twice", y_BC[0])


def frozen_vectors(part: Part) -> None:
    """The vectors are not trained."""
    for name, parameter in net_of(part).named_parameters():
        if parameter.requires_grad and tuple(parameter.shape) == (VOCABULARY, VECTORS):
            raise mistake("vectors-trained", name=name, shape=tuple(parameter.shape))


def ids(part: Part) -> None:
    """Every id is a word: only the lengths determine what is padding."""
    first, second = (
        logits(part, REVIEW, table=table_VD)[0] for table_VD in (vectors_VD(), vectors_VD().flip(0))
    )
    if same(first, second, EXACT):
        raise mistake("vectors-not-used", first)
    scaled, vectors_TD = False, vectors_VD()[REVIEW[0]]
    for (x_TD,) in shaped(tensors(part, REVIEW), 1, 3, VECTORS):
        factor = float((x_TD * vectors_TD).sum() / vectors_TD.square().sum())
        if abs(factor - 1) > 1e-3 and x_TD.any() and same(x_TD, factor * vectors_TD):
            if abs(factor - VECTORS**0.5) > 1e-3:
                raise mistake("vectors-scaled", given=factor)
            scaled = True
    for token in (0, 1, 2, 3, VOCABULARY - 1, VOCABULARY - 2, VOCABULARY - 3):
        third, *others = ((token + step) % VOCABULARY for step in (6, 9, 10))
        before = logits(part, [[third, token]])
        after = exchanged(part, third, token, others[0])
        is_same = same(before, after, EXACT)
        if not (is_same or same(before, exchanged(part, third, token, others[1]), EXACT)):
            name = "word-as-padding" if token else "id-0-as-padding"
            raise mistake(name, before, after, first=third, token=token, other=others[0])
    if scaled:  # as by Vaswani et al.
        raise NotChecked(VECTORS_SCALED)


def exchanged(part: Part, third: int, token: int, other: int) -> Tensor:
    """The logits of the third word and the other one, which has the vector of the token."""
    table_VD = vectors_VD()
    table_VD[[token, other]] = table_VD[[other, token]]
    return logits(part, [[third, other]], table=table_VD)


def require_same(
    finding: str,
    part: Part,
    first: Any,
    second: Any,
    tolerance: float = 1e-3,
    **options: Any,
) -> None:
    """Raises Mistake if the logits of two reviews differ in one of several models."""
    for seed in SEEDS:
        y, z = (logits(part, review, seed=seed, **options)[0] for review in (first, second))
        if not same(y, z, tolerance):
            raise mistake(finding, y, z)


def order(part: Part) -> None:
    """Without positions, the order of the words has no effect."""
    require_same("depends-on-order", part, REVIEW, [REVIEW[0][::-1]], 1e-4)


def read(part: Part, cls: bool) -> bool:
    """Whether the head reads what the reference reads of the last layer. Raises Mistake for another
    reading.
    """
    made = tensors(part, TWO, [4, 2], **({"cls": True} if cls else {}))
    n_B = torch.tensor([4 + cls, 2 + cls])
    w_BT1 = (torch.arange(4 + cls) < n_B[:, None])[..., None].to(torch.get_default_dtype())
    names = [{"y": y, "w": w_BT1, "n": n_B} for y in reversed(shaped(made, 2, 4 + cls, VECTORS))]
    pooled = shaped(made, 2, VECTORS)[-1:]
    text = "the last Linear and 2 reviews of 4 and 2 words"
    return bool(pooled and names) and not find(
        part, "cls" if cls else "mean", pooled[0], text, names
    )


def require_lengths(part: Part) -> None:
    """Raises Mistake if the lengths have no effect on the logits."""
    ignored, right = (logits(part, TWO, lengths=lengths) for lengths in ([4, 4], [4, 2]))
    if same(ignored, right, EXACT):
        raise mistake("lengths-ignored", ignored[1])


def mean(part: Part) -> None:
    """The head reads the mean of the words."""
    require_lengths(part)
    if not read(part, cls=False):
        require_same("not-a-mean", part, [[4]], [[4, 4, 4]])


def positions(part: Part) -> None:
    """The model with positions gives the results of one without them for vectors to which positions
    are added.
    """
    tokens_BT = torch.arange(3, 15).view(3, 4)
    y_BC, table_VD = logits(part, tokens_BT, positions="sinusoidal"), vectors_VD()

    def without(x_BTD: Tensor) -> Tensor:
        changed_VD = table_VD.clone()
        changed_VD[tokens_BT] = x_BTD
        return logits(part, tokens_BT, table=changed_VD)

    names = {"v": table_VD[tokens_BT], "T": 4, "logits": without}
    encodings = [sinusoids, *filter(None, [part.own.get("positional_encoding")])]
    encoded = [names | {"pe": encode(8, VECTORS).to(table_VD.dtype)} for encode in encodings]
    if found := find(part, "positions", y_BC, "3 reviews of 4 words", encoded):
        if same(y_BC, logits(part, tokens_BT.flip(1), positions="sinusoidal"), EXACT):
            raise mistake(
                "positions-after-layers", y_BC[0], fix=TABLES["positions"].texts["change"]
            )
        if after_projection(part, tokens_BT):
            raise NotChecked(POSITIONS_PROJECTED)
        raise found
    if part.accepts("cls"):
        both: dict[str, Any] = {"cls": True, "positions": "sinusoidal"}
        with suppress(StudentError):  # CLS may not be written yet
            ones = [logits(part, REVIEW[:1], seed=seed, **both) for seed in SEEDS]
            others = [logits(part, [REVIEW[0][::-1]], seed=seed, **both) for seed in SEEDS]
            if all(same(*pair, EXACT) for pair in zip(ones, others, strict=True)):
                raise mistake("positions-lost-with-cls", ones[0])


def after_projection(part: Part, tokens_BT: Tensor) -> bool:
    """Whether sines and cosines are added once, to a tensor computed from the vectors."""
    shape = tuple(tokens_BT.shape)
    with_them = tensors(part, tokens_BT.tolist(), positions="sinusoidal")
    without = [x for x in tensors(part, tokens_BT.tolist()) if x.shape[:2] == shape and x.ndim == 3]
    for x_BTD in without:
        width = x_BTD.shape[2]
        if width % 2 == 0:
            y_BTD = x_BTD + sinusoids(shape[1], width).to(x_BTD.dtype)
            if any(z.shape == y_BTD.shape and same(z, y_BTD) for z in with_them):
                return not same(x_BTD, vectors_VD()[tokens_BT])
    return False


def cls_trained(part: Part) -> None:
    """CLS is a parameter that is trained."""
    with_cls, without = net_of(part, cls=True), net_of(part)
    used, before = (trained(part, net, *inputs(part, 3, 3, 3, 3)) for net in (with_cls, without))
    if not used - before:
        raise mistake("cls-not-trained", count=len(used))


def cls_read(part: Part) -> None:
    """CLS is read at position 0 after the last layer."""
    changed_VD = vectors_VD()
    changed_VD[REVIEW[0][0]] = changed_VD[0]
    ones = [logits(part, REVIEW, seed=seed, cls=True) for seed in SEEDS]
    others = [logits(part, REVIEW, table=changed_VD, seed=seed, cls=True) for seed in SEEDS]
    if all(same(*pair, EXACT) for pair in zip(ones, others, strict=True)):
        raise mistake("cls-over-first-word", ones[0])
    found = read(part, cls=True)
    require_same("cls-not-read", part, REVIEW, [REVIEW[0][::-1]], 1e-4, cls=True)
    if not found:
        raise NotChecked(
            "Where CLS is read was not checked: what the last Linear reads is not a result (B, T,"
            " D) at some position."
        )


def cls_key(part: Part) -> None:
    """Words attend to CLS, too."""
    given = shaped(tensors(part, REVIEW, cls=True), 1, 4, VECTORS)
    first = [x_1TD for x_1TD in given if same(x_1TD[0, 1:], vectors_VD()[REVIEW[0]])]
    if not first:
        raise NotChecked(
            "Whether words attend to CLS was not checked: no module receives CLS and the vectors,"
            " (B, T, D)."
        )
    table_VD = vectors_VD()
    # the word 4 equals CLS: twice CLS and twice the word 2 have the mean of one of each
    table_VD[4] = first[0][0, 0]
    once, twice = (
        logits(part, review, table=table_VD, cls=True)[0] for review in ([[2]], [[4, 2, 2]])
    )
    if not same(once, twice):
        raise mistake("cls-masked", twice, once)


def layers(part: Part) -> None:
    """Each layer is used once."""
    called, net = list[nn.Module](), net_of(part)

    def hook(module: nn.Module, given: object, y: object) -> None:
        if isinstance(y, Tensor) and y.ndim == 3:
            called.append(module)

    with nn.modules.module.register_module_forward_hook(hook):
        student(net, *inputs(part, 3))
    for name, module in net.named_modules():  # a layer comes before its parts
        count = called.count(module)
        if count > 1 and any(p.ndim > 1 and p.requires_grad for p in module.parameters()):
            raise mistake("one-layer-shared", name=name, count=count)
