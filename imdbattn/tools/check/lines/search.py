"""Looks for a change of one line with which all checks of a wrong part hold.

A change is tried by running the changed functions and classes of the file, in its own process, as
the checks run the file itself.
"""

import ast
import contextlib
import copy
import io
import signal
import time
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import imdbattn.tools.check.source as source
from imdbattn.tools.check.decoder import Decoding
from imdbattn.tools.check.lines.edits import edits_of
from imdbattn.tools.check.numbers import NotChecked, same
from imdbattn.tools.check.part import (
    Own,
    Part,
    call,
    cut,
    inputs,
    net_of,
    with_other_padding,
)
from imdbattn.tools.check.references import agrees, reference
from imdbattn.tools.check.running import Rule, attempt

ONE = 0.25  # seconds of processor time for one call: a changed loop may be endless
LENGTHS = (5, 5, 3)  # of reviews, other numbers than the widths of the parts
SHORT = LENGTHS[-1]
# Rules that may fail although the results for a few reviews are right
WITHOUT_RESULTS = (
    *("repeatable", "input-unchanged", "registered", "gradients", "slopes", "finite", "layers"),
    *("layers-used", "context-used", "prediction", "state"),
)
# A changed file may use these only: no change should write a file or start a program.
MODULES = {"torch", "math", "numpy", "typing", "dataclasses", "copy", "itertools", "functools"}
FORBIDDEN = {"open", "exec", "eval", "compile", "input", "__import__", "getattr", "setattr"}
FORBIDDEN |= {"save", "savez", "savez_compressed", "savetxt", "tofile", "memmap", "load", "hub"}


class Line(NamedTuple):
    """A line of the file, and what it may have been meant to be."""

    where: str  # such as "Line 3 of cell 2"
    now: str
    instead: str


class Definition(NamedTuple):
    """A function or class of the file. cell: " of cell 2" in a notebook."""

    node: ast.stmt
    cell: str


class TooLong(BaseException):
    """A call of changed code does not end."""


class Results(NamedTuple):
    """The shapes of a part's parameters, and text by which equal results are known."""

    parameters: str
    text: str


class Wrong(NamedTuple):
    """A wrong part, its rules, those that do not hold, and the default type of its check."""

    part: Part
    rules: list[Rule]
    failed: list[str]
    dtype: torch.dtype


def find(wrong: Wrong, own: Own, seconds: float) -> Line | None:
    """Returns the first change with which all rules hold; None if none is found.

    own: the names of the file, in which other wrong parts are replaced by right ones. seconds: of
    processor time, for the whole search.
    """
    part, rules, failed, dtype = wrong
    end = time.process_time() + seconds
    torch.set_default_dtype(dtype)
    definitions = definitions_of(part.file)
    name = getattr(part.make, "__name__", "")
    for other in [one for one in definitions if is_one_of(own.get(one), part.others)]:
        del definitions[other]
    used = used_by(name, definitions, own) if name in definitions else []
    if not used:
        return None
    uses = {one: used_by(one, definitions, own) for one in definitions if one in used}
    edits = [(edit, one) for one in used for edit in edits_of(definitions[one].node)]
    first = next(rule for rule in rules if rule.name in failed)
    is_compared = first.name not in WITHOUT_RESULTS
    # unchanged, but with right parts in the place of others
    code = [definitions[user].node for user in uses]
    unchanged = with_definitions(part, name, code, own)
    before = results_of(unchanged or part) if is_compared else Results("", "")
    known = {before.text, ""}
    least = parameter_count(part)
    for edit, one in sorted(edits, key=lambda pair: pair[0].rank):
        if time.process_time() > end:
            return None
        with edit.applied():
            code = [definitions[user].node for user, names in uses.items() if one in names]
            changed = with_definitions(part, name, code, own)
            if changed is None:
                continue
            if is_compared:
                results = results_of(changed)
                if results.text in known or results.parameters != before.parameters:
                    continue
                known.add(results.text)
            elif parameter_count(changed) < least:
                continue
            if holds(first, changed) and all_hold(changed, rules, failed):
                break
    else:
        return None
    return Line(f"Line {edit.statement.lineno}{definitions[one].cell}", *edit.texts())


def is_one_of(thing: object, parts: list[Part]) -> bool:
    return any(thing is part.make for part in parts)


# --- the code -------------------------------------------------------------------------------------


def definitions_of(file: str) -> dict[str, Definition]:
    """The functions and classes of the file, by name."""
    found: dict[str, Definition] = {}
    for name, tree in source.read(file):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = Definition(node, name[len(file) :])
    return found


def used_by(name: str, definitions: Mapping[str, Definition], own: Own) -> list[str]:
    """The name, and those of the file's functions and classes that it uses, also indirectly, except
    for those that are replaced by right ones. None of them if they use a module or a function that
    may do other things than to compute.
    """
    used: list[str] = []
    waiting = [name]
    while waiting:
        one = waiting.pop(0)
        is_replaced = getattr(own.get(one), "__module__", "") != "_checked_file"
        if one in used or one not in definitions or (used and is_replaced):
            continue
        used.append(one)
        for node in ast.walk(definitions[one].node):
            named = getattr(node, "id", getattr(node, "attr", ""))
            if isinstance(node, ast.Import | ast.ImportFrom) or named in FORBIDDEN:
                return []
            if isinstance(node, ast.Name):
                if not is_harmless(own.get(node.id)):
                    return []
                waiting.append(node.id)
    return used


def is_harmless(thing: object) -> bool:
    """Whether it is no module but those that compute."""
    return not isinstance(thing, ModuleType) or thing.__name__.partition(".")[0] in MODULES


def with_definitions(part: Part, name: str, code: list[ast.stmt], own: Own) -> Part | None:
    """The part of the changed file; None if its definitions raise an exception."""
    scope = dict(own)
    try:
        with limited():
            exec(compile(ast.Module(code, []), part.file, "exec"), scope)
    except (Exception, SystemExit, TooLong):
        return None
    changed = copy.copy(part)
    changed.make, changed.own = scope[name], scope
    if part.adapter:
        changed.adapter = part.adapter.for_other_code()
    return changed


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises TooLong in what takes too long; what is printed is lost."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, ONE)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- its results ----------------------------------------------------------------------------------


def results_of(part: Part) -> Results:
    """The results for a few reviews; no text if there are none, or if they depend on padding."""
    torch.default_generator.manual_seed(0)
    parameters = ""
    try:
        with limited(), torch.no_grad():
            is_decoder, given = part.kind in ("Decoder", "Seq2Seq"), list[Tensor]()
            if is_decoder:
                decoding = Decoding(part)
                net, y = decoding.net, decoding.once()
            else:
                net, given = net_of(part), inputs(part, *LENGTHS)
                y = call(part, net, *given)
            if isinstance(net, nn.Module):
                parameters = " ".join(sorted(str(tuple(p.shape)) for p in net.parameters()))
            if not is_decoder and depends_on_padding(part, net, given, y):
                return Results(parameters, "")
            sums = [y.sum(), y.square().sum(), y.flatten()[0], y.flatten()[-1]]
    except (Exception, TooLong):
        return Results(parameters, "")
    return Results(parameters, f"{tuple(y.shape)} " + " ".join(f"{float(x):.6g}" for x in sums))


def parameter_count(part: Part) -> int:
    """The number of parameters of the module; 0 if it cannot be built."""
    try:
        with limited():
            net = Decoding(part).net if part.kind in ("Decoder", "Seq2Seq") else net_of(part)
            is_module = isinstance(net, nn.Module)
            return sum(p.numel() for p in net.parameters()) if is_module else 0
    except (Exception, TooLong):
        return 0


def depends_on_padding(part: Part, net: Any, given: list[Tensor], y: Tensor) -> bool:
    """Whether other padding after the last review changes the results of its words."""
    if part.lengths(*LENGTHS) != LENGTHS:
        return False
    moved = with_other_padding(part, given, inputs(part, *LENGTHS, seed=1), SHORT)
    if all(x is z for x, z in zip(given, moved, strict=True)):
        return False
    result = part.arguments[-1][1]
    other = call(part, net, *moved)
    return not same(cut(y[-1:], result, SHORT), cut(other[-1:], result, SHORT))


def holds(rule: Rule, part: Part) -> bool:
    """Whether the rule holds; for a reference, without looking for known mistakes."""
    test = agrees if rule.test is reference else rule.test
    torch.default_generator.manual_seed(0)
    try:
        with limited():
            test(part)
    except NotChecked:
        return True
    except (Exception, TooLong):
        return False
    return True


def all_hold(part: Part, rules: list[Rule], failed: list[str]) -> bool:
    """Whether all rules hold, also those that did not before."""
    for rule in rules:
        try:
            held, finding, *_ = attempt(rule, part, set())
        except TooLong:
            return False
        if held is False or finding in ("blocked", "not-checked", "not-compared"):
            return False
        if rule.name in failed and held is not True:
            return False
    return True
