"""References of AdditiveScore and BilinearScore: the weights are found among the tensors."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.tools.check.affine import affine_maps, apply, computed, numbers_of, samples
from imdbattn.tools.check.formulas import RIGHT, Call, Choice, Names
from imdbattn.tools.check.numbers import same
from imdbattn.tools.check.part import HIDDEN, WIDTH, Part


def of_one(part: Part, net: nn.Module, key: int = 1) -> list[list[Tensor]]:
    """Affine functions of query and key side by side: of the query alone, of the key alone, and of
    both. key: the place of the argument that is taken as the key.
    """
    tensors = computed(part, net, samples(part, 1))
    found = affine_maps(torch.cat([tensors[0], tensors[key]], 1), tensors)
    size = part.sizes["E"]
    of_query: list[Tensor] = []
    of_key: list[Tensor] = []
    of_both: list[Tensor] = []
    for w in found:
        by_query, by_key = (bool(u.abs().max() > 1e-6) for u in (w[:, :size], w[:, size:-1]))
        if by_query or by_key:
            kind = of_both if by_query and by_key else of_query if by_query else of_key
            kind.append(w)
    return [of_query, of_key, of_both]


def without_v(part: Part, net: nn.Module) -> Iterator[Choice]:
    """The mistakes of a module without v; its W and U are those of equal numbers of units."""
    of_q, of_k, _ = of_one(part, net)
    for w, u in itertools.product(of_q, of_k):
        if len(w) == len(u) == HIDDEN:
            of_key = partial(apply, u[:, part.sizes["E"] :])
            for what, reduce in (("summed", Tensor.sum), ("averaged", Tensor.mean)):
                text = f"There is no v: the numbers are {what}."
                names = {"W": of_query(part, w), "U": of_key}
                yield "v-not-used", text, names | {"w": lambda x, reduce=reduce: reduce(x, -1)}


def of_query(part: Part, w: Tensor) -> Call:
    return partial(apply, w[:, [*range(part.sizes["E"]), -1]])


def additive_choices(part: Part, net: nn.Module, results: list[Tensor]) -> Iterator[Choice]:
    yield from of_key_at(part, net, 1)
    if part.kind == "AdditiveAttention":
        yield from without_v(part, net)
        for (_, _, names), average in itertools.product(of_key_at(part, net, 2), "vk"):
            yield *EXCHANGED[average], partial(scored_by_values, names, average)


SHARED = "One Linear is used for the queries and for the keys."
EXCHANGED = {
    "v": ("arguments-exchanged", "The scores are computed from the values, not from the keys."),
    "k": ("arguments-exchanged", "Keys and values are exchanged."),
}


def scored_by_values(names: Names, average: str, *given: Tensor) -> Names:
    """The names of the formula if W_k is applied to the values.

    average: "v" if the values are averaged, "k" if the keys are.
    """
    q, k, v, m = given
    return {"q": q, "k": v, "v": v if average == "v" else k, "mask": m} | names


def of_key_at(part: Part, net: nn.Module, key: int) -> Iterator[Choice]:
    """The parameters of the formula, with the argument at this place as the key."""
    of_q, of_k, of_both = of_one(part, net, key)
    both = [w for w in of_both if len(w) == HIDDEN]
    both += [w + u for w, u in itertools.product(of_q, of_k) if len(w) == len(u) == HIDDEN]
    name = "v" if part.kind == "AdditiveScore" else "w"
    for w, v, b in itertools.product(
        both, numbers_of(net, HIDDEN), [torch.zeros(1), *numbers_of(net, 1)]
    ):
        size = part.sizes["E"]
        of_key = partial(apply, F.pad(w[:, size:-1], (0, 1)))
        is_shared = same(w[:, :size], w[:, size:-1])
        finding = ("shared-projections", SHARED) if is_shared else (RIGHT, "")
        yield *finding, {"W": of_query(part, w), "U": of_key, name: lambda x, v=v, b=b: x @ v + b}


def bilinear_choices(part: Part, net: nn.Module, results: list[Tensor]) -> Iterator[Choice]:
    size = part.sizes["E"]
    of_q, of_k, _ = of_one(part, net)
    of_k = [w[:, size:] for w in of_k]
    # W itself
    of_k += [F.pad(w.view(size, WIDTH), (0, 1)) for w in numbers_of(net, size * WIDTH)]
    for w, u, b in itertools.product(of_q, of_k, [torch.zeros(1), *numbers_of(net, 1)]):
        if len(w) == len(u):
            yield RIGHT, "", {"W": of_query(part, w), "U": partial(apply, u), "b": b}
