"""Finds out in which of a sheet's ways a solution is to be called, and as which part."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

import imdbattn.tools.check.decoder as decoder
import imdbattn.tools.check.references as references
import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError
from imdbattn.tools.check.part import HIDDEN, SIZES, Part, net_of
from imdbattn.tools.check.sheets import Entry, Way, agrees, meant, parameters_of, unknown
from imdbattn.tools.check.trying import in_either_type

# Findings that do not say which mistake it is
GENERAL = (
    "depends-on-padding",
    "depends-on-batch",
    "differs-from-reference",
    "wrong-positions",
    "wrong-wavelengths",
    "wrong-mean",
    "nan-at-padding",
)


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


def settle(part: Part) -> None:
    """Finds out as which kind, and in which way, the part is called."""
    adapter = part.adapter
    assert adapter is not None
    entry = adapter.entry
    called = part.make
    if isinstance(part.make, type):
        called = partial(getattr(part.make, entry.method or "forward"), None)
    candidates = []
    for kind in entry.rules:
        own = Adapter(entry, kind)
        own.masked = entry.masked and is_given_a_mask(entry, called)
        own.computed = adapter.computed  # the same for all kinds
        candidate = Part(part.name, part.make, part.file, part.own, kind, own)
        candidate.others = part.others
        candidates.append(candidate)
    if part.kind in ("Decoder", "Seq2Seq"):
        return
    made = [in_either_type(candidate) is not None for candidate in candidates]
    if part.kind == "scaled_dot_product_attention" and not entry.sizes:
        allow_equal_widths(candidates)
    if part.kind == "AdditiveAttention":
        try_equal_widths(candidates[0])
    is_callable = any(made) or any(in_either_type(one) is not None for one in candidates)
    if not is_callable and (user := user_of(part, must_run=not entry.any_name)):
        adapter.unchecked = f"It is called by {user} with other arguments, and is checked there."
        return
    tried: list[Callable[[Part], object]] = [rules.shape, rules.numbers, rules.padding]
    if part.kind in ("Model", "PositionalEncoding"):
        tried.append(rules.batch)
    if part.kind != "Model":
        tried += [references.agrees, references.reference]
    best = best_of(candidates, entry, called, tried)
    vars(part).update(vars(best))


def user_of(part: Part, must_run: bool) -> str:
    """The name of another part of the file that has a module of this class; "" if there is none.

    must_run: whether only a part counts that can be called.
    """
    for other in part.others:
        if isinstance(other.make, type):
            with suppress(StudentError, NotChecked, Mistake):
                if not may_run(other) and must_run:
                    continue
                if any(type(module) is part.make for module in net_of(other).modules()):
                    return other.name
    return ""


def may_run(part: Part) -> bool:
    """Whether the part can be called; a decoder, too, whose result may be wrong."""
    if part.kind in ("Decoder", "Seq2Seq"):
        return rank_of(decoder.logits_shape, part) >= 0
    return in_either_type(part) is not None


def allow_equal_widths(candidates: list[Part]) -> None:
    """Values are as wide as keys, if the function raises an exception for others in every way."""
    for part in candidates:
        assert part.adapter is not None
        for way in part.adapter.entry.ways:
            part.adapter.way = way
            if rank_of(rules.shape, part) >= 0:
                return
    for part in candidates:
        assert part.adapter is not None
        part.adapter.widths = {"E": SIZES["D"]}


def try_equal_widths(part: Part) -> None:
    """Queries, keys, values and hidden units have the same width, if the class raises an exception
    for others, and has no arguments for the widths of queries and keys or a known mistake.
    """
    assert part.adapter is not None
    if rank_of(rules.shape, part) >= 0:
        return
    part.adapter.widths = dict.fromkeys("DEF", HIDDEN)
    if rank_of(rules.shape, part) < 3:
        part.adapter.widths = {}
        return
    wanted = part.adapter.entry.make
    asked = {wanted.get(meant(name, wanted) or "") for name in parameters_of(part.make)}
    if {"D", "E"} <= asked and rank_of(references.reference, part) != 2:
        part.adapter.widths = {}


def notes(part: Part) -> Iterator[str]:
    """What was found out about the part, if it could have been otherwise."""
    assert part.adapter is not None
    entry = part.adapter.entry
    if part.adapter.unchecked:
        return
    if part.adapter.way.says:
        yield f"Found: {part.adapter.way.says}."
    needs_mask = any(
        "mask" in v or "lengths" in v for w in entry.ways for v in w.arguments.values()
    )
    if entry.masked and needs_mask and not part.adapter.masked:
        yield "It is given no mask and no lengths: padding was not checked."
    if len(entry.rules) > 1:
        yield f"Checked as {part.kind}."


def best_of(
    candidates: list[Part],
    entry: Entry,
    called: Callable[..., object],
    rules: list[Callable[[Part], object]],
) -> Part:
    """The candidate, with the way to call it, that most of the rules hold for, in their order.

    candidates: the same part for each kind that it may be. A rule is tried only for those ways that
    are the best by the rules before it. The last rule looks for known mistakes, which takes long
    for modules: it is tried only if the others do not decide, and with one way for each kind.
    """
    text = said(called, candidates[0].file, candidates[0].make)
    allowed = [way for way in entry.ways if is_allowed(way, text)] or entry.ways
    allowed = sorted(allowed, key=lambda way: not way.if_said)  # what the solution says, first
    ways = [way for way in allowed if agrees(called, way)]
    ways = ways or [way for way in allowed if may_be_called(called, way)] or allowed
    if is_for_padding(called):
        ways = [way for way in ways if is_given_padding(way)] or ways
    is_model = candidates[0].kind == "Model"  # which may be given another mask than its layers
    if not is_model:
        ways = [way for way in ways if is_as_others(way, called, candidates[0])] or ways
    ways = without_rare(candidates[0], ways, rules[0])
    left = [(part, way) for part in candidates for way in ways]
    # a mask that may be True on words or on padding is not inverted by mistake
    meanings = {is_given_padding(way) for way in ways if is_given_mask(way)}
    unsaid = ("mask-inverted",) if len(meanings) > 1 else ()
    ranks = [0]
    for rule in rules:
        if rule is rules[-1]:
            if max(ranks) == 3:
                break
            if entry.is_module and len(entry.ways) > 2:
                left = list({id(part): (part, way) for part, way in reversed(left)}.values())[::-1]
        if len(left) == 1:
            break
        ranks = []
        for part, way in left:
            adapter_of(part).way = way
            ranks.append(rank_of(rule, part, unsaid))
            if rule is rules[-1] and ranks[-1] >= 2:  # the first kind with a known mistake
                break
        best = [one for one, rank in zip(left, ranks, strict=False) if rank == max(ranks)]
        if is_model and max(ranks) < 3:
            best = [one for one in left if is_as_others(one[1], called, one[0])] or best
        left = best
    part, way = left[0]
    adapter = adapter_of(part)
    adapter.way = way
    adapter.settled = True
    return part


def without_rare(part: Part, ways: list[Way], shape: Callable[[Part], object]) -> list[Way]:
    """The ways without those that are only for solutions that raise an exception, or return another
    shape, in the others; or these alone.
    """
    rare = [way for way in ways if way.if_raises]
    usual = [way for way in ways if not way.if_raises]
    if rare and usual:
        best = {True: -1, False: -1}  # whether they are rare -> the highest rank
        for way in (*usual, *rare):
            adapter_of(part).way = way
            rank = rank_of(shape, part)
            if rank == 3:
                return rare if way.if_raises else usual
            best[bool(way.if_raises)] = max(best[bool(way.if_raises)], rank)
        if best[False] < 0 <= best[True]:
            return rare
    return usual or rare


def adapter_of(part: Part) -> Adapter:
    """The adapter of a part of a sheet."""
    assert part.adapter is not None
    return part.adapter


def said(called: object, file: str, made: object = None) -> str:
    """The names of the arguments, the docstrings and the lines of a function.

    made: the class of the method.
    """
    called = getattr(called, "func", called)
    docstrings = [getattr(thing, "__doc__", None) or "" for thing in (called, made)]
    texts = [*parameters_of(called), *docstrings, *comments(made, file)]
    code = getattr(called, "__code__", None)
    if code and Path(file).suffix == ".py":
        last = max(line for *_, line in code.co_lines() if line)
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        texts += lines[code.co_firstlineno - 1 : last]
    return "\n".join(re.sub(r"\w+ ?= ?True", "", text) for text in texts)


def comments(made: object, file: str) -> list[str]:
    """The comments in a class, or before it."""
    if not isinstance(made, type) or Path(file).suffix != ".py":
        return []
    try:
        lines, first = inspect.getsourcelines(made)
    except (OSError, TypeError):
        return []
    above = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[: first - 1]
    found = [line for line in lines if line.lstrip().startswith("#")]
    for line in reversed(above[2:]):
        if not line.startswith("#"):
            break
        found.append(line)
    return found


def is_allowed(way: Way, text: str) -> bool:
    """Whether the text of the solution allows this way to call it."""
    if way.unless_said and re.search(way.unless_said, text, re.IGNORECASE):
        return False
    return not way.if_said or bool(re.search(way.if_said, text, re.IGNORECASE))


def may_be_called(called: Callable[..., object], way: Way) -> bool:
    """Whether the function can be called with these arguments in their order."""
    return len(parameters_of(called)) >= len(way.arguments) >= len(unknown(called, ()))


def is_for_padding(called: Callable[..., object]) -> bool:
    """Whether an argument is a mask that is True on padding, by its name."""
    return any(re.search("pad", name) for name in parameters_of(called))


def is_given_padding(way: Way) -> bool:
    """Whether this way gives a mask that is True, or 1, on padding."""
    return any("~mask" in value and "torch.zeros" not in value for value in way.arguments.values())


def is_given_mask(way: Way) -> bool:
    """Whether this way gives a mask."""
    return any("mask" in value for value in way.arguments.values())


def is_as_others(way: Way, called: Callable[..., object], part: Part) -> bool:
    """Whether the mask is True on words, or on padding, as in the classes of the file that were
    settled before and have an argument of the same name.
    """
    names = [name for name in parameters_of(called) if "mask" in name]
    for other in part.others:
        if other.adapter is None or not other.adapter.settled:
            continue
        forward = getattr(other.make, "forward", other.make)
        is_shared = any(name in parameters_of(forward) for name in names)
        if is_shared and is_given_padding(other.adapter.way) != is_given_padding(way):
            return False
    return True


def is_given_a_mask(entry: Entry, called: Callable[..., object]) -> bool:
    """Whether one of its arguments is a mask, or lengths; also if its arguments are not known."""
    given = parameters_of(called)
    for way in entry.ways:
        if any(meant(name, way.masks) for name in given):
            return True
    return any(not agrees(called, way) for way in entry.ways)
