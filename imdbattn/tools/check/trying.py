"""Finds by trial what the arguments of a class are whose names a sheet does not know, and which
classes of a file are models or layers.
"""

import itertools
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.errors import in_line
from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError, normal, same
from imdbattn.tools.check.part import CLASSES, WIDTH, Own, Part, call, inputs, net_of
from imdbattn.tools.check.sheets import Entry, Sheet, parameters_of, unknown

# What a required argument of a class may be, the most frequent first; of a layer, and of a model.
OF_LAYER = ("D", "heads", "4 * D")
OF_MODEL = ("vectors", "16", "vocabulary", "2", "classes")
MOST = 3  # arguments that are tried
LAYERS = ["ResidualLayer", "PlainLayer"]


def find_arguments(part: Part) -> bool:
    """Finds what the required arguments of the class are, if the sheet does not know one of them.

    Returns whether the class can be made and called then; True, too, if all are known.
    """
    adapter = part.adapter
    if adapter is None or not adapter.entry.free or not isinstance(part.make, type):
        return True
    if not unknown(part.make, adapter.entry.make):
        return True
    for made_with in combinations(part.make, adapter.entry, part.kind):
        adapter.made_with = made_with
        if result_of(part) is not None:
            return True
    adapter.made_with = {}
    return False


def combinations(make: Any, entry: Entry, kind: str) -> Iterator[dict[str, str]]:
    """Expressions for the required arguments that the sheet does not know, and then for all."""
    required = unknown(make, ())
    guesses = OF_MODEL if kind == "Model" else OF_LAYER
    for names in (unknown(make, entry.make), required):
        if 0 < len(names) <= MOST:
            for values in itertools.product(guesses, repeat=len(names)):
                yield dict(zip(names, values, strict=True))


def result_of(part: Part) -> Tensor | None:
    """The result for two reviews, in the first way in which the class can be made and called."""
    assert part.adapter is not None
    for way in part.adapter.entry.ways:
        part.adapter.way = way
        try:
            y = call(part, net_of(part), *inputs(part, 3, 2))
        except Exception:  # of the class, if this is not what its arguments are
            continue
        if isinstance(y, Tensor) and y.is_floating_point():
            return y
    return None


def in_either_type(part: Part) -> Tensor | None:
    """As result_of, in float64 or else in float32, which stays the default type; the arguments of
    the class are found. A model is given vectors of the words if it raises an exception for tokens.
    """
    adapter = part.adapter
    for takes_vectors in (False, True) if part.kind == "Model" and adapter else (False,):
        if adapter:
            adapter.takes_vectors = takes_vectors
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            if find_arguments(part) and (y := result_of(part)) is not None:
                return y
    torch.set_default_dtype(torch.float64)
    return None


def model_entry(sheet: Sheet) -> Entry | None:
    """What the sheet says about models under any name."""
    return next((e for e in sheet.entries if e.any_name and e.rules == ["Model"]), None)


def layer_entry(sheet: Sheet) -> Entry | None:
    """What the sheet says about layers of which it is not known whether they are residual."""
    return next((e for e in sheet.entries if e.any_name and e.rules[:2] == LAYERS), None)


def modules_of(own: Own, taken: list[Any], anywhere: bool) -> Iterator[tuple[str, Any]]:
    """The names and classes of the file's modules that are called with two arguments or more.

    taken: classes without these. anywhere: as for sheets.matches.
    """
    for name, thing in own.items():
        foreign = not anywhere and getattr(thing, "__module__", "") != "_checked_file"
        is_module = isinstance(thing, type) and issubclass(thing, nn.Module)
        if foreign or not is_module or any(thing is one for one in taken):
            continue
        if len(parameters_of(thing.forward)) >= 2:
            yield name, thing


def models_of(own: Own, taken: list[Any], entry: Entry, file: str, anywhere: bool) -> Iterator[str]:
    """The names of the file's classes whose results are those of a model, (B, 2), whatever the
    names of their arguments are.

    taken, anywhere: as for modules_of.
    """
    for name, thing in modules_of(own, taken, anywhere):
        y = in_either_type(Part(name, thing, file, own, "Model", Adapter(entry, "Model")))
        if y is not None and y.ndim == 2 and y.shape[1] in (2, CLASSES):
            yield name


def layers_of(own: Own, entry: Entry, file: str, anywhere: bool) -> Iterator[str]:
    """The names of the file's classes whose results are as wide as their input, and in which words
    have an effect on each other.
    """
    for name, thing in modules_of(own, [], anywhere):
        part = Part(name, thing, file, own, entry.rules[0], Adapter(entry, entry.rules[0]))
        y = in_either_type(part)
        x_BTD, mask_BT = inputs(part, 3, 2)
        if y is None or y.shape != x_BTD.shape:
            continue
        x_BTD[:, 0] += normal(WIDTH, seed=3)
        z = call(part, net_of(part), x_BTD, mask_BT)
        if not same(y[0, 1], z[0, 1], 1e-6):
            yield name


def unmatched(parts: list[Part], own: Own, entry: Entry, file: str) -> Iterator[tuple[str, str]]:
    """The names of the file's modules that are no part and that no other class uses, and why they
    are no model.
    """
    taken = [part.make for part in parts]
    classes = [thing for thing in own.values() if isinstance(thing, type)]
    for name, thing in modules_of(own, taken, anywhere=False):
        others = [one for one in classes if one is not thing]
        if any(issubclass(one, thing) or name in names_in(one) for one in others):
            continue
        part = Part(name, thing, file, own, "Model", Adapter(entry, "Model"))
        reason = "its result is not that of a model or a layer"
        for way in entry.ways:
            adapter = part.adapter
            assert adapter is not None
            adapter.way = way
            try:
                call(part, net_of(part), *inputs(part, 3, 2))
            except StudentError as error:
                reason = f"as a model it raises {in_line(error.args[0], None)}"
            except (NotChecked, Mistake) as error:
                reason = str(error.args[-1])
        yield name, reason


def names_in(thing: type) -> set[str]:
    """The names that the methods of a class use."""
    codes = [getattr(one, "__code__", None) for one in vars(thing).values()]
    left = [code for code in codes if code]
    names: set[str] = set()
    while left:
        code = left.pop()
        names.update(code.co_names)
        left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return names
