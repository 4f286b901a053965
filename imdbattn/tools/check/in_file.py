"""Finds the parts of a file by the names, arguments and results of what it defines."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from imdbattn.errors import UserError, in_line
from imdbattn.tools.check.kinds import KINDS
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError
from imdbattn.tools.check.part import CLASSES, Own, Part, call, inputs, net_of
from imdbattn.tools.check.settling import as_kind, changed, in_either_type
from imdbattn.tools.check.sheets import (
    OWN,
    Entry,
    Match,
    Sheet,
    choose,
    load,
    matches,
    parameters_of,
)
from imdbattn.tools.check.source import loaded
from imdbattn.tools.check.tables import PARTS


def sheet_of(own: Own, names: Mapping[str, str], sheet: str | None) -> Sheet | None:
    """The sheet of this name, or the one that the file is recognized as."""
    if sheet:
        return load(sheet)
    plain = {part: own.get(names.get(part, part)) for part in PARTS}
    plain = {part: thing for part, thing in plain.items() if callable(thing)}
    if names and not set(names) - set(PARTS):
        return None
    page = choose(own, plain)
    for other in () if plain else map(load, OWN):
        entry = model_entry(other)
        is_larger = page is None or {*names_of(page)} <= {one.name for one in other.entries}
        if entry and is_larger and page is not other:
            taken = [thing for _, _, thing in matches(page, own)] if page else []
            if any(models_of(own, taken, entry, "", anywhere=False)):
                return other
    return page


def model_entry(sheet: Sheet) -> Entry | None:
    """What the sheet says about models under any name."""
    return next((e for e in sheet.entries if e.any_name and e.kinds == ["Model"]), None)


def parts_of(
    sheet: Sheet, own: Own, file: str, names: Mapping[str, str], anywhere: bool = False
) -> list[Part]:
    """The parts of the sheet that the file has. Raises UserError if there is none."""
    named = {part: required(own, part, name, file) for part, name in names.items()}
    parts: dict[str, Part] = {}
    found = matches(sheet, named | own, anywhere)
    for entry, name, thing in with_those_tried(sheet, found, named | own, file, anywhere):
        shown = name if entry.any_name or entry.name in parts else entry.name
        if shown not in parts:
            parts[shown] = as_kind(shown, thing, entry, KINDS[entry.kinds[0]], file, own)
    if not parts:
        known = ", ".join(names_of(sheet))
        raise UserError(f"{file or 'it'} has none of {known}: --stub {sheet.name} prints them")
    return list(parts.values())


def required(own: Own, part: str, name: str, file: str) -> Any:
    """The class or function that --name gives for a part. Raises UserError if there is none."""
    if not callable(own.get(name)):
        raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    return own[name]


def find(own: Own, file: str, names: Mapping[str, str]) -> list[Part]:
    """The parts in the order of PARTS. Raises UserError if one of the names, or every part, is
    missing.
    """
    named = {part: required(own, part, name, file) for part, name in names.items()}
    makes: dict[str, Any] = {}
    for part in PARTS:
        make = named.get(part, own.get(part))
        is_torchs = str(getattr(make, "__module__", "")).startswith("torch")
        is_scripted = isinstance(make, torch.jit.ScriptFunction)
        if callable(make) and (part in names or is_scripted or not is_torchs):
            makes[part] = make
    if not makes:
        raise UserError(
            f"{file} has none of {', '.join(PARTS)}: --stub prints a file with all of them"
        )
    return [Part(name, make, KINDS[name], file, own) for name, make in makes.items()]


def with_those_tried(
    sheet: Sheet, found: list[Match], own: Own, file: str, anywhere: bool = False
) -> list[Match]:
    """What is found, with the classes that are models whatever their arguments' names are."""
    found = [one for one in found if not is_base(*one, own, file)]
    entry = model_entry(sheet)
    if entry is None:
        return found
    layers = {id(thing) for one, _, thing in found if one.any_name and one is not entry}
    taken = [thing for _, _, thing in found if id(thing) not in layers]
    names = list(models_of(own, taken, entry, file, anywhere))
    models = {id(own[name]) for name in names}
    others = [one for one in found if id(one[2]) not in models]
    return others + [(entry, name, own[name]) for name in names]


def is_base(entry: Entry, name: str, thing: Any, own: Own, file: str) -> bool:
    """Whether a class under any name cannot be called by itself, and another class of the file is
    derived from it.
    """
    classes = [one for one in own.values() if isinstance(one, type) and one is not thing]
    if not entry.any_name or not any(issubclass(one, thing) for one in classes):
        return False
    tried = [as_kind(name, thing, entry, KINDS[kind], file, own) for kind in entry.kinds]
    return not any(in_either_type(part) for part in tried)


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
        found = in_either_type(as_kind(name, thing, entry, KINDS["Model"], file, own))
        if found and found[1].ndim == 2 and found[1].shape[1] in (2, CLASSES):
            yield name


def unmatched(parts: list[Part], own: Own, entry: Entry, file: str) -> Iterator[tuple[str, str]]:
    """The names of the file's modules that are no part and that no other class uses, and why they
    are no model.
    """
    classes = [thing for thing in own.values() if isinstance(thing, type)]
    for name, thing in modules_of(own, [part.make for part in parts], anywhere=False):
        others = [one for one in classes if one is not thing]
        if any(issubclass(one, thing) or name in names_in(one) for one in others):
            continue
        part = as_kind(name, thing, entry, KINDS["Model"], file, own)
        reason = "its result is not that of a model or a layer"
        for way in entry.ways:
            one = changed(part, way=way)
            try:
                call(one, net_of(one), *inputs(one, 3, 2))
            except StudentError as error:
                reason = f"as a model it raises {in_line(error.args[0], None)}"
            except (NotChecked, Mistake) as error:
                reason = str(error.args[-1])
        yield name, reason


def names_in(thing: Any) -> set[str]:
    """The names that a function, or the methods of a class, use."""
    functions = vars(thing).values() if isinstance(thing, type) else [thing]
    codes = [getattr(one, "__code__", None) for one in functions]
    return set().union(*(loaded(code) for code in codes if code))


def uses(thing: Any, others: list[Any], own: Own) -> bool:
    """Whether a class or function of the file is one of the others, or uses it, also through
    others of the file.
    """
    seen: list[Any] = []
    left = [thing]
    while left:
        one = left.pop()
        if any(one is other for other in others):
            return True
        if str(getattr(one, "__module__", "")).startswith("torch") or one in seen:
            continue
        seen.append(one)
        left += getattr(one, "__bases__", ())
        left += [own[name] for name in names_in(one) if callable(own.get(name))]
    return False


def names_of(sheet: Sheet) -> list[str]:
    """The parts of a sheet that a report lists as absent: those with names of their own."""
    return [entry.name for entry in sheet.entries if not (entry.any_name or entry.optional)]


def similar(own: Own, found: list[Part], names: Mapping[str, str]) -> dict[str, str]:
    """Parts that are absent -> names of classes and functions of the file that may be meant."""
    mine = {
        name.replace("_", "").lower(): name
        for name, thing in own.items()
        if callable(thing) and getattr(thing, "__module__", "") == "_checked_file"
        if name not in PARTS and name not in names.values()
    }
    near = {}
    for part in PARTS.keys() - {one.name for one in found}:
        close = difflib.get_close_matches(part.replace("_", "").lower(), mine, 1, 0.75)
        if close and isinstance(own[mine[close[0]]], type) == part[0].isupper():
            near[part] = mine[close[0]]
    return near
