"""Sheets of exercises: which classes and functions they ask for, how these are made and called, and
with which part they are compared. A sheet is a YAML file; those of the package are in sheets/.

Expressions of a sheet are Python, and run like the solution that is checked.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

try:  # ten times as fast
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader
import yaml

from imdbattn.errors import UserError
from imdbattn.tools.check.tables import SIGNATURES

FOLDER = Path(__file__).parent / "sheets"
OWN = sorted(file.stem for file in FOLDER.glob("*.yaml"))
KEYS = {
    *("names", "kind", "signature", "make", "calls", "method", "sizes", "needs"),
    *("unless", "masked", "change", "stub", "any_name", "also", "optional", "without_words"),
    *("attributes", "free", "other_pooling"),
}

NOTE_OR_WRONG = ("note", "wrong")


@dataclass
class Way:
    """One way to call a part: patterns of the arguments' names, such as "mask|masks", and their
    expressions.
    """

    arguments: dict[str, str]
    says: str = ""  # what is noted if this is the way of the solution
    result: str = "y"  # the part's result, from that of the call
    if_raises: str = ""  # "true": only if the solution raises exceptions in all other ways

    @property
    def masks(self) -> list[str]:
        """The patterns of the arguments that are a mask or lengths."""
        return [k for k, v in self.arguments.items() if "mask" in v or "lengths" in v]

    @property
    def is_given_padding(self) -> bool:
        """Whether it is given a mask that is True, or 1, on padding."""
        values = self.arguments.values()
        return any("~mask" in value and "torch.zeros" not in value for value in values)


def meant(name: str, wanted: Iterable[str]) -> str | None:
    """The first pattern that the name of an argument matches; None if there is none."""
    return next((key for key in wanted if re.fullmatch(key, name)), None)


@dataclass
class Entry:
    """What a sheet asks for. Several kinds: the first one that the solution agrees with."""

    name: str
    names: list[str]  # patterns of the names that it may have
    kinds: list[str]
    signature: str
    ways: list[Way]
    make: dict[str, str] = field(default_factory=dict)
    method: str = ""  # which is called instead of forward
    sizes: dict[str, str] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)  # patterns; one argument must match
    unless: list[str] = field(default_factory=list)  # patterns; no argument may match
    free: bool = False  # a class that has other arguments is not checked, and not wrong
    attributes: str = ""  # a pattern of the names that __init__ uses, side by side
    masked: bool = True
    any_name: bool = False  # the name does not show that the sheet is meant
    also: list[str] = field(default_factory=list)  # further rules, of parts.EXTRA
    optional: bool = False  # it is not listed as absent
    without_words: str = "note"  # nan for a review without words: note or wrong
    other_pooling: str = "note"  # the largest of the words instead of their mean: note or wrong
    change: str = ""
    stub: str = ""

    def fits(self, name: str, thing: object) -> bool:
        """Whether the class or function may be this one, by its name and its arguments."""
        if not any(re.fullmatch(pattern, name) for pattern in self.names):
            return False
        if self.method and not hasattr(thing, self.method):
            return False
        if not self.method and isinstance(thing, type) != bool(self.make or self.is_module):
            return False
        if self.any_name and isinstance(thing, type) and not hasattr(thing, "forward"):
            return False
        if self.attributes:
            start = getattr(getattr(thing, "__init__", None), "__code__", None)
            used = " ".join(start.co_names) if start else ""
            if not re.fullmatch(self.attributes, used):
                return False
        given = parameters_of(thing)
        if self.needs and not any(meant(name, self.needs) for name in given):
            return False
        if any(meant(name, self.unless) for name in given):
            return False
        if self.any_name and self.free and self.needs_more_than_it_is_given(thing):
            return False
        asked = [self.make.get(meant(name, self.make) or "") for name in given]
        is_unsure = self.any_name and self.free and (self.needs or "settings" in asked)
        return not is_unsure or self.can_be_called(thing)

    def needs_more_than_it_is_given(self, thing: Any) -> bool:
        """Whether the class is called with more arguments than in each of the ways."""
        forward = getattr(thing, "forward", None)
        count = len(unknown(forward, ())) if forward else 0
        return count > max(len(way.arguments) for way in self.ways)

    def can_be_called(self, thing: Any) -> bool:
        """Whether the class is called with a mask or lengths, and with as many arguments."""
        called = parameters_of(thing.forward) if hasattr(thing, "forward") else {}
        for way in self.ways:
            is_masked = any(meant(name, way.masks) for name in called)
            if is_masked and len(called) >= len(way.arguments):
                return True
        return False

    @property
    def stub_names(self) -> list[str]:
        """The classes and functions that the stub defines."""
        return re.findall(r"(?m)^(?:class|def) (\w+)", self.stub)

    @property
    def is_tried(self) -> bool:
        """Whether there may be several ways to call it; a decoder has one."""
        return not {"Decoder", "Seq2Seq"} & {*self.kinds}

    @property
    def is_compared_in_batches(self) -> bool:
        """Whether reviews alone and in a batch tell its ways apart."""
        return bool({"Model", "PositionalEncoding"} & {*self.kinds})

    @property
    def is_module(self) -> bool:
        return "(" in SIGNATURES[self.kinds[0]].partition(":")[0] or bool(self.make)

    def agreement(self, thing: Any) -> int:
        """The number of the arguments of the class or function whose names are the sheet's."""
        known = [*self.make, *(key for way in self.ways for key in way.arguments)]
        called = getattr(thing, self.method or "forward", None) if isinstance(thing, type) else None
        given = {*parameters_of(thing), *(parameters_of(called) if called else ())}
        return sum(meant(name, known) is not None for name in given)


@dataclass
class Sheet:
    name: str
    title: str
    entries: list[Entry]


Match = tuple[Entry, str, Any]  # the name and the class or function of a file


def parameters_of(thing: Any) -> dict[str, inspect.Parameter]:
    """The named parameters of a function, method or class, without self."""
    try:
        found = dict(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return {}
    found.pop("self", None)
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: one for name, one in found.items() if one.kind not in kinds}


def load(name: str) -> Sheet:
    """A sheet of the package by its name, or that of a YAML file, with the parts of the sheet that
    its key `with` names. Raises UserError.
    """
    return own_sheet(name) if name in OWN else read(name, Path(name))


@cache
def own_sheet(name: str) -> Sheet:
    return read(name, FOLDER / f"{name}.yaml")


def read(name: str, file: Path) -> Sheet:
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"there is no sheet {name!r}: {', '.join(OWN)}, or a YAML file")
    page = yaml.load(file.read_text(encoding="utf-8"), SafeLoader)
    if not isinstance(page, dict) or not isinstance(page.get("parts"), dict):
        raise UserError(f"{name} is no sheet: it has no parts")
    entries = [entry_of(name, part, keys) for part, keys in page["parts"].items()]
    if page.get("with"):
        entries += [replace(entry, optional=True) for entry in load(page["with"]).entries]
    return Sheet(file.stem, str(page.get("title", file.stem)), entries)


def entry_of(sheet: str, part: str, keys: Any) -> Entry:
    """Raises UserError for what is missing or not known, by name."""
    where = f"{sheet}: {part}"
    if not isinstance(keys, dict) or not {"kind", "calls"} <= keys.keys():
        raise UserError(f"{where} needs kind and calls")
    if unknown := sorted(keys.keys() - KEYS):
        raise UserError(f"{where} has the key {unknown[0]!r}, which is none of {sorted(KEYS)}")
    for key in ("names", "needs", "unless", "also"):  # one pattern, or a list of them
        if isinstance(keys.get(key), str):
            keys = keys | {key: [keys[key]]}
    for key in ("make", "sizes"):
        if not isinstance(keys.get(key) or {}, dict):
            raise UserError(f"{where}: {key} is names with what is given for them")
    kinds = keys["kind"] if isinstance(keys["kind"], list) else [keys["kind"]]
    if wrong := [kind for kind in kinds if kind not in SIGNATURES]:
        raise UserError(f"{where}: there is no kind {wrong[0]!r}; {', '.join(SIGNATURES)}")
    calls = keys["calls"] if isinstance(keys["calls"], list) else [keys["calls"]]
    ways = []
    for call in calls:
        if not isinstance(call, dict):
            raise UserError(f"{where}: calls are names of arguments with what is given for them")
        known = ("says", "result", "if_raises")
        arguments = {k: str(v) for k, v in call.items() if k not in known}
        ways.append(Way(arguments, **{k: str(v) for k, v in call.items() if k in known}))
    for key in ("without_words", "other_pooling"):
        if keys.get(key, "note") not in NOTE_OR_WRONG:
            raise UserError(f"{where}: {key} is one of {', '.join(NOTE_OR_WRONG)}")
    patterns = [*keys.get("names", ()), *keys.get("needs", ()), *keys.get("unless", ())]
    patterns += [*(keys.get("make") or ()), keys.get("attributes", "")]
    for way in ways:
        patterns += [*way.arguments]
    for pattern in patterns:
        require_pattern(where, str(pattern))
    others = {k: v for k, v in keys.items() if k not in ("kind", "calls", "names", "signature")}
    for key in ("make", "sizes"):
        others[key] = {k: str(v) for k, v in (others.get(key) or {}).items()}
    signature = keys.get("signature", part)
    return Entry(part, keys.get("names", [re.escape(part)]), kinds, signature, ways, **others)


def require_pattern(where: str, pattern: str) -> None:
    """Raises UserError unless it is a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UserError(f"{where}: {pattern!r} is no regular expression: {error}") from error


def stub_of(sheet: Sheet) -> str:
    """A file with the sheet's empty functions."""
    parts = "\n\n\n".join(entry.stub.strip() for entry in sheet.entries if entry.stub)
    return f'"""{sheet.title}: fill in what raises NotImplementedError."""\n\n{parts}\n'


def choose(
    own: Mapping[str, Any], plain: Mapping[str, Any], anywhere: bool = False
) -> Sheet | None:
    """The sheet that most names of the file belong to; None for the parts of --stub.

    A class that is recognized by its arguments counts as one with a name. plain: the parts of
    --stub that the file has. Of equal numbers, the names of arguments decide. anywhere: as for
    matches.
    """
    plain = {part: thing for part, thing in plain.items() if may_be_plain(part, thing)}
    # A function with the name of a part makes one of the other classes.
    is_made = any(part[0].isupper() and not isinstance(plain[part], type) for part in plain)
    best, best_rank = None, (len(plain), 0)
    if plain:
        names = " ".join(SIGNATURES[part] for part in plain)
        known = set(re.findall(r"\w+", names))
        best_rank = (len(plain), sum(agreement(thing, known) for thing in plain.values()))
    fallback = None
    for own_name in OWN:
        sheet = load(own_name)
        found = matches(sheet, own, anywhere)
        sure = [
            (one, thing)
            for one, name, thing in found
            if not one.any_name
            or (name not in plain and (one.needs or (not is_made and one.can_be_called(thing))))
        ]
        named = {entry.name: thing for entry, thing in sure}
        agreed = sum(entry.agreement(thing) for entry, thing in sure)
        if named and (len(named), agreed) > best_rank:
            best, best_rank = sheet, (len(named), agreed)
        if found and fallback is None:
            fallback = sheet
    return best if best or plain else fallback


def may_be_plain(part: str, thing: Any) -> bool:
    """Whether a class with the name of a part of --stub may be made and called as that part."""
    signature = SIGNATURES[part]
    if not isinstance(thing, type):
        return True
    made = re.findall(r"\w+", signature.partition(": ")[0])[1:]
    called = parameters_of(thing.forward) if hasattr(thing, "forward") else {}
    is_masked = any(re.search("mask|pad", name) for name in called)
    has_lengths = any("len" in name for name in called)
    asks = "mask" in signature, "lengths" in signature
    if is_masked != has_lengths and asks[0] != asks[1] and is_masked != asks[0]:
        return False
    return len(unknown(thing, ())) <= len(made)


def agreement(thing: Any, known: set[str]) -> int:
    called = getattr(thing, "forward", None) if isinstance(thing, type) else None
    given = {*parameters_of(thing), *(parameters_of(called) if called else ())}
    return len(known & given)


def matches(sheet: Sheet, own: Mapping[str, Any], anywhere: bool = False) -> list[Match]:
    """The sheet's entries, and the names and things of the file that they are found in.

    A thing belongs to the first entry that it fits, and to each entry that has a method. anywhere:
    whether it may be defined in another place than the checked file.
    """
    found: list[Match] = []
    taken: set[int] = set()
    for entry in sheet.entries:
        for name, thing in own.items():
            foreign = not anywhere and getattr(thing, "__module__", "") != "_checked_file"
            if foreign or not callable(thing) or (id(thing) in taken and not entry.method):
                continue
            if entry.fits(name, thing):
                found.append((entry, name, thing))
                if not entry.method:
                    taken.add(id(thing))
    return found


def arguments_of(
    given: Mapping[str, inspect.Parameter], wanted: Mapping[str, str], names: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments for a call, by their names, or in the sheet's order if a name is not known.

    given: the parameters of what is called.
    """
    keys = {name: meant(name, wanted) for name in given}
    if given and not unknown_among(given, wanted):
        return [], {name: evaluate(wanted[key], names) for name, key in keys.items() if key}
    return [evaluate(value, names) for value in wanted.values()], {}


def unknown(called: Callable[..., object], wanted: Iterable[str]) -> list[str]:
    """The required arguments that match none of the patterns."""
    return unknown_among(parameters_of(called), wanted)


def unknown_among(given: Mapping[str, inspect.Parameter], wanted: Iterable[str]) -> list[str]:
    """As unknown, for these parameters."""
    required = [name for name, one in given.items() if one.default is inspect.Parameter.empty]
    return [name for name in required if meant(name, wanted) is None]


def can_be_called(called: Callable[..., object], way: Way) -> bool:
    """Whether the function can be called with these arguments in their order."""
    return len(parameters_of(called)) >= len(way.arguments) >= len(unknown(called, ()))


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    import torch

    return eval(expression, {"torch": torch, "inf": float("inf")} | dict(names))
