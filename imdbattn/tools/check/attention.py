"""References of SelfAttention, MultiHeadAttention and scaled_dot_product_attention.

Shape suffixes: B reviews, H heads, T positions, D width.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from imdbattn.tools.check.affine import Fitted, affine_maps, apply, computed, samples
from imdbattn.tools.check.formulas import GUESS, RARE, RIGHT, Call, Choice, Names, whole
from imdbattn.tools.check.numbers import same
from imdbattn.tools.check.part import HEADS, WIDTH, Part


def attention_names(
    three: Sequence[Tensor] | None, heads: int, alternate: bool, w_o: Call, *given: Tensor
) -> Names:
    """three: projections of the arguments side by side. alternate: whether a head has every H-th
    column.

    given: x or query, key and value; the mask.
    """
    *sources, m = given
    Q, K, V = (apply(w, torch.cat(sources, -1)) for w in three) if three else sources
    names: Names = {
        "query": sources[0],
        "m": m,
        "split": whole,
        "merge": plus,
        "Q": Q,
        "K": K,
        "V": V,
    }
    if heads:
        names["m"] = m[:, None, None]
        names["split"] = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)
        names["merge"] = partial(merged, w_o)
        names["w_o"] = w_o
        if alternate:
            names["split"] = lambda x: x.unflatten(-1, (-1, heads)).movedim(-1, 1)
    B, T, D = Q.shape[0], Q.shape[-2], Q.shape[-1]
    return names | {"B": B, "T": T, "D": D, "d": D // (heads or 1)}


def plus(y: Tensor, added: Tensor | None = None) -> Tensor:
    return y if added is None else y + added


def merged(w_o: Call, y: Tensor, added: Tensor | None = None) -> Tensor:
    """W_O of the heads (B, H, T, d), and then the sum with what is added."""
    y = y.transpose(1, 2).flatten(2)
    if added is None or not isinstance(w_o, Fitted):
        return plus(w_o(y), added)
    return w_o(y, added) + added


NAMES = ("queries", "keys", "values")


class Projection(NamedTuple):
    matrix: Tensor  # (M, columns + 1), of the arguments side by side
    place: int  # of the argument that it is applied to
    weight: Tensor  # (M, D), for that argument
    is_x: bool  # it is the argument itself
    is_output: bool = False  # it is W_O of another one


def among(rows: Tensor, matrices: list[Tensor]) -> bool:
    """Whether each of the rows is one of those of the matrices."""
    return bool(matrices) and bool((torch.cdist(rows, torch.cat(matrices)).amin(1) < 1e-4).all())


def projections(part: Part, net: nn.Module, sources: int) -> Iterator[list[Projection]]:
    """Those that are computed, in their order, with the argument itself last; two lists for a
    module for each head.
    """
    tensors = computed(part, net, samples(part, 1))
    maps = affine_maps(torch.cat(tensors[:sources], 1), tensors)
    # Without those to which a bias is added later.
    maps = [w for place, w in enumerate(maps) if not has_matrix_of(w, maps[place + 1 :])]
    maps = without_heads_of(maps)
    narrow = [w for w in maps if len(w) < WIDTH]
    lists = [[w for w in maps if not among(w, shorter_than(w, maps))]]
    each = 3 if len(narrow) % 3 == 0 else 2  # projections of a head; 2 if one is used twice
    if (
        len(narrow) > 3
        and len(narrow) % each == 0
        and not among(torch.cat(narrow), [w for w in maps if len(w) == WIDTH])
    ):
        count = len(narrow) // each
        lists = [[torch.cat(narrow[place::each]) for place in range(each)]]
        starts = range(0, each * count, count)
        lists += [[torch.cat(narrow[start : start + count]) for start in starts]]
    for one in lists:
        found = []
        for w in one:
            weights = w[:, :-1].unflatten(1, (sources, WIDTH))
            places = weights.abs().amax((0, 2)).gt(1e-6).nonzero().flatten().tolist()
            weight = weights.sum(1)
            is_x = same(weight, torch.eye(len(w), WIDTH))
            if len(places) == 1 and (is_x or not same(weight, weight.diag().diag())):
                found.append(Projection(w, places[0], weight, is_x))
        yield sorted(without_sums(net, found), key=lambda projection: projection.is_x)


def has_matrix_of(w: Tensor, others: list[Tensor]) -> bool:
    """Whether one of the others has the same matrix, whatever its bias."""
    return any(same(w[:, :-1], other[:, :-1]) for other in others)


def without_heads_of(maps: list[Tensor]) -> list[Tensor]:
    """The maps without those of one head, if all of them are rows of projections for all heads."""
    wide = [w for w in maps if len(w) == WIDTH]
    is_cut = all(among(w, wide) for w in maps if len(w) < WIDTH)
    return [w for w in maps if len(w) >= WIDTH] if is_cut else maps


def shorter_than(w: Tensor, maps: list[Tensor]) -> list[Tensor]:
    return [other for other in maps if WIDTH <= len(other) < len(w)]


def without_sums(net: nn.Module, found: list[Projection]) -> list[Projection]:
    """Those that are no sum of x and another one, or of x and W_O of another. Those that are W_O
    of another one are marked.

    Of a review of one word the result of attention is the value.
    """
    eye = torch.eye(WIDTH)
    square = [one for one in found if one.weight.shape == (WIDTH, WIDTH) and not one.is_x]
    sums, outputs = set[int](), set[int]()
    for one, other in itertools.permutations(square, 2):
        if is_output(net, one.weight, other.weight):
            outputs.add(id(one))
        less_x = one.weight - eye
        if same(less_x, other.weight) or is_output(net, less_x, other.weight):
            sums.add(id(one))
    kept = [one._replace(is_output=id(one) in outputs) for one in found if id(one) not in sums]
    return kept if sum(not one.is_x for one in kept) >= 3 else found


def is_applied_twice(one: Projection, found: list[Projection]) -> bool:
    """Whether it is one of the projections, applied to its own result."""
    return any(
        not other.is_x
        and other.weight.shape[0] == other.weight.shape[1] == len(one.weight)
        and same(one.weight, other.weight @ other.weight)
        for other in found
    )


def is_of_one_head(one: Projection) -> bool:
    """Whether its numbers for all heads are computed from those for one head."""
    if len(one.matrix) != WIDTH or one.is_x:
        return False
    return int(torch.linalg.matrix_rank(one.weight, rtol=1e-6)) == WIDTH // HEADS


def is_output(net: nn.Module, weight: Tensor, value: Tensor) -> bool:
    """Whether the matrix is the product of a parameter and this one."""
    w_o = torch.linalg.lstsq(value.mT, weight.mT, driver="gelsd").solution.mT
    return is_parameter(net, w_o)


def is_parameter(net: nn.Module, weight: Tensor) -> bool:
    """Whether the rows, or the columns, are those of a parameter."""
    size = weight.shape[1]
    matrices = [p.detach() for p in net.parameters() if p.ndim == 2]
    matrices += [m.mT for m in matrices]
    return any(among(weight, [m]) for m in matrices if m.shape[1] == size)


def is_given_heads(part: Part) -> bool:
    """Whether the class was built with a number of heads."""
    return part.adapter is not None and "heads" in part.adapter.asked


def exchanged(part: Part, three: Iterable[Projection]) -> str:
    """Which of queries, keys and values are computed from another argument."""
    names = [part.name_of(name) for name, _ in part.arguments]
    parts = [
        f"{what} are computed from {names[one.place]}, not from {names[number]}"
        for number, (what, one) in enumerate(zip(NAMES, three, strict=True))
        if one.place != number
    ]
    text = ", and ".join(parts)
    return f"{text.capitalize()}."


def attention_choices(part: Part, net: nn.Module, results: list[Tensor]) -> Iterator[Choice]:
    """All projections as W_q, W_k and W_v; and the mistakes of using one twice, or the word
    itself.
    """
    several, sources = part.kind.startswith("MultiHead"), len(part.arguments) - 2
    has_heads = several or is_given_heads(part)
    for found in projections(part, net, sources):
        twice = {id(one) for one in found if is_applied_twice(one, found)}
        if has_heads:
            others = [one for one in found if not one.is_output or id(one) in twice]
            found = others if sum(not one.is_x for one in others) >= 3 else found
        found = found[:4] + [one for one in found[4:] if one.is_x or sources > 1]
        for three in itertools.product(found, repeat=3):
            scored = three[:2]  # W_q^T W_k may be computed first, and be that of x alone
            products = [one for one in scored if one.is_output and id(one) not in twice]
            if products and not any(one.is_x for one in scored):
                continue
            missing = [
                name for name, one in zip(("W_q", "W_k", "W_v"), three, strict=True) if one.is_x
            ]
            finding, text = RIGHT, ""
            named = [*zip(NAMES, three, strict=True)]
            again = [name for name, one in named if id(one) in twice]
            if again:
                finding = "projected-twice"
                text = f"The {' and '.join(again)} are projected twice by the same Linear."
            elif sources > 1 and [one.place for one in three] != [0, 1, 2]:
                finding, text = "arguments-exchanged", exchanged(part, three)
            elif has_heads and (repeated := [name for name, one in named if is_of_one_head(one)]):
                finding = "one-head-used"
                text = f"The {' and '.join(repeated)} of one head are used for all heads."
            elif missing in (["W_q"], ["W_k"]) and not is_parameter(
                net, three[missing == ["W_q"]].weight
            ):
                finding = GUESS  # W_q^T W_k may be computed first
            elif missing:
                finding, text = "no-projection", f"There is no {missing[0]}."
            elif any(
                same(one.weight, other.weight) for one, other in itertools.combinations(three, 2)
            ):
                finding, text = (
                    "shared-projections",
                    "One Linear is used for several of W_q, W_k, W_v and W_O.",
                )
            q, k, v = (len(one.matrix) for one in three)
            is_of_first = {*map(id, three)} <= {*map(id, found[:3])}
            many = range(1, q + 1) if finding == RIGHT and is_of_first else (1, HEADS)
            if is_given_heads(part) and q == k == v == WIDTH // HEADS and finding == RIGHT:
                text = "The result of one head is used for all heads."
                matrices = [one.matrix for one in three]
                w_o = Fitted(results[0], alone=False)
                yield "one-head-used", text, partial(attention_names, matrices, 1, False, w_o)
            for heads in (HEADS,) if has_heads else many:
                if q == k and q % heads == v % heads == 0 and (heads > 1 or v == WIDTH):
                    output: Call = whole if heads == 1 else Fitted(results[0], alone=not several)
                    for alternate in (
                        (False, True) if 1 < heads < q and finding == RIGHT else (False,)
                    ):
                        is_rare = finding == RIGHT and not several and (heads > 2 or alternate)
                        yield (
                            RARE if is_rare else finding,
                            text,
                            partial(
                                attention_names,
                                [one.matrix for one in three],
                                heads,
                                alternate,
                                output,
                            ),
                        )
