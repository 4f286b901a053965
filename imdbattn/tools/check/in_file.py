"""Finds the parts of a file by the names, arguments and results of what it defines."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from imdbattn.errors import UserError
from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.part import Own, Part
from imdbattn.tools.check.sheets import OWN, Entry, Match, Sheet, choose, load, matches
from imdbattn.tools.check.tables import PARTS
from imdbattn.tools.check.trying import (
    in_either_type,
    layer_entry,
    layers_of,
    model_entry,
    models_of,
)


def sheet_of(own: Own, names: Mapping[str, str], sheet: str | None) -> Sheet | None:
    """The sheet of this name, or the one that the file is recognized as."""
    if sheet:
        return load(sheet)
    plain = {
        part: own[names.get(part, part)]
        for part in PARTS
        if callable(own.get(names.get(part, part)))
    }
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
    for other in () if plain or page else map(load, OWN):
        entry = layer_entry(other)
        if entry and any(layers_of(own, entry, "", anywhere=False)):
            return other
    return page


def parts_of(
    sheet: Sheet,
    own: Own,
    file: str,
    names: Mapping[str, str],
    anywhere: bool = False,
) -> list[Part]:
    """The parts of the sheet that the file has. Raises UserError if there is none."""
    for part, name in names.items():
        if not callable(own.get(name)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    named = {part: own[name] for part, name in names.items()}
    parts: dict[str, Part] = {}
    found = matches(sheet, named | own, anywhere)
    for entry, name, thing in with_those_tried(sheet, found, named | own, file, anywhere):
        shown = name if entry.any_name or entry.name in parts else entry.name
        adapter = Adapter(entry, entry.rules[0])
        if shown not in parts:
            parts[shown] = Part(shown, thing, file, own, entry.rules[0], adapter)
    if not parts:
        known = ", ".join(names_of(sheet))
        raise UserError(f"{file or 'it'} has none of {known}: --stub {sheet.name} prints them")
    return list(parts.values())


def find(own: Own, file: str, names: Mapping[str, str]) -> list[Part]:
    """The parts in the order of PARTS. Raises UserError if one of the names, or every part, is
    missing.
    """
    for part, name in names.items():
        if not callable(own.get(name)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    makes = {part: own.get(names.get(part, part)) for part in PARTS}
    foreign = [
        p for p, make in makes.items() if str(getattr(make, "__module__", "")).startswith("torch")
    ]
    foreign = [p for p in foreign if not isinstance(makes[p], torch.jit.ScriptFunction)]
    makes = {
        p: make for p, make in makes.items() if callable(make) and (p in names or p not in foreign)
    }
    if not makes:
        raise UserError(
            f"{file} has none of {', '.join(PARTS)}: --stub prints a file with all of them"
        )
    return [Part(name, make, file, own) for name, make in makes.items()]


def with_those_tried(
    sheet: Sheet, found: list[Match], own: Own, file: str, anywhere: bool = False
) -> list[Match]:
    """What is found, with the classes that are models whatever their arguments' names are; layers
    under any name, if nothing is found.
    """
    found = [one for one in found if not is_base(*one, own, file)]
    entry = model_entry(sheet)
    if not found and (layer := layer_entry(sheet)):
        found = [(layer, name, own[name]) for name in layers_of(own, layer, file, anywhere)]
    if entry is None:
        return found
    layers = [thing for one, _, thing in found if one.any_name and one is not entry]
    taken = [thing for _, _, thing in found if not is_one_of(thing, layers)]
    names = list(models_of(own, taken, entry, file, anywhere))
    models = [own[name] for name in names]
    others = [one for one in found if not is_one_of(one[2], models)]
    return others + [(entry, name, own[name]) for name in names]


def is_base(entry: Entry, name: str, thing: Any, own: Own, file: str) -> bool:
    """Whether a class under any name cannot be called by itself, and another class of the file is
    derived from it.
    """
    classes = [one for one in own.values() if isinstance(one, type) and one is not thing]
    if not entry.any_name or not any(issubclass(one, thing) for one in classes):
        return False
    tried = [Part(name, thing, file, own, kind, Adapter(entry, kind)) for kind in entry.rules]
    return all(in_either_type(part) is None for part in tried)


def names_of(sheet: Sheet) -> list[str]:
    """The parts of a sheet that a report lists as absent: those with names of their own."""
    return [entry.name for entry in sheet.entries if not (entry.any_name or entry.optional)]


def similar(own: Own, checks: Mapping[str, object], names: Mapping[str, str]) -> dict[str, str]:
    """Parts that are absent -> names of classes and functions of the file that may be meant."""
    mine = [
        name
        for name, v in own.items()
        if callable(v) and getattr(v, "__module__", "") == "_checked_file"
    ]
    plain = {
        n.replace("_", "").lower(): n for n in mine if n not in PARTS and n not in names.values()
    }
    absent = [part for part in PARTS if part not in checks]
    found = {
        part: difflib.get_close_matches(part.replace("_", "").lower(), plain, 1, 0.75)
        for part in absent
    }
    near = {part: plain[names[0]] for part, names in found.items() if names}
    return {
        part: name
        for part, name in near.items()
        if isinstance(own[name], type) == part[0].isupper()
    }


def is_one_of(thing: object, things: Iterable[object]) -> bool:
    """Whether it is one of these objects itself; equality may be a student's own."""
    return any(thing is one for one in things)
