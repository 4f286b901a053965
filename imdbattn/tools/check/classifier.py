"""Rules of Classifier: vectors -> + positions -> layers -> masked mean or CLS -> logits.

Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes.
"""

import inspect
import re
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.nn import sinusoids
from imdbattn.tools.check.formulas import RIGHT, Names, diagnose
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError, mistake, same
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

SEEDS = range(3)  # of models; a change that has no effect in any of them is taken to have none
EXACT = 1e-5  # a smaller effect is none
REVIEW = [[4, 2, 9]]
TWO = [[4, 2, 9, 1], [3, 8, 1, 6]]


def logits(
    part: Part, tokens: Any, *, lengths: Any = None, table: Tensor | None = None, **options: Any
) -> Tensor:
    """Detached, (B, C). lengths: all of the tokens by default. table, options: of the model, see
    net_of.
    """
    tokens_BT = torch.as_tensor(tokens)
    lengths_B = (
        torch.full(tokens_BT.shape[:1], tokens_BT.shape[1])
        if lengths is None
        else torch.as_tensor(lengths)
    )
    return student(net_of(part, table, **options), tokens_BT, lengths_B).detach()


def tensors(part: Part, tokens: Any, lengths: Any = None, **options: Any) -> list[Tensor]:
    """The tensors that the operations of a call make, in their order."""
    lengths = torch.tensor(lengths or [len(tokens[0])] * len(tokens))
    return record(part, net_of(part, **options), torch.tensor(tokens), lengths)


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
        if any(same(z.sum(1), torch.ones(len(z))) for z in (y_BC, y_BC.exp())):
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
        before, after = logits(part, [[third, token]]), []
        for other in others:
            table_VD = vectors_VD()
            table_VD[[token, other]] = table_VD[[other, token]]
            after.append(logits(part, [[third, other]], table=table_VD))
        if not any(same(before, one, EXACT) for one in after):
            name = "word-as-padding" if token else "id-0-as-padding"
            raise mistake(name, before, after[0], first=third, token=token, other=others[0])
    if scaled:  # as by Vaswani et al.
        raise NotChecked("Differs from the sheet: the vectors are multiplied by sqrt(d).")


def require_same(
    finding: str, part: Part, first: Any, second: Any, tolerance: float = 1e-3, **options: Any
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


def mean(part: Part) -> None:
    """The head reads the mean of the words."""
    ignored, right = (logits(part, TWO, lengths=lengths) for lengths in ([4, 4], [4, 2]))
    if same(ignored, right, EXACT):
        raise mistake("lengths-ignored", ignored[1])
    if not read(part, cls=False):
        require_same("not-a-mean", part, [[4]], [[4, 4, 4]])


def model_padding(part: Part) -> None:
    """The words in padded positions have no effect on the logits."""
    tokens_BT, lengths_B = inputs(part, 5, 3, 4)
    padding_BT = torch.arange(5) >= lengths_B[:, None]
    other_BT = torch.where(padding_BT, (tokens_BT + 5) % VOCABULARY, tokens_BT)
    y, z = (logits(part, one, lengths=lengths_B) for one in (tokens_BT, other_BT))
    if same(y, z):
        return
    net = net_of(part)
    with torch.enable_grad():  # without gradients, torch's own attention computes in one step
        made = record(part, net, tokens_BT, lengths_B)
    for weights_B in filter(None, (as_weights(x, 3, 5) for x in made)):
        for w, length in zip(weights_B, lengths_B.tolist(), strict=True):
            on_words, on_padding = w[:, :length, :length].sum(), w[:, :length, length:].sum()
            if on_padding > 1e-3:
                finding = "no-key-mask" if on_words > 1e-3 else "mask-inverted"
                texts = mistake(f"{finding}-in-model", w[0, 0], length=length).args[1:]
                raise Mistake(finding, *texts)
    with suppress(NotChecked):
        read(part, cls=False)
    raise mistake("depends-on-padding", y[1], z[1], text="", length=3, more=2)


def as_weights(x: Tensor, reviews: int, length: int) -> list[Tensor] | None:
    """Weights of attention as (heads, T, T) for each review; None for another tensor."""
    if x.shape[-2:] != (length, length) or x.numel() % (reviews * length**2) or (x < 0).any():
        return None
    if not same(x.sum(-1), torch.ones(x.shape[:-1]).to(x)):
        return None
    return [*x.reshape(reviews, -1, length, length)]


def model_mean(part: Part) -> None:
    """The head reads the mean of the words."""
    is_read = read(part, cls=False)
    ignored, right = (logits(part, TWO, lengths=lengths) for lengths in ([4, 4], [4, 2]))
    if same(ignored, right, EXACT):
        raise mistake("lengths-ignored", ignored[1])
    if not is_read:
        raise NotChecked("What the head reads was not checked: it is no result (B, D) of words.")


def model_words(part: Part) -> None:
    """Every word has an effect on the logits, whatever its id."""
    for token in (1, 2, 3, VOCABULARY - 1):
        before, after = (logits(part, [[7, one]])[0] for one in (token, (token + 6) % VOCABULARY))
        if same(before, after, EXACT):
            raise mistake("words-not-used", before, token=token)


def model_positions(part: Part) -> str | None:
    """The positions are added to the vectors, for each word those of its place."""
    net, seen = net_of(part), list[tuple[Tensor, Tensor]]()
    named = [m for m in net.modules() if "pos" in type(m).__name__.lower()]

    def hook(module: nn.Module, given: Any, y: Any) -> None:
        if module in named and len(given) == 1 and isinstance(y, Tensor):
            if isinstance(given[0], Tensor) and given[0].shape == y.shape:
                seen.append((given[0].detach(), y.detach()))

    tokens_BT, lengths_B = inputs(part, 4, 4, 4)
    with nn.modules.module.register_module_forward_hook(hook):
        student(net, tokens_BT, lengths_B)
    vectors_BTD = vectors_VD()[tokens_BT]
    if not seen and named and not may_be_without(part):
        raise mistake("positions-not-used", name=type(named[0]).__name__)
    if not seen:
        return added_positions(part, vectors_BTD, record(part, net, tokens_BT, lengths_B))
    if len(seen) > 1:
        raise mistake("positions-added-often", count=len(seen))
    x, y = seen[0]
    if x.shape[:2] == tokens_BT.shape:
        pe = y - x
        if same(pe[:, :1].expand_as(pe), pe) and not same(pe[:1].expand_as(pe), pe):
            raise mistake("positions-of-reviews", pe[0, 0], pe[1, 0])
    else:
        x = x.transpose(0, 1)
    if x.shape == vectors_BTD.shape:
        if same(x, vectors_BTD):
            return None
        if same(x, vectors_BTD * VECTORS**0.5):
            raise NotChecked("Differs from the sheet: the vectors are multiplied by sqrt(d).")
        factor = float((x * vectors_BTD).sum() / vectors_BTD.square().sum())
        if abs(factor) > 1e-3 and same(x, factor * vectors_BTD):
            raise mistake("vectors-scaled", given=factor)
    y, z = (logits(part, one) for one in (tokens_BT, tokens_BT.flip(1)))
    if same(y, z, EXACT):
        raise mistake("positions-after-layers", y[0], fix=TABLES["positions"].texts["change"])
    raise NotChecked("Differs from the sheet: positions are added after a projection.")


def may_be_without(part: Part) -> bool:
    """Whether the model has an argument that says whether it has positions."""
    return any(re.search("pos|pe(_|$)", name) for name in inspect.signature(part.make).parameters)


def added_positions(part: Part, vectors_BTD: Tensor, made: list[Tensor]) -> str | None:
    """As model_positions, for positions that the model itself adds to the vectors."""
    shape = vectors_BTD.shape
    made = [x if x.shape == shape else x.transpose(0, 1) for x in made if x.ndim == 3]
    for factor in (1, VECTORS**0.5):
        x_BTD = vectors_BTD * factor
        for y_BTD in made:
            if y_BTD.shape != shape or same(y_BTD, x_BTD):
                continue
            pe_BTD = y_BTD - x_BTD
            of_reviews = same(pe_BTD[:1].expand(shape), pe_BTD)
            of_places = same(pe_BTD[:, :1].expand(shape), pe_BTD)
            if of_places and not of_reviews:
                raise mistake("positions-of-reviews", pe_BTD[0, 0], pe_BTD[1, 0])
            if of_reviews and (found := find_positions(part, x_BTD, y_BTD)) is not None:
                if found:
                    raise NotChecked("Differs from the sheet: positions are not sinusoidal.")
                if factor != 1:
                    raise NotChecked(
                        "Differs from the sheet: the vectors are multiplied by sqrt(d)."
                    )
                return None
    raise NotChecked("Positions were not checked: none are added to the vectors.")


def find_positions(part: Part, x_BTD: Tensor, y_BTD: Tensor) -> Any:
    """What diagnose returns for x to which positions may be added. Raises Mistake."""
    names = {"x": x_BTD, "length": x_BTD.shape[1], "width": x_BTD.shape[2]}
    bindings = [(RIGHT, "", lambda: names)]
    text = "3 reviews of 4 words"
    return diagnose(part, TABLES["PositionalEncoding"], [y_BTD], bindings, {text: ()}) or False


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
            raise NotChecked("Differs from the sheet: positions are added after a projection.")
        raise found
    if part.accepts("cls"):
        both: dict[str, Any] = {"cls": True, "positions": "sinusoidal"}
        with suppress(StudentError):  # CLS may not be written yet
            pairs = [
                [logits(part, [r], seed=seed, **both) for r in (REVIEW[0], REVIEW[0][::-1])]
                for seed in SEEDS
            ]
            if all(same(one, other, EXACT) for one, other in pairs):
                raise mistake("positions-lost-with-cls", pairs[0][0])


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
    pairs = [
        [logits(part, REVIEW, table=v, seed=seed, cls=True) for v in (None, changed_VD)]
        for seed in SEEDS
    ]
    if all(same(one, other, EXACT) for one, other in pairs):
        raise mistake("cls-over-first-word", pairs[0][0])
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

    def hook(module: nn.Module, given: Any, y: Any) -> None:
        if isinstance(y, Tensor) and y.ndim == 3:
            called.append(module)

    with nn.modules.module.register_module_forward_hook(hook):
        student(net, *inputs(part, 3))
    for name, module in net.named_modules():  # a layer comes before its parts
        count = called.count(module)
        if count > 1 and any(p.ndim > 1 and p.requires_grad for p in module.parameters()):
            raise mistake("one-layer-shared", name=name, count=count)
