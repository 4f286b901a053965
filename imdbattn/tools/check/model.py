"""Rules of models: vectors of tokens -> + positions -> layers -> the mean of the words, or CLS ->
logits.

CLASSIFIER are those of the model of --stub, which is given its vectors, positions and cls; MODEL
are those of models under any name. Shape suffixes: B reviews, T positions, V words of the
vocabulary, D width, C classes.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.nn import sinusoids
from imdbattn.tools.check import rules
from imdbattn.tools.check.formulas import Names, diagnose
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError, mistake, same
from imdbattn.tools.check.part import (
    IN_SHEETS,
    VECTORS,
    VOCABULARY,
    Part,
    Rule,
    inputs,
    net_of,
    record,
    student,
    vectors_VD,
)
from imdbattn.tools.check.sheets import meant, parameters_of
from imdbattn.tools.check.tables import TABLES

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


def require(part: Part, table: str, result: Tensor, text: str, names: list[Names]) -> bool:
    """Whether the formula gives the result with one of these names. Raises Mistake if a known
    mistake does.
    """
    found = diagnose(part, TABLES[table], result, names, text)
    if found and (isinstance(found, NotChecked) or "differs" not in found.args[0]):
        raise found
    return found is None


def require_same(
    finding: str, part: Part, first: Any, second: Any, tolerance: float = 1e-3, **options: Any
) -> None:
    """Raises Mistake if the logits of two reviews differ in one of several models."""
    for seed in SEEDS:
        y, z = (logits(part, review, seed=seed, **options)[0] for review in (first, second))
        if not same(y, z, tolerance):
            raise mistake(finding, y, z)


def are_same(part: Part, first: Any, second: Any, **options: Any) -> bool:
    """Whether the logits of two reviews are the same in all of several models."""
    try:
        require_same("depends-on-order", part, first, second, EXACT, **options)
    except Mistake:
        return False
    return True


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax or another function after the last Linear."""
    for seed in SEEDS:
        made = tensors(part, [[a, b] for a in range(4) for b in (5, 8)], seed=seed)
        *earlier, y_BC = shaped(made, 8, part.sizes["C"])
        if linears := [{"z": z} for z in earlier if not same(z, y_BC)]:
            require(part, "logits", y_BC, "8 reviews", linears)
        sums = [z.sum(n) for z in (y_BC, y_BC.exp()) for n in (0, 1)]
        if any(same(z, torch.ones_like(z)) for z in sums):
            raise mistake("softmax-twice", y_BC[0])


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


# --- what the head reads --------------------------------------------------------------------------


def read(part: Part, with_cls: bool, **options: Any) -> bool:
    """Whether the head reads what the formula reads of the last layer. Raises Mistake for another
    reading.
    """
    made = tensors(part, TWO, [4, 2], **options)
    n_B = torch.tensor([4 + with_cls, 2 + with_cls])
    w_BT1 = (torch.arange(4 + with_cls) < n_B[:, None])[..., None].to(torch.get_default_dtype())
    names = [
        {"y": y, "w": w_BT1, "n": n_B} for y in reversed(shaped(made, 2, 4 + with_cls, VECTORS))
    ]
    pooled = shaped(made, 2, VECTORS)[-1:]
    text = "the last Linear and 2 reviews of 4 and 2 words"
    return bool(pooled and names) and require(
        part, "cls" if with_cls else "mean", pooled[0], text, names
    )


def require_lengths(part: Part) -> None:
    """Raises Mistake if the lengths have no effect on the logits."""
    ignored, right = (logits(part, TWO, lengths=lengths) for lengths in ([4, 4], [4, 2]))
    if part.is_masked and same(ignored, right, EXACT):
        raise mistake("lengths-ignored", ignored[1])


def mean(part: Part) -> None:
    """The head reads the mean of the words."""
    require_lengths(part)
    if not read(part, False):
        require_same("not-a-mean", part, [[4]], [[4, 4, 4]])


def read_positions(part: Part, length: int) -> list[int]:
    """The positions of the last layer's result that have an effect on the logits: each is changed
    in turn. Raises NotChecked if no module returns such a result, (B, T, D).
    """
    net, (tokens_BT, lengths_B) = net_of(part), inputs(part, 4, 4)
    last: list[nn.Module] = []

    def note(module: nn.Module, given: object, y: object) -> None:
        if isinstance(y, Tensor) and y.ndim == 3 and y.shape[:2] == (2, length):
            last[:] = [module]

    with nn.modules.module.register_module_forward_hook(note):
        before = student(net, tokens_BT, lengths_B)
    if not last:
        raise NotChecked("What the head reads was not checked: no module returns (B, T, D).")
    found = []
    for place in range(length):

        def move(module: nn.Module, given: object, y: Tensor, place: int = place) -> Tensor:
            y = y.clone()
            y[:, place] += torch.linspace(1, 2, y.shape[2])
            return y

        with last[0].register_forward_hook(move):
            after = student(net, tokens_BT, lengths_B)
        if not same(before, after, EXACT):
            found.append(place)
    return found


def first_with_cls(part: Part) -> Tensor | None:
    """(B, T + 1, D), the vectors with one before them that is the same in all reviews; None if the
    model makes no such tensor.
    """
    made = tensors(part, TWO)
    for x_BTD in [x for x in made if x.ndim == 3 and x.shape[:2] == (2, 5)]:
        if same(x_BTD[0, 0], x_BTD[1, 0]) and not same(x_BTD[0, 1:], x_BTD[1, 1:]):
            return x_BTD
    return None


def mean_or_cls(part: Part) -> None:
    """The head reads the mean of the words, or a CLS vector that is trained."""
    if (with_cls := first_with_cls(part)) is not None:
        require_trained_cls(part, with_cls[0, 0])
        with suppress(NotChecked):
            if (places := read_positions(part, 5)) != [0]:
                shown = ", ".join(map(str, places))
                raise mistake("cls-read-elsewhere", places=shown)
        read(part, True)
        return
    try:
        is_read = read(part, False)
    except Mistake as found:
        is_note = part.adapter is not None and part.adapter.entry.other_pooling == "note"
        if found.args[0] == "largest-not-mean" and is_note:
            raise NotChecked(f"Differs from the sheet: {found.args[1]}") from found
        raise
    require_lengths(part)
    if not is_read:
        if len(places := read_positions(part, 4)) < 4:
            raise mistake("words-not-read", places=", ".join(map(str, places)))
        raise NotChecked("What the head reads was not compared: it is no result (B, D) of words.")


def require_trained_cls(part: Part, cls_D: Tensor) -> None:
    """Raises Mistake if the vector before the words depends on no parameter that is trained."""
    net = net_of(part)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data += 0.5
    with_others = record(part, net, torch.tensor(TWO), torch.tensor([4, 4]))
    firsts = [x[0, 0] for x in with_others if x.ndim == 3 and x.shape[:2] == (2, 5)]
    if firsts and same(firsts[0], cls_D):
        raise mistake("cls-not-trained", count=sum(p.requires_grad for p in net.parameters()))


# --- the model of --stub --------------------------------------------------------------------------


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


def order(part: Part) -> None:
    """Without positions, the order of the words has no effect."""
    require_same("depends-on-order", part, REVIEW, [REVIEW[0][::-1]], 1e-4)


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
    if found := diagnose(part, TABLES["positions"], y_BC, encoded, "3 reviews of 4 words"):
        is_named = found.args[0] != "wrong-positions" and not isinstance(found, NotChecked)
        if is_named:
            raise found
        if same(y_BC, logits(part, tokens_BT.flip(1), positions="sinusoidal"), EXACT):
            fix = TABLES["positions"].texts["change"]
            raise mistake("positions-after-layers", y_BC[0], fix=fix)
        if after_projection(part, tokens_BT):
            raise NotChecked(POSITIONS_PROJECTED)
        raise found
    if part.accepts("cls"):
        with suppress(StudentError):  # CLS may not be written yet
            both: dict[str, Any] = {"cls": True, "positions": "sinusoidal"}
            if are_same(part, REVIEW, [REVIEW[0][::-1]], **both):
                raise mistake("positions-lost-with-cls", logits(part, REVIEW, **both)[0])


def after_projection(part: Part, tokens_BT: Tensor) -> bool:
    """Whether sines and cosines are added once, to a tensor computed from the vectors."""
    shape = tuple(tokens_BT.shape)
    with_them = tensors(part, tokens_BT.tolist(), positions="sinusoidal")
    without = [x for x in tensors(part, tokens_BT.tolist()) if x.shape[:2] == shape and x.ndim == 3]
    for x_BTD in without:
        if x_BTD.shape[2] % 2 == 0:
            y_BTD = x_BTD + sinusoids(shape[1], x_BTD.shape[2]).to(x_BTD.dtype)
            if any(same(z, y_BTD) for z in with_them):
                return not same(x_BTD, vectors_VD()[tokens_BT])
    return False


def cls_trained(part: Part) -> None:
    """CLS is a parameter that is trained."""
    with_cls, without = net_of(part, cls=True), net_of(part)
    given = inputs(part, 3, 3, 3, 3)
    used, before = (rules.trained(part, net, *given) for net in (with_cls, without))
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
    found = read(part, True, cls=True)
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


# --- models under any name ------------------------------------------------------------------------


def padding(part: Part) -> None:
    """The words in padded positions have no effect on the logits."""
    tokens_BT, lengths_B = inputs(part, 5, 3, 4)
    padding_BT = torch.arange(5) >= lengths_B[:, None]
    other_BT = torch.where(padding_BT, (tokens_BT + 5) % VOCABULARY, tokens_BT)
    y, z = (logits(part, one, lengths=lengths_B) for one in (tokens_BT, other_BT))
    if same(y, z):
        return
    with suppress(NotChecked):
        mean_or_cls(part)  # which may say why
    raise mistake("depends-on-padding", y[1], z[1], text="", length=3, more=2)


def vectors(part: Part) -> None:
    """The vectors that the class is given have an effect on the logits."""
    assert part.adapter is not None
    asked = part.adapter.entry.make
    if not any(asked.get(meant(k, asked) or "") == "vectors" for k in parameters_of(part.make)):
        raise NotChecked("The class is given no vectors.")
    results: list[Tensor] = []
    for table_VD in (vectors_VD(), vectors_VD().flip(0)):
        torch.default_generator.manual_seed(0)
        net = student(part.adapter.build, part.make, part.sizes | IN_SHEETS, vectors=table_VD)
        part.adapter.attach(net)
        results.append(student(net.eval(), *inputs(part, 3, 3)).detach())
    if same(results[0], results[1], EXACT):
        raise mistake("vectors-not-used", results[0][0])


def words(part: Part) -> None:
    """Every word has an effect on the logits, whatever its id."""
    for token in (1, 2, 3, VOCABULARY - 1):
        before, after = (logits(part, [[7, one]])[0] for one in (token, (token + 6) % VOCABULARY))
        if same(before, after, EXACT):
            raise mistake("words-not-used", before, token=token)


def added_positions(part: Part) -> None:
    """The positions are added once to the vectors, for each word those of its place."""
    net, (tokens_BT, lengths_B) = net_of(part), inputs(part, 4, 4, 4)
    named_so = [m for m in net.modules() if "pos" in type(m).__name__.lower()]
    seen: list[tuple[Tensor, Tensor]] = []

    def note(module: nn.Module, given: tuple[Any, ...], y: object) -> None:
        if module not in named_so or len(given) != 1 or not isinstance(y, Tensor):
            return
        if y.shape == getattr(given[0], "shape", None):
            seen.append((given[0].detach(), y.detach()))

    with nn.modules.module.register_module_forward_hook(note):
        made = record(part, net, tokens_BT, lengths_B)
    may_be_without = any(re.search("pos|pe(_|$)", k) for k in parameters_of(part.make))
    if named_so and not seen and not may_be_without:
        raise mistake("positions-not-used", name=type(named_so[0]).__name__)
    if len(seen) > 1:
        raise mistake("positions-added-often", count=len(seen))
    vectors_BTD = vectors_VD()[tokens_BT]
    for x_BTD, y_BTD in seen or sums(vectors_BTD, made):
        if x_BTD.shape[:2] not in ((3, 4), (3, 5)):
            x_BTD, y_BTD = x_BTD.transpose(0, 1), y_BTD.transpose(0, 1)
        require_positions(part, x_BTD, y_BTD, is_module=bool(seen))
        words_BTD = x_BTD[:, -4:]  # without CLS
        if words_BTD.shape != vectors_BTD.shape:
            raise NotChecked(POSITIONS_PROJECTED)
        factor = float((words_BTD * vectors_BTD).sum() / vectors_BTD.square().sum())
        if not same(words_BTD, factor * vectors_BTD) or abs(factor) < 1e-3:
            y_BC, z_BC = (logits(part, one) for one in (tokens_BT, tokens_BT.flip(1)))
            if same(y_BC, z_BC, EXACT):
                fix = TABLES["positions"].texts["change"]
                raise mistake("positions-after-layers", y_BC[0], fix=fix)
            raise NotChecked(POSITIONS_PROJECTED)
        if abs(factor - VECTORS**0.5) < 1e-3:
            raise NotChecked(VECTORS_SCALED)
        if abs(factor - 1) > 1e-3:
            raise mistake("vectors-scaled", given=factor)
        return
    raise NotChecked("Positions were not checked: none are added to the vectors.")


def sums(vectors_BTD: Tensor, made: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of a tensor with the vectors, or a multiple of them, and one that is its sum with the
    same table, for each review or each word.
    """
    wide = [x for x in made if x.ndim == 3 and x.shape[2] == VECTORS]
    wide = [x if len(x) == 3 else x.transpose(0, 1) for x in wide]
    starts = [vectors_BTD, vectors_BTD * VECTORS**0.5]
    starts += [x for x in wide if x.shape[1] == 5 and same(x[:, 1:], vectors_BTD)]
    for x_BTD in starts:
        for y_BTD in wide:
            if y_BTD.shape == x_BTD.shape and not same(x_BTD, y_BTD):
                pe_BTD = y_BTD - x_BTD
                if same(pe_BTD[:1].expand_as(pe_BTD), pe_BTD):
                    if not same(pe_BTD[:, :1].expand_as(pe_BTD), pe_BTD) or is_one(pe_BTD[0, 0]):
                        yield x_BTD, y_BTD
                elif same(pe_BTD[:, :1].expand_as(pe_BTD), pe_BTD):
                    yield x_BTD, y_BTD


def is_one(pe_D: Tensor) -> bool:
    """Whether the numbers are sines and cosines in turn."""
    squares = pe_D.unflatten(0, (-1, 2)).square().sum(-1)
    return same(squares, torch.ones_like(squares))


def require_positions(part: Part, x_BTD: Tensor, y_BTD: Tensor, is_module: bool) -> None:
    """Raises Mistake if what is added to the words is not that of their places.

    is_module: whether a class of the file adds it, which is checked by itself.
    """
    pe_BTD = y_BTD - x_BTD
    of_reviews = same(pe_BTD[:1].expand_as(pe_BTD), pe_BTD)
    of_places = same(pe_BTD[:, :1].expand_as(pe_BTD), pe_BTD)
    if of_places and not of_reviews:
        raise mistake("positions-of-reviews", pe_BTD[0, 0], pe_BTD[1, 0])
    if of_places and not is_module:
        raise mistake("same-position-in-model", pe_BTD[0, 0])
    if not is_module:
        names = {"x": x_BTD, "length": x_BTD.shape[1], "width": x_BTD.shape[2]}
        text = "3 reviews of 4 words"
        found = diagnose(part, TABLES["PositionalEncoding"], y_BTD, [names], text)
        if found and (isinstance(found, NotChecked) or found.args[0] == "wrong-positions"):
            raise NotChecked("Differs from the sheet: positions are not sinusoidal.")
        if found:
            raise found


GRADIENTS_NEED = ("logits", "repeatable", "input-unchanged", "layers", "registered")
CLASSIFIER = [
    *rules.FIRST,
    Rule("logits", returns_logits, ("repeatable",)),
    Rule("frozen-vectors", frozen_vectors),
    Rule("ids", ids, ("repeatable", "frozen-vectors")),
    Rule("mean", mean, ("ids", "repeatable")),
    Rule("order", order, ("ids", "repeatable", "mean")),
    Rule("layers", layers),
    Rule("registered", rules.registered),
    Rule("gradients", rules.gradients, GRADIENTS_NEED),
    Rule("positions", positions, ("repeatable", "order", "gradients"), option="positions"),
    Rule("cls-trained", cls_trained, ("repeatable", "ids", "gradients"), option="cls"),
    Rule("cls-read", cls_read, ("repeatable", "order", "gradients", "cls-trained"), option="cls"),
    Rule("cls-key", cls_key, ("cls-read",), option="cls"),
    Rule(
        "batch",
        rules.batch,
        ("ids", "repeatable", "mean", "order", "positions", "cls-trained", "cls-read"),
    ),
    Rule("finite", rules.finite, ("batch", "input-unchanged")),
]
MODEL = [
    *rules.FIRST,
    Rule("logits", returns_logits, ("repeatable",)),
    Rule("padding", padding, ("repeatable",)),
    Rule("mean", mean_or_cls, ("repeatable", "padding")),
    Rule("vectors", vectors, ("repeatable", "padding")),
    Rule("words", words, ("repeatable", "logits", "padding", "mean")),
    Rule("layers", layers),
    Rule("registered", rules.registered),
    Rule("gradients", rules.gradients, ("logits", "layers", "registered", "padding", "mean")),
    Rule("positions", added_positions, ("repeatable",)),
    Rule("batch", rules.batch, ("repeatable", "logits", "padding", "mean", "positions")),
    Rule("finite", rules.finite, ("batch", "input-unchanged")),
]
