"""References of PlainLayer and ResidualLayer: attention is one of their modules, or found among the
tensors. Shape suffixes: N samples, D width.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.tools.check.affine import (
    SAMPLES,
    Fitted,
    affine_maps,
    apply,
    computed,
    each_number,
    samples,
)
from imdbattn.tools.check.attention import attention_names
from imdbattn.tools.check.formulas import (
    GUESS,
    RIGHT,
    Call,
    Choice,
    Names,
    evaluate,
    whole,
    words_only,
)
from imdbattn.tools.check.numbers import Mistake, NotChecked, mask, mistake, normal, same, show
from imdbattn.tools.check.operations import require_known_in
from imdbattn.tools.check.part import HEADS, WIDTH, Part, inputs, record
from imdbattn.tools.check.tables import TABLES, change_for


def ignores_padding(call: Call) -> bool:
    """Whether the results of two words are the same with a third position, of padding."""
    x = normal(1, 3, WIDTH)
    try:
        return same(call(x, mask(2, size=3))[:, :2], call(x[:, :2], mask(2)))
    except Exception:  # it has another signature
        return False


def attending_in_any_way(module: nn.Module) -> list[Call]:
    """As attending, for a module whose mask may be True on padding, or which is given lengths."""
    others = [lambda x, m: module(x, ~m), lambda x, m: module(x, m.sum(1))]
    found = [call for call in attending(module) if ignores_padding(call)]
    return found or [call for call in others if ignores_padding(call)] or attending(module)


def attending(module: nn.Module) -> list[Call]:
    """The module as functions of (x, mask) with an effect of words on each other; [] if it is not
    attention.
    """

    def heads(x: Tensor, m: Tensor) -> Tensor:
        x, padding = x if module.batch_first else x.transpose(0, 1), ~m & m.any(1, keepdim=True)
        y = module(x, x, x, key_padding_mask=padding)[0]
        return y if module.batch_first else y.transpose(0, 1)

    found = []
    for call in (
        (heads,) if isinstance(module, nn.MultiheadAttention) else (module, lambda x, m: module(x))
    ):
        try:
            x, y = normal(1, 2, WIDTH), call(normal(1, 2, WIDTH), mask(2))
            if y.shape == x.shape and not same(y[:, :1], call(x[:, :1], mask(1)), 1e-6):
                found.append(call)
        except Exception:  # it has another signature
            continue
    return found


def attend(three: tuple[Tensor, ...], x: Tensor, m: Tensor) -> Any:
    return evaluate(TABLES["SelfAttention"].steps, attention_names(three, 1, False, whole, x, m))


def norms(words: list[Tensor]) -> list[Call]:
    """LayerNorm with each weight and bias with which it gives one of these tensors (N, D) for
    another one.
    """
    found: list[Tensor] = []
    for x_ND in words:
        x_ND = F.layer_norm(x_ND, (WIDTH,))
        fits = [fit for y_ND in words if (fit := each_number(x_ND, y_ND)) is not None]
        if fits and not any(same(fits[-1], other) for other in found):
            found.append(fits[-1])
    plain = torch.stack([torch.ones(WIDTH), torch.zeros(WIDTH)])
    return [
        partial(F.layer_norm, normalized_shape=(WIDTH,), weight=w, bias=b)
        for w, b in found or [plain]
    ]


def layer_choices(part: Part, net: nn.Module, results: list[Tensor]) -> Iterator[Choice]:
    """Attention is one of the modules, or else that of three affine functions of x or LN(x); g: see
    Fitted.
    """
    tensors = computed(part, net, samples(part, 2))
    wide = [y.view(SAMPLES, 2, WIDTH) for y in tensors if y.shape[1] == 2 * WIDTH]
    words = [y.flatten(0, 1) for y in wide]
    of_module = attending_in_any_way if part.adapter else attending
    attentions = [f for child in list(net.modules())[1:] for f in of_module(child)]
    finding = RIGHT if attentions else GUESS
    found = norms(words)
    if not attentions:
        for x_ND in (words[0], found[-1](words[0])):
            three = affine_maps(x_ND, [y for y in words if each_number(x_ND, y) is None])[:3]
            attentions += [partial(attend, one) for one in itertools.permutations(three, 3)]
        attentions = those_computed(attentions, found, samples(part, 2), wide)
    for f, n in itertools.product(attentions, found):
        yield finding, "", {"attention": f, "n": n, "g": Fitted(*reversed(wide), alone=False)}


def those_computed(
    attentions: list[Call], norms: list[Call], given: list[Tensor], made: list[Tensor]
) -> list[Call]:
    """The attentions whose results are among the tensors; all of them if there is none."""
    x_BTD, mask_BT = given
    inputs_of = [x_BTD, *(norm(x_BTD) for norm in norms)]
    kept = []
    for attention in attentions:
        results = [attention(x, mask_BT) for x in inputs_of]
        if any(same(y, z) for y in results for z in made if y is not None):
            kept.append(attention)
    return kept or attentions


def inside(part: Part, net: nn.Module) -> bool:
    """Whether the attention in a layer is a module, or that of the formula. Raises Mistake for a
    known mistake of attention that the layer computes itself.
    """
    if any(attending_in_any_way(child) for child in list(net.modules())[1:]):
        return True
    # of reviews of one word, so that heads need not be told from words
    words = [y for y in computed(part, net, samples(part, 1)) if y.shape[1] == WIDTH]
    maps, twice = [], []  # for each norm, that of the input of the projections, and these
    by_norm: list[tuple[Call, list[Tensor]]] = []
    for norm in (whole, norms(words)[-1]):
        x_ND = norm(words[0])
        found = affine_maps(x_ND, [y for y in words if each_number(x_ND, y) is None])[:3]
        by_norm.append((norm, found))
        maps += [(norm, three) for three in itertools.permutations(found, 3)]
        products = itertools.product(found, repeat=3)
        twice += [(norm, three) for three in products if len({*map(id, three)}) == 2]
    if not differs_inside(part, net, maps, 3, 5, 2, 4, known=False):
        return True
    if twice and not differs_inside(part, net, twice, 3, 5, 2, 4, known=False):
        text = "The attention in this layer is that of two projections of each word, not of three."
        sentence = "One projection is used for several of W_q, W_k and W_v."
        change = change_for(TABLES["SelfAttention"], "shared-projections")
        raise Mistake("shared-projections", sentence, text, change)
    differs_inside(part, net, maps, 3, 5, 2, 4)  # which raises Mistake for a known one
    require_one_input(part, net, by_norm)
    differs_inside(part, net, maps, 4, 4, 4)  # without padding
    return False


def require_one_input(part: Part, net: nn.Module, by_norm: list[tuple[Call, list[Tensor]]]) -> None:
    """Raises Mistake if one of queries, keys and values is computed from x and others from LN(x).

    by_norm: x and LN(x) as functions of x, each with the affine functions of it.
    """
    x_BTD, mask_BT = inputs(part, 3, 5, 2, 4)
    with torch.enable_grad():
        made = [y for y in record(part, net, x_BTD, mask_BT) if y.shape == x_BTD.shape]
    projected: list[tuple[int, Tensor]] = []
    for number, (norm, maps) in enumerate(by_norm):
        projected += [(number, apply(w, norm(x_BTD))) for w in maps]
    for three in itertools.permutations(projected, 3):
        of_norm = [number for number, _ in three]
        if len({*of_norm}) == 1 or any(y.shape != x_BTD.shape for _, y in three):
            continue
        for heads in (1, HEADS):
            kind = "SelfAttention" if heads == 1 else "MultiHeadSelfAttention"
            given = (*(y for _, y in three), mask_BT)
            names = attention_names(None, heads, False, whole, *given)
            y = evaluate(TABLES[kind].steps, names)
            if y is not None and any(same(y, z) for z in made):
                what = [w for w, n in zip(("queries", "keys", "values"), of_norm, strict=True) if n]
                sentence = f"Only {' and '.join(what)} are computed from LN(x), the others from x."
                text = "The result of the attention in this layer is that of this mistake."
                raise Mistake("no-norm", sentence, text, part.change("no-norm"))


def require_skips(part: Part, net: nn.Module, only_wide: bool) -> None:
    """Raises Mistake if x is not added after the attention, or the input of a feed-forward network
    after it: a tensor is looked for that is the sum of two others. Raises NotChecked if they are.

    only_wide: whether a layer without such a network, which is wider than x, is left out.
    """
    x_BTD, mask_BT = inputs(part, 3, 3)
    other_BTD = x_BTD.clone()
    other_BTD[:, 0] += normal(WIDTH, seed=3)
    with torch.enable_grad():
        made, others = (record(part, net, x, mask_BT) for x in (x_BTD, other_BTD))
    steps, last_wide = [], -1
    for y, z in zip(made, others, strict=True):
        if y.ndim != 3:
            continue
        if y.shape != x_BTD.shape:
            y, z = y.transpose(0, 1), z.transpose(0, 1)
        if y.shape == x_BTD.shape:
            steps.append((y, not same(y[:, 1], z[:, 1], 1e-6)))
        elif y.shape[-1] > WIDTH and any(mixed for _, mixed in steps):
            last_wide = len(steps)
    if only_wide and last_wide < 0:
        return
    mixed = [y for y, is_mixed in steps if is_mixed]
    if not mixed:
        return
    for y, z in itertools.permutations(mixed, 2):
        if same(y - 2 * x_BTD, z):
            sentence = "x is added twice to the result of attention."
            example = f"For 2 reviews of 3 words, {show(y[0, 0, :3].tolist())} is this sum."
            raise Mistake("skip-twice", sentence, example, part.change("skip-twice"))
    if not any(same(y - x_BTD, z) for y, z in itertools.permutations(mixed, 2)):
        x_ND = F.layer_norm(x_BTD, x_BTD.shape[-1:]).flatten(0, 1)
        unmixed = [y for y, is_mixed in steps if not is_mixed and not same(y, x_BTD)]
        normed = [y for y in unmixed if each_number(x_ND, y.flatten(0, 1)) is not None]
        for n, (y, z) in itertools.product(normed, itertools.permutations(mixed, 2)):
            if same(y - n, z):
                sentence = "LN(x) is added to the result of attention, not x."
                example = f"For 2 reviews of 3 words, {show(y[0, 0, :3].tolist())} is this sum."
                raise Mistake("norm-on-skip", sentence, example, part.change("norm-on-skip"))
        raise mistake("input-not-added", mixed[-1], what="attention", fix=part.change("no-skip"))
    late = [y for y, is_mixed in steps[last_wide:] if is_mixed] if last_wide >= 0 else []
    sums = (same(y - v, u) for y, v in itertools.permutations(late, 2) for u in mixed)
    if late and not any(sums):
        fix = "Write x = x + self.feed_forward(self.norm(x))."
        raise mistake("input-not-added", late[-1], what="the feed-forward network", fix=fix)
    require_known_in(part, net)
    raise NotChecked("Differs from the sheet: LayerNorm or what follows the attention is another.")


def differs_inside(
    part: Part,
    net: nn.Module,
    maps: Sequence[tuple[Call, tuple[Tensor, ...]]],
    *lengths: int,
    known: bool = True,
) -> bool:
    """Whether the attention in a layer differs from the formula. Raises Mistake for a known one."""
    x_BTD, mask_BT = inputs(part, *lengths)
    with torch.enable_grad():
        every = record(part, net, x_BTD, mask_BT)
    made = [y if y.shape == x_BTD.shape else y.transpose(0, 1) for y in every if y.ndim == 3]
    made += [y.transpose(1, 2).flatten(2) for y in every if y.ndim == 4]  # (B, H, T, d)
    results = [y for y in made if y.shape == x_BTD.shape and y.any()]  # not those it starts with
    results += [y - x_BTD for y in results[-1:]]  # for a result that is filled in place
    names = []
    for (norm, three), heads in itertools.product(maps, (1, HEADS)):
        names.append((heads, attention_names(three, heads, False, whole, norm(x_BTD), mask_BT)))
    tables = {1: TABLES["SelfAttention"], HEADS: TABLES["MultiHeadSelfAttention"]}
    known_results = {
        words_only: KnownResults([words_only(z, x_BTD, mask_BT) for z in results]),
        whole: KnownResults(results),
    }

    def gives(steps: dict[str, str], names: Names, keep: Call = words_only) -> bool:
        y = evaluate(steps, names)
        if y is None or y.shape != x_BTD.shape:
            return False
        return keep(y, x_BTD, mask_BT) in known_results[keep]

    if any(gives(tables[heads].steps, one) for heads, one in names):
        return False
    for heads, one in names if known else ():
        found = [
            (finding, sentence, tables[heads].steps | steps)
            for finding, sentence, steps in tables[heads].variants
            if finding not in NOT_INSIDE and gives(tables[heads].steps | steps, one)
        ]
        exact = [known for known in found if gives(known[2], one, whole)]
        for finding, sentence, _ in (*exact, *found):
            text = "All results of the attention in this layer are those of this mistake."
            raise Mistake(finding, sentence, text, change_for(tables[heads], finding))
    return True


class KnownResults:
    """Tensors of one shape. `y in results` is whether y is the same as one of them."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        if tensors:
            self.flat_NX = torch.stack(tensors).flatten(1)
            self.limit_N = 1e-3 * self.flat_NX.abs().amax(1)

    def __contains__(self, y: Tensor) -> bool:
        if not self.tensors:
            return False
        distance_N = (self.flat_NX - y.flatten()).abs().amax(1)
        # a distance that is not finite is compared in any case
        near = (~(distance_N > self.limit_N) | ~distance_N.isfinite()).nonzero().flatten()
        return any(same(y, self.tensors[place]) for place in near.tolist())


# Of attention alone: in a layer they are right, or cannot be told.
NOT_INSIDE = ("skip-in-attention", "no-output-projection", "no-attention", "one-head")
