"""Finds out in which of a sheet's ways a solution is called, as which kind, and in which type.

Each way is tried; the one in which most of the properties hold is used.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum

import torch

import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.kinds import KINDS, agrees
from imdbattn.tools.check.numbers import Differs, NotChecked
from imdbattn.tools.check.part import Part
from imdbattn.tools.check.sheets import parameters_of, unknown
from imdbattn.tools.check.tables import Mistake

Test = Callable[[Part], object]
# Findings that do not say which mistake it is
GENERAL = ("depends-on-padding", "differs-from-reference", "mask-inverted")


class Fit(IntEnum):
    """What a rule says about a part that is called in one of the ways, as one of the kinds."""

    RAISES = 1  # the student's code, or the checker, raises an exception
    WRONG = 2  # the result is another one
    NOT_CHECKED = 3  # the rule does not apply
    KNOWN_MISTAKE = 4
    HOLDS = 5


def settle(part: Part) -> Part:
    """Returns the part, called in the way, and of the kind, that most of the rules hold for, in
    their order. The default type becomes the one in which it can be called.

    A rule is tried only for those ways that are the best by the rules before it. Known mistakes are
    looked for last, if the formula of no kind gives the results.
    """
    left, fit, first = in_all_ways(part), Fit.HOLDS, part.kind.rules()[0].test
    for dtype in (torch.float64, torch.float32):  # it may use float32 whatever the input is
        torch.set_default_dtype(dtype)
        if any(fit_of(first, one) is Fit.HOLDS for one in left):
            break
    last = rules.batch if part.kind.is_model else agrees
    for rule in (first, rules.repeatable, last):
        if len(left) > 1 and fit is Fit.HOLDS:
            fit, left = best_by(rule, left, one_suffices=rule is last)
    if len(left) > 1 and fit is Fit.WRONG and not part.kind.is_model:
        return first_named(left)
    return left[0]


def best_by(rule: Test, parts: Sequence[Part], one_suffices: bool) -> tuple[Fit, list[Part]]:
    """Returns the best fit, and the parts that have it; one of them if one suffices."""
    found: dict[Fit, list[Part]] = defaultdict(list)
    for part in parts:
        fit = fit_of(rule, part)
        found[fit].append(part)
        if one_suffices and fit is Fit.HOLDS:
            break
    best = max(found)
    return best, found[best]


def first_named(parts: Sequence[Part]) -> Part:
    """Returns the first with the results of a known mistake, else one that can be compared."""
    found: dict[Fit, Part] = {}  # the first part with each fit
    seen: list[object] = []
    for part in parts:
        results = part.kind.name, [y.tolist() for y in part.comparison.results]
        if results in seen:
            continue
        seen.append(results)
        fit = fit_of(diagnosed, part)
        if fit in (Fit.KNOWN_MISTAKE, Fit.HOLDS):
            return part
        found.setdefault(fit, part)
    return next(found[fit] for fit in (Fit.WRONG, Fit.NOT_CHECKED, Fit.RAISES) if fit in found)


def in_all_ways(part: Part) -> list[Part]:
    """Returns the part as each of the kinds that it may be, in each way whose arguments it has."""
    entry, given = part.entry, parameters_of(part.called)
    ways = [way for way in entry.ways if not unknown(given, way.arguments)] or entry.ways
    if any("pad" in name for name in given):
        ways = [way for way in ways if way.is_given_padding] or ways
    return [replace(part, kind=KINDS[name], way=way) for name in entry.kinds for way in ways]


def diagnosed(part: Part) -> None:
    """The result is that of a known mistake."""
    raise part.comparison.named() or part.comparison.unnamed()


def fit_of(rule: Test, part: Part) -> Fit:
    torch.default_generator.manual_seed(0)
    try:
        rule(part)
    except Mistake as mistake:
        return Fit.WRONG if mistake.finding in GENERAL else Fit.KNOWN_MISTAKE
    except Differs:
        return Fit.HOLDS
    except NotChecked:
        return Fit.NOT_CHECKED
    except Exception:
        return Fit.RAISES
    return Fit.HOLDS


def has_shape(part: Part) -> bool:
    """Returns whether the first rule, that of the shape, holds or does not apply."""
    return fit_of(part.kind.rules()[0].test, part) in (Fit.HOLDS, Fit.NOT_CHECKED)


def notes(part: Part) -> Iterator[str]:
    """Yields what was found out about the part, if it could have been otherwise."""
    entry = part.entry
    if part.way.says and (part.is_masked or not part.way.masks):
        yield f"Found: {part.way.says}."
    if entry.masked and any(way.masks for way in entry.ways) and not part.is_masked:
        yield "It is given no mask and no lengths: padding was not checked."
    if len(entry.kinds) > 1:
        yield f"Checked as {part.kind.name}."
