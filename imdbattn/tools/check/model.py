"""Rules of models under any name: a mean of the words that layers with attention have read.

They are called with tokens and with lengths or a mask. The other rules are those of Classifier.
Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes.
"""

import inspect
import itertools
import re
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

import imdbattn.tools.check.classifier as classifier
from imdbattn.tools.check.classifier import (
    EXACT,
    POSITIONS_PROJECTED,
    VECTORS_SCALED,
    logits,
    read,
    require_lengths,
)
from imdbattn.tools.check.formulas import RIGHT, diagnose
from imdbattn.tools.check.numbers import Mistake, NotChecked, mistake, named, same
from imdbattn.tools.check.operations import (
    Operation,
    Operations,
    require_known_in,
    step_by_step,
)
from imdbattn.tools.check.part import (
    NAMES,
    VECTORS,
    VOCABULARY,
    Part,
    inputs,
    net_of,
    record,
    student,
    vectors_VD,
)
from imdbattn.tools.check.sheets import meant, parameters_of
from imdbattn.tools.check.tables import TABLES


def padding(part: Part) -> None:
    """The words in padded positions have no effect on the logits."""
    tokens_BT, lengths_B = inputs(part, 5, 3, 4)
    padding_BT = torch.arange(5) >= lengths_B[:, None]
    other_BT = torch.where(padding_BT, (tokens_BT + 5) % VOCABULARY, tokens_BT)
    y, z = (logits(part, one, lengths=lengths_B) for one in (tokens_BT, other_BT))
    require_order(y, part, tokens_BT, lengths_B)
    if same(y, z):
        return
    zeros_BT = tokens_BT.masked_fill(padding_BT, 0)
    if same(logits(part, zeros_BT, lengths=lengths_B), alone(part, tokens_BT, lengths_B)):
        raise mistake("mask-from-tokens", y[1], z[1])
    weights_of_words(part, tokens_BT, lengths_B)
    with suppress(NotChecked):
        read(part, cls=False)
    raise mistake("depends-on-padding", y[1], z[1], text="", length=3, more=2)


def require_order(y_BC: Tensor, part: Part, tokens_BT: Tensor, lengths_B: Tensor) -> None:
    """Raises Mistake if the logits of the reviews are in another order than the reviews."""
    alone_BC = alone(part, tokens_BT, lengths_B)
    for order in list(itertools.permutations(range(len(y_BC))))[1:]:
        if same(y_BC, alone_BC[[*order]]) and not same(y_BC, alone_BC):
            raise mistake("reviews-reordered", alone_BC[0], y_BC[0])


def alone(part: Part, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """The logits of each review without padding."""
    rows = zip(tokens_BT, lengths_B.tolist(), strict=True)
    return torch.cat([logits(part, row[None, :length]) for row, length in rows])


def weights_of_words(part: Part, tokens_BT: Tensor, lengths_B: Tensor) -> None:
    """Raises Mistake if a tensor is weights of attention in which words attend to padding."""
    net = net_of(part)
    with torch.enable_grad(), step_by_step():
        made = record(part, net, tokens_BT, lengths_B)
    for weights_B in filter(None, (as_weights(x, *tokens_BT.shape) for x in made)):
        for w, length in zip(weights_B, lengths_B.tolist(), strict=True):
            on_words, on_padding = w[:, :length, :length].sum(), w[:, :length, length:].sum()
            if on_padding > 1e-3 and w[:, :length, length + 1 :].sum() < 1e-6 < on_words:
                texts = "one-position-too-many-in-model"
                raise named("one-position-too-many", texts, w[0, 0], length=length)
            if on_padding > 1e-3:
                finding = "no-key-mask" if on_words > 1e-3 else "mask-inverted"
                raise named(finding, f"{finding}-in-model", w[0, 0], length=length)


def as_weights(x: Tensor, reviews: int, length: int) -> list[Tensor] | None:
    """Weights of attention as (heads, T, T) for each review; None for another tensor. nan, of words
    whose keys are all masked, becomes 0, which torch's own attention gives.
    """
    if x.shape[-2:] != (length, length) or x.numel() % (reviews * length**2) or (x < 0).any():
        return None
    sums = x.sum(-1)
    is_one = (sums - 1).abs() < 1e-3
    if not bool(is_one.any() and (is_one | sums.isnan() | (sums == 0)).all()):
        return None
    return [*x.nan_to_num(0).reshape(reviews, -1, length, length)]


def layers(part: Part) -> None:
    """Each layer is used once, and each is given the result of the layer before."""
    classifier.layers(part)
    net = net_of(part)
    names = {one: name for name, one in net.named_modules()}
    given_to: list[tuple[nn.Module, Tensor]] = []

    def hook(module: nn.Module, given: tuple[Any, ...], y: object) -> None:
        name = re.sub(r"\.\d+", "", names.get(module, ""))
        is_own = not type(module).__module__.startswith("torch.") and "." not in name
        if not is_own or not given or not isinstance(y, Tensor) or not y.is_floating_point():
            return
        if isinstance(given[0], Tensor) and y.shape == given[0].shape:
            given_to.append((module, given[0].detach().clone()))

    with nn.modules.module.register_module_forward_hook(hook):
        y_BC = student(net, *inputs(part, 3, 3))
    if y_BC.requires_grad:
        student(lambda: y_BC.square().sum().backward())
    for (one, x), (other, y) in itertools.combinations(given_to, 2):
        is_alike = type(one) is type(other) and one is not other and x.shape == y.shape
        is_used = any(p.grad is not None and bool(p.grad.any()) for p in one.parameters())
        if is_alike and is_used and same(x, y, EXACT):
            values = {"first": names[one], "second": names[other]}
            raise mistake("layers-in-parallel", x[0, 0], **values)


def attention(part: Part) -> None:
    """Each softmax is over keys, and of products that are divided by the root of their width."""
    require_known_in(part, net_of(part))


def mean(part: Part) -> None:
    """The head reads the mean of the words."""
    try:
        is_read = read(part, cls=False)
    except Mistake as found:
        is_note = part.adapter is None or part.adapter.entry.other_pooling == "note"
        if found.args[0] == "largest-not-mean" and is_note:
            raise NotChecked(f"Differs from the sheet: {found.args[1]}") from found
        raise
    require_lengths(part)
    if not is_read:
        require_mean_of_logits(part)
        raise NotChecked("What the head reads was not checked: it is no result (B, D) of words.")


def require_mean_of_logits(part: Part) -> None:
    """Raises Mistake if the logits of the words are summed."""
    lengths_B = torch.tensor([4, 2])
    made = classifier.tensors(part, [[5, 8, 6, 7], [9, 5, 8, 6]], lengths_B.tolist())
    words_BT1 = (torch.arange(4) < lengths_B[:, None])[..., None]
    for y_BTC in [x for x in made if x.ndim == 3 and x.shape[:2] == (2, 4)]:
        sum_BC = (y_BTC * words_BT1).sum(1)
        if same(sum_BC, made[-1]) and sum_BC.shape == made[-1].shape:
            raise mistake("logits-summed", sum_BC, sum_BC / lengths_B[:, None])


def vectors(part: Part) -> None:
    """The vectors that the class is given have an effect on the logits."""
    assert part.adapter is not None
    asked = part.adapter.entry.make
    if not any(asked.get(meant(k, asked) or "") == "vectors" for k in parameters_of(part.make)):
        raise NotChecked("The class is given no vectors.")
    results: list[Tensor] = []
    for table_VD in (vectors_VD(), vectors_VD().flip(0)):
        torch.default_generator.manual_seed(0)
        net = student(part.adapter.build, part.make, part.sizes | NAMES, vectors=table_VD)
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


def positions(part: Part) -> str | None:
    """The positions are added to the vectors, for each word those of its place."""
    net, seen = net_of(part), list[tuple[Tensor, Tensor]]()
    named = [m for m in net.modules() if "pos" in type(m).__name__.lower()]

    def hook(module: nn.Module, given: tuple[Any, ...], y: object) -> None:
        is_one = module in named and len(given) == 1
        if is_one and isinstance(y, Tensor) and y.shape == getattr(given[0], "shape", None):
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
            raise NotChecked(VECTORS_SCALED)
        factor = float((x * vectors_BTD).sum() / vectors_BTD.square().sum())
        if abs(factor) > 1e-3 and same(x, factor * vectors_BTD):
            raise mistake("vectors-scaled", given=factor)
    y, z = (logits(part, one) for one in (tokens_BT, tokens_BT.flip(1)))
    if same(y, z, EXACT):
        raise mistake("positions-after-layers", y[0], fix=TABLES["positions"].texts["change"])
    raise NotChecked(POSITIONS_PROJECTED)


def may_be_without(part: Part) -> bool:
    """Whether the model has an argument that says whether it has positions."""
    return any(re.search("pos|pe(_|$)", name) for name in inspect.signature(part.make).parameters)


def added_positions(part: Part, vectors_BTD: Tensor, made: list[Tensor]) -> str | None:
    """As positions, for positions that the model itself adds to the vectors."""
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
            if of_places and of_reviews:
                if is_one_position(pe_BTD[0, 0]):
                    raise mistake("same-position-in-model", pe_BTD[0, 0])
                continue
            if of_places:
                raise mistake("positions-of-reviews", pe_BTD[0, 0], pe_BTD[1, 0])
            found: Exception | bool | None = None
            if of_reviews:
                require_added_once(part, pe_BTD)
                found = find_positions(part, x_BTD, y_BTD)
            if of_reviews and found is not None:
                if found:
                    raise NotChecked("Differs from the sheet: positions are not sinusoidal.")
                if factor != 1:
                    raise NotChecked(VECTORS_SCALED)
                return None
    raise NotChecked("Positions were not checked: none are added to the vectors.")


def require_added_once(part: Part, pe_BTD: Tensor) -> None:
    """Raises Mistake if these positions are added several times, such as before each layer."""
    with Operations() as operations:
        student(net_of(part), *inputs(part, 4, 4, 4))

    def adds_table(op: Operation) -> bool:
        return op.name in ("add", "add_") and any(is_table(x, pe_BTD) for x in op.given)

    count = sum(map(adds_table, operations.made))
    if count > 1:
        raise mistake("positions-added-often", count=count)


def is_table(x: object, pe_BTD: Tensor) -> bool:
    """Whether these are the positions of all reviews, or of one."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return False
    if x.shape[-2:] != pe_BTD.shape[-2:] or x.ndim > 3:
        return False
    return len(x) in (1, *pe_BTD.shape[:2]) and same(x.expand(pe_BTD.shape), pe_BTD)


def is_one_position(pe_D: Tensor) -> bool:
    """Whether the numbers are sines and cosines in turn."""
    if len(pe_D) % 2:
        return False
    squares = pe_D.unflatten(0, (-1, 2)).square().sum(-1)
    return same(squares, torch.ones_like(squares))


def find_positions(part: Part, x_BTD: Tensor, y_BTD: Tensor) -> Exception | bool | None:
    """What diagnose returns for x to which positions may be added. Raises Mistake."""
    names = {"x": x_BTD, "length": x_BTD.shape[1], "width": x_BTD.shape[2]}
    bindings = [(RIGHT, "", lambda: names)]
    text = "3 reviews of 4 words"
    return diagnose(part, TABLES["PositionalEncoding"], [y_BTD], bindings, {text: ()}) or False
