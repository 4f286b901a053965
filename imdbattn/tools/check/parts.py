"""Finds the parts of a file by what it defines, and checks them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

import imdbattn.tools.check.source as source
from imdbattn.errors import UserError
from imdbattn.tools.check.kinds import KINDS
from imdbattn.tools.check.part import Own, Part
from imdbattn.tools.check.report import Message, Result, result_of
from imdbattn.tools.check.running import finding_of, run
from imdbattn.tools.check.settling import as_kind, notes, settle
from imdbattn.tools.check.sheets import Sheet, choose, load, matches
from imdbattn.tools.check.tables import PARTS


def check(file: str, names: Mapping[str, str], sheet: str | None = None) -> Iterator[Message]:
    """Messages: {"parts": names of their checks}, and those of running.run. sheet: its name; None
    for the one that the names in the file belong to.

    Last comes {"done": True}, or {"error": message} for a UserError.
    """
    try:
        yield {"doing": ["file", "import"]}
        own = vars(source.load(file))
        page = sheet_of(own, names, sheet)
        parts = parts_of(page, own, file, names) if page else find(own, file, names)
    except UserError as error:
        yield {"error": str(error)}
        return
    except (Exception, SystemExit) as error:
        yield {"result": result_of("file", "import", False, *finding_of(error, "file", file))}
        yield {"done": True}
        return
    yield from check_parts(parts, page, own)
    yield {"done": True}


def check_objects(things: Own, sheet: str | None = None) -> Iterator[Message]:
    """As check, for classes and functions of this process by their names. Raises UserError."""
    plain = {name: thing for name, thing in things.items() if name in PARTS}
    page = load(sheet) if sheet else choose(things, plain, anywhere=True)
    if page is None:
        parts = [Part(name, thing, KINDS[name]) for name, thing in plain.items()]
    else:
        parts = parts_of(page, things, "", {}, anywhere=True)
    taken = [part.make for part in parts]
    for name, thing in things.items():
        if not any(thing is one for one in taken):
            known = names_of(page) if page else PARTS
            raise UserError(
                f"{name} is none of {', '.join(known)}: write score(SelfAttention={name})"
            )
    yield from check_parts(parts, page, dict(things))


def check_parts(parts: list[Part], page: Sheet | None, own: Own) -> Iterator[Message]:
    """The messages of these parts. own: the names of the file."""
    checks = {part.name: names_of_checks(part) for part in parts}
    yield {"parts": checks}
    if page:
        yield {"sheet": page.title, "expected": list({**dict.fromkeys(names_of(page)), **checks})}
        order = [*KINDS]  # what others use comes first
        parts = sorted(parts, key=lambda part: order.index(part.kind.name))
    wrong: list[Any] = []  # the classes and functions of the parts in which a check fails
    for number, part in enumerate(parts):
        part.others = [other for other in parts if other is not part]
        if part.adapter:
            yield {"doing": [part.name, "shape"]}
            part = parts[number] = settle(part)
            checks[part.name] = names_of_checks(part)
            yield {"parts": checks, "labels": {part.name: labels_of(part, page) for part in parts}}
            for note in notes(part):
                yield {"result": result_of(part.name, "sheet", None, None, note)}
        uses_wrong, is_wrong = uses(part.make, wrong, own), False
        for message in run(part.kind.rules(), part):
            if message.get("result", {}).get("held") is False:
                is_wrong = True
                message = {"result": blocked(message["result"])} if uses_wrong else message
            yield message
        wrong += [part.make] if is_wrong else []


def names_of_checks(part: Part) -> list[str]:
    return [rule.name for rule in part.kind.rules()]


def labels_of(part: Part, page: Sheet | None) -> list[str]:
    """Further names of the part: of its kind, of the sheet, and of the sheet's stub."""
    labels = [part.kind.name, *part.kind.also_called]
    for entry in page.entries if page else ():
        if entry.kinds[0] == part.kind.name:
            labels += [entry.name, *entry.stub_names]
    return labels


def blocked(result: Result) -> Result:
    """What is reported instead of a finding in a part that uses a wrong one, which may be its
    cause.
    """
    if result["finding"] == "not-written-yet":
        return result
    reason = "Not checked before the part that it uses is corrected."
    return result_of(result["part"], result["check"], None, "blocked", reason)


# --- what a file has ------------------------------------------------------------------------------


def sheet_of(own: Own, names: Mapping[str, str], sheet: str | None) -> Sheet | None:
    """The sheet of this name, or the one that the file is recognized as."""
    if sheet:
        return load(sheet)
    if names and not set(names) - set(PARTS):
        return None
    plain = {part: own.get(names.get(part, part)) for part in PARTS}
    return choose(own, {part: thing for part, thing in plain.items() if callable(thing)})


def parts_of(
    sheet: Sheet, own: Own, file: str, names: Mapping[str, str], anywhere: bool = False
) -> list[Part]:
    """The parts of the sheet that the file has. Raises UserError if there is none."""
    named = {part: required(own, part, name, file) for part, name in names.items()}
    parts: dict[str, Part] = {}
    for entry, name, thing in matches(sheet, named | own, anywhere):
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


def names_in(thing: Any) -> set[str]:
    """The names that a function, or the methods of a class, use."""
    functions = vars(thing).values() if isinstance(thing, type) else [thing]
    codes = [getattr(one, "__code__", None) for one in functions]
    return set().union(*(source.loaded(code) for code in codes if code))


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
