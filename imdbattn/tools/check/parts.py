"""The check of all parts of a file."""

from collections.abc import Iterator, Mapping
from typing import Any

import imdbattn.tools.check.source as source
from imdbattn.errors import UserError
from imdbattn.tools.check.extra import EXTRA
from imdbattn.tools.check.in_file import (
    find,
    model_entry,
    names_of,
    parts_of,
    sheet_of,
    similar,
    unmatched,
    uses,
)
from imdbattn.tools.check.kinds import KINDS
from imdbattn.tools.check.part import Own, Part, Rule
from imdbattn.tools.check.report import Message, Result, result_of
from imdbattn.tools.check.running import finding_of, run
from imdbattn.tools.check.settling import notes, settle
from imdbattn.tools.check.sheets import Sheet, choose, load
from imdbattn.tools.check.tables import PARTS


def rules_of(part: Part) -> list[Rule]:
    """The rules of a part, with those that its sheet adds."""
    also = part.adapter.entry.also if part.adapter else ()
    return part.kind.rules() + [EXTRA[name] for name in also]


def check(file: str, names: Mapping[str, str], sheet: str | None = None) -> Iterator[Message]:
    """Messages: {"parts": names of their checks, "near": names that other parts may have}, and
    those of running.run. sheet: its name; None for the one that the names in the file belong to.

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
    yield {"near": {} if page else similar(own, parts, names)}
    yield from check_parts(parts, page, own)
    if page and (entry := model_entry(page)):
        for name, reason in unmatched(parts, own, entry, file):
            yield {"result": result_of(name, "sheet", None, None, f"It was not checked: {reason}.")}
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
    checks = {part.name: [rule.name for rule in rules_of(part)] for part in parts}
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
            checks[part.name] = [rule.name for rule in rules_of(part)]
            yield {"parts": checks, "labels": {part.name: labels_of(part, page) for part in parts}}
            for note in notes(part):
                yield {"result": result_of(part.name, "sheet", None, None, note)}
        uses_wrong, is_wrong = uses(part.make, wrong, own), False
        for message in run(rules_of(part), part):
            if message.get("result", {}).get("held") is False:
                is_wrong = True
                message = {"result": blocked(message["result"])} if uses_wrong else message
            yield message
        wrong += [part.make] if is_wrong else []


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
