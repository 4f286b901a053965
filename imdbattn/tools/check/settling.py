"""Finds out in which of a sheet's ways a solution is to be called, as which kind, and what the
arguments of its class are.

Each way is tried; the one is taken under which most of the properties hold.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from imdbattn.tools.check import rules
from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.kinds import KINDS, agrees, reference
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError
from imdbattn.tools.check.part import HIDDEN, SIZES, Kind, Own, Part, call, inputs, net_of
from imdbattn.tools.check.sheets import Entry, Way, can_be_called, meant, parameters_of, unknown

# Findings that do not say which mistake it is
GENERAL = (
    "depends-on-padding",
    "depends-on-batch",
    "differs-from-reference",
    "wrong-positions",
    "wrong-wavelengths",
    "wrong-mean",
    "nan-at-padding",
    "argument-not-used",
)
# What a required argument of a class may be, the most frequent first; of a layer, and of a model.
OF_LAYER = ("D", "heads", "4 * D")
OF_MODEL = ("vectors", "16", "vocabulary", "2", "classes")
MOST = 3  # arguments that are tried


def as_kind(name: str, make: Any, entry: Entry, kind: Kind, file: str, own: Own) -> Part:
    """A class or function as a part of this kind, called in the first of the sheet's ways."""
    is_masked = entry.masked and (not entry.is_tried or is_given_a_mask(entry, called(make, entry)))
    adapter = Adapter(entry, kind.signature, entry.ways[0], is_masked)
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


# --- the arguments of a class ---------------------------------------------------------------------

Called = tuple[Part, Tensor]  # a part with what it needs to be called, and its result


def in_a_way(part: Part) -> Called | None:
    """The first way in which the class can be made and called, with the result for two reviews."""
    for way in adapter_of(part).entry.ways:
        one = changed(part, way=way)
        with suppress(Exception):  # of the class, if this is not what its arguments are
            y = call(one, net_of(one), *inputs(one, 3, 2))
            if isinstance(y, Tensor) and y.is_floating_point():
                return one, y
    return None


def with_arguments(part: Part) -> Called | None:
    """As in_a_way; required arguments of the class that the sheet does not know are found."""
    entry = adapter_of(part).entry
    if not entry.free or not isinstance(part.make, type) or not unknown(part.make, entry.make):
        return in_a_way(part)
    guesses = OF_MODEL if part.kind.is_model else OF_LAYER
    for names in (unknown(part.make, entry.make), unknown(part.make, ())):
        if 0 < len(names) <= MOST:
            for values in itertools.product(guesses, repeat=len(names)):
                made_with = dict(zip(names, values, strict=True))
                if found := in_a_way(changed(part, made_with=made_with)):
                    return found
    return None


def in_either_type(part: Part) -> Called | None:
    """As with_arguments, in float64 or else in float32, which stays the default type. A model is
    given vectors of the words if it raises an exception for tokens.
    """
    for takes_vectors in (False, True) if part.kind.is_model else (False,):
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            if found := with_arguments(changed(part, takes_vectors=takes_vectors)):
                return found
    torch.set_default_dtype(torch.float64)
    return None


# --- the way to call it ---------------------------------------------------------------------------


def rank_of(rule: Callable[[Part], object], part: Part, unsaid: tuple[str, ...] = ()) -> int:
    """3 if the rule holds, 2 for a known mistake, 1 if the rule does not apply.

    0 for another result, and -1 if the student's code or the checker raised an exception. unsaid:
    further findings that do not say which mistake it is.
    """
    torch.default_generator.manual_seed(0)
    try:
        rule(part)
    except Mistake as mistake:
        return 0 if mistake.args[0] in (*GENERAL, *unsaid) else 2
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
        candidates.append(one)
    tried = [in_either_type(candidate) for candidate in candidates]
    found = [one[0] if one else other for one, other in zip(tried, candidates, strict=True)]
    candidates = [with_equal_widths(one) for one in found]
    is_callable = any(tried) or any(in_either_type(one) for one in candidates)
    if not is_callable and (user := user_of(part, must_run=not entry.any_name)):
        reason = f"It is called by {user} with other arguments, and is checked there."
        return changed(part, unchecked=reason)
    return best_of(candidates, entry)


def user_of(part: Part, must_run: bool) -> str:
    """The name of another part of the file that has a module of this class; "" if there is none.

    must_run: whether only a part counts that can be called.
    """
    for other in part.others:
        if isinstance(other.make, type):
            with suppress(StudentError, NotChecked, Mistake):
                is_tried = adapter_of(other).entry.is_tried
                if must_run and is_tried and not in_either_type(other):
                    continue
                if any(type(module) is part.make for module in net_of(other).modules()):
                    return other.name
    return ""


def with_equal_widths(part: Part) -> Part:
    """The part with queries, keys and values of the same width, if it raises an exception for
    others, and its class has no arguments for both widths.
    """
    adapter = adapter_of(part)
    letters = {letter for _, one in part.arguments[:-1] for letter in one}
    if "E" not in letters or adapter.entry.sizes:
        return part
    for one in (part, *in_ways(part, adapter.entry.ways)):
        if rank_of(rules.shape, one) >= 0:
            return one
    hidden = SIZES["D"] if "F" not in letters else HIDDEN
    equal = changed(part, way=adapter.entry.ways[-1], widths=dict.fromkeys("DEF", hidden))
    wanted = adapter.entry.make
    asked = {wanted.get(meant(name, wanted) or "") for name in parameters_of(part.make)}
    is_wrong = {"D", "E"} <= asked and rank_of(reference, equal) != 2
    return part if is_wrong else equal


def in_ways(part: Part, ways: list[Way]) -> list[Part]:
    return [changed(part, way=way) for way in ways]


def best_of(candidates: list[Part], entry: Entry) -> Part:
    """The candidate, with the way to call it, that most of the rules hold for, in their order.

    candidates: the same part for each kind that it may be. A rule is tried only for those ways that
    are the best by the rules before it. Known mistakes are looked for last, if the others do not
    decide.
    """
    first = candidates[0]
    function = called(first.make, entry)
    ways = [way for way in entry.ways if not unknown(function, way.arguments)]
    ways = ways or [way for way in entry.ways if can_be_called(function, way)] or entry.ways
    if any("pad" in name for name in parameters_of(function)):
        ways = [way for way in ways if way.is_given_padding] or ways
    ways = [way for way in ways if is_as_others(way, function, first)] or ways
    ways = without_rare(first, ways)
    left = [one for part in candidates for one in in_ways(part, ways)]
    # a mask that may be True on words or on padding is not inverted by mistake
    meanings = {way.is_given_padding for way in ways if way.masks}
    unsaid = ("mask-inverted",) if len(meanings) > 1 else ()
    tried: list[Callable[[Part], object]] = [rules.shape, rules.numbers, rules.padding]
    tried += [rules.batch] if entry.is_compared_in_batches else []
    tried += [agrees, reference] if not first.kind.is_model else []
    ranks = [0]
    for rule in tried:
        if len(left) == 1 or (rule is reference and max(ranks) == 3):
            break
        ranks = []
        for part in left:
            ranks.append(rank_of(rule, part, unsaid))
            if rule is reference and ranks[-1] >= 2:  # the first kind with a known mistake
                break
        left = [one for one, rank in zip(left, ranks, strict=False) if rank == max(ranks)]
    adapter_of(left[0]).settled = True
    return left[0]


def without_rare(part: Part, ways: list[Way]) -> list[Way]:
    """The ways without those that are only for solutions that raise an exception, or return another
    shape, in the others; or these alone.
    """
    rare = [way for way in ways if way.if_raises]
    usual = [way for way in ways if not way.if_raises]
    if rare and usual:
        best, best_rare = (
            max(rank_of(rules.shape, one) for one in in_ways(part, some)) for some in (usual, rare)
        )
        return rare if best_rare > best else usual
    return usual or rare


def is_as_others(way: Way, called: Callable[..., object], part: Part) -> bool:
    """Whether the mask is True on words, or on padding, as in the classes of the file that were
    settled before and have an argument of the same name.
    """
    names = [name for name in parameters_of(called) if "mask" in name]
    for other in part.others:
        if other.adapter is None or not other.adapter.settled or part.kind.is_model:
            continue
        forward = getattr(other.make, "forward", other.make)
        is_shared = any(name in parameters_of(forward) for name in names)
        if is_shared and other.adapter.way.is_given_padding != way.is_given_padding:
            return False
    return True


def is_given_a_mask(entry: Entry, called: Callable[..., object]) -> bool:
    """Whether one of its arguments is a mask, or lengths; also if its arguments are not known."""
    given = parameters_of(called)
    for way in entry.ways:
        if any(meant(name, way.masks) for name in given):
            return True
    return any(unknown(called, way.arguments) for way in entry.ways)


def notes(part: Part) -> Iterator[str]:
    """What was found out about the part, if it could have been otherwise."""
    adapter = adapter_of(part)
    entry = adapter.entry
    if adapter.unchecked:
        return
    if adapter.way.says:
        yield f"Found: {adapter.way.says}."
    if entry.masked and any(way.masks for way in entry.ways) and not adapter.masked:
        yield "It is given no mask and no lengths: padding was not checked."
    if len(entry.kinds) > 1:
        yield f"Checked as {part.kind.name}."
