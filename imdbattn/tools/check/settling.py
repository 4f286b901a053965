"""Finds out in which of a sheet's ways a solution is to be called, as which kind, and what the
arguments of its class are.

Each way is tried; the one is taken under which most of the properties hold.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.kinds import KINDS, agrees, reference
from imdbattn.tools.check.numbers import Mistake, NotChecked
from imdbattn.tools.check.part import Kind, Own, Part, call, inputs, net_of
from imdbattn.tools.check.sheets import Entry, Way, meant, parameters_of, unknown

# Findings that do not say which mistake it is
GENERAL = (
    "depends-on-padding",
    "depends-on-batch",
    "differs-from-reference",
    "wrong-positions",
    "wrong-wavelengths",
    "wrong-mean",
    "nan-at-padding",
    "mask-inverted",
    "no-gradient",
)


def as_kind(name: str, make: Any, entry: Entry, kind: Kind, file: str, own: Own) -> Part:
    """A class or function as a part of this kind, called in the first of the sheet's ways."""
    is_masked = entry.masked and (not entry.is_tried or is_given_a_mask(entry, called(make, entry)))
    adapter = Adapter(entry, kind.given, entry.ways[0], is_masked)
    return Part(name, make, kind, file, own, adapter)


def called(make: Any, entry: Entry) -> Callable[..., Any]:
    """A function, or the method of a class that is called, without self."""
    if not isinstance(make, type):
        return make
    return partial(getattr(make, entry.method or "forward"), None)


def adapter_of(part: Part) -> Adapter:
    """The adapter of a part of a sheet."""
    assert part.adapter is not None
    return part.adapter


def changed(part: Part, **values: Any) -> Part:
    """The part with another adapter, which has these values."""
    other = copy(part)
    other.adapter, other.compared = replace(adapter_of(part), **values), {}
    return other


# --- the way to call it ---------------------------------------------------------------------------


def in_a_way(part: Part) -> Part | None:
    """The part in the first way in which the class can be made and called, in float64 or else in
    float32, which stays the default type.
    """
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        for one in in_ways(part, adapter_of(part).entry.ways):
            with suppress(Exception):  # of the class, if it is called in another way
                y = call(one, net_of(one), *inputs(one, 3, 2))
                if isinstance(y, Tensor) and y.is_floating_point():
                    return one
    torch.set_default_dtype(torch.float64)
    return None


def rank_of(rule: Callable[[Part], object], part: Part) -> int:
    """3 if the rule holds, 2 for a known mistake, 1 if the rule does not apply.

    0 for another result, and -1 if the student's code or the checker raised an exception.
    """
    torch.default_generator.manual_seed(0)
    try:
        rule(part)
    except Mistake as mistake:
        return 0 if mistake.args[0] in GENERAL else 2
    except NotChecked as reason:
        return 3 if str(reason).startswith("Differs") else 1
    except Exception:
        return -1
    return 3


def settle(part: Part) -> Part:
    """The part, called in the way, and of the kind, that fit it best."""
    entry = adapter_of(part).entry
    if not entry.is_tried:  # a decoder, which has one way
        return part
    candidates = []
    for name in entry.kinds:
        one = as_kind(part.name, part.make, entry, KINDS[name], part.file, part.own)
        one.others = part.others
        candidates.append(in_a_way(one) or one)
    return best_of(candidates, entry)


def in_ways(part: Part, ways: list[Way]) -> list[Part]:
    return [changed(part, way=way) for way in ways]


def best_of(candidates: list[Part], entry: Entry) -> Part:
    """The candidate, with the way to call it, that most of the rules hold for, in their order.

    candidates: the same part for each kind that it may be. A rule is tried only for those ways that
    are the best by the rules before it. Known mistakes are looked for last, if the others do not
    decide.
    """
    first = candidates[0]
    given = parameters_of(called(first.make, entry))
    ways = [way for way in entry.ways if not unknown(given, way.arguments)] or entry.ways
    if any("pad" in name for name in given):
        ways = [way for way in ways if way.is_given_padding] or ways
    left = [one for part in candidates for one in in_ways(part, ways)]
    tried: list[Callable[[Part], object]] = [rules.shape]
    tried += [rules.batch] if first.kind.is_model else [agrees, reference]
    for rule in tried:
        ranks = [rank_of(rule, part) for part in left] if len(left) > 1 else [0]
        left = [one for one, rank in zip(left, ranks, strict=True) if rank == max(ranks)]
        if rule is agrees and max(ranks) == 3:
            break
    return left[0]


def is_given_a_mask(entry: Entry, called: Callable[..., object]) -> bool:
    """Whether one of its arguments is a mask, or lengths; also if its arguments are not known."""
    given = parameters_of(called)
    for way in entry.ways:
        if any(meant(name, way.masks) for name in given):
            return True
    return any(unknown(given, way.arguments) for way in entry.ways)


def notes(part: Part) -> Iterator[str]:
    """What was found out about the part, if it could have been otherwise."""
    adapter = adapter_of(part)
    entry = adapter.entry
    if adapter.way.says:
        yield f"Found: {adapter.way.says}."
    if entry.masked and any(way.masks for way in entry.ways) and not adapter.masked:
        yield "It is given no mask and no lengths: padding was not checked."
    if len(entry.kinds) > 1:
        yield f"Checked as {part.kind.name}."
