"""Finds out in which of a sheet's ways a solution is called, as which kind, and in which type.

Each way is tried; the one is taken under which most of the properties hold.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.kinds import KINDS, agrees
from imdbattn.tools.check.numbers import Mistake, NotChecked
from imdbattn.tools.check.part import Part
from imdbattn.tools.check.sheets import parameters_of, unknown

# Findings that do not say which mistake it is
GENERAL = ("depends-on-padding", "differs-from-reference", "mask-inverted")


def settle(part: Part) -> Part:
    """Returns the part, called in the way, and of the kind, that most of the rules hold for, in
    their order. The default type becomes the one in which it can be called.

    A rule is tried only for those ways that are the best by the rules before it. Known mistakes are
    looked for last, if the formula of no kind gives the results.
    """
    left, rank, first = in_all_ways(part), 3, part.kind.rules()[0].test
    for dtype in (torch.float64, torch.float32):  # it may use float32 whatever the input is
        torch.set_default_dtype(dtype)
        if any(rank_of(first, one) == 3 for one in left):
            break
    last = rules.batch if part.kind.is_model else agrees
    for rule in (first, rules.repeatable, last):
        if len(left) > 1 and rank == 3:
            ranks = list[int]()
            while len(ranks) < len(left) and not (rule is last and 3 in ranks):  # one suffices
                ranks.append(rank_of(rule, left[len(ranks)]))
            rank = max(ranks)
            left = [one for one, its_rank in zip(left, ranks, strict=False) if its_rank == rank]
    is_wrong = len(left) > 1 and rank == 0 and not part.kind.is_model
    return first_named(left) if is_wrong else left[0]


def first_named(parts: list[Part]) -> Part:
    """Returns the first with the results of a known mistake, else one that can be compared."""
    ranks: list[int] = []
    seen: list[object] = []
    for one in parts:
        results = one.kind.name, [y.tolist() for y in one.comparison.results]
        ranks.append(-1 if results in seen else rank_of(diagnosed, one))
        seen.append(results)
        if ranks[-1] == 2:
            break
    return parts[ranks.index(min(ranks, key=(2, 0, 1, -1).index))]


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


def has_shape(part: Part) -> bool:
    """Returns whether the first rule, that of the shape, holds or does not apply."""
    return rank_of(part.kind.rules()[0].test, part) in (3, 1)


def notes(part: Part) -> Iterator[str]:
    """Yields what was found out about the part, if it could have been otherwise."""
    entry = part.entry
    if part.way.says and (part.is_masked or not part.way.masks):
        yield f"Found: {part.way.says}."
    if entry.masked and any(way.masks for way in entry.ways) and not part.is_masked:
        yield "It is given no mask and no lengths: padding was not checked."
    if len(entry.kinds) > 1:
        yield f"Checked as {part.kind.name}."
