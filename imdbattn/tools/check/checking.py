"""Finds the parts of a file by what it defines, and checks them."""

import traceback
from collections.abc import Generator, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch

import imdbattn.tools.check.source as source
from imdbattn.errors import UserError, one_line
from imdbattn.tools.check.choosing import KINDS, choose_call, has_shape, notes
from imdbattn.tools.check.findings import Mistake, NotChecked, NotCompared, StudentError, mistake
from imdbattn.tools.check.part import Namespace, Part, Rule
from imdbattn.tools.check.report import Outcome, Result, result_of
from imdbattn.tools.check.sheets import SHEETS, Sheet, choose_sheet, load, matches


def check_file(
    file: str, names: Mapping[str, str], sheet_name: str | None = None
) -> Iterator[Outcome]:
    """Yields the outcome so far, which the next step changes: before the file is imported, after
    its parts are found, before each check, and at the end.

    sheet_name: None for the sheet that the names in the file belong to.
    """
    outcome = Outcome(file, doing=["file", "import"])
    yield outcome
    try:
        namespace = vars(source.load(file))
        named = {part: required(namespace, part, name, file) for part, name in names.items()}
        objects = {name: obj for name, obj in namespace.items() if is_students(obj)}
        sheet = sheet_of(objects, named, sheet_name)
        parts = parts_among(sheet, named | objects, file, namespace)
    except UserError as error:
        outcome.error = str(error)
    except (Exception, SystemExit) as error:
        outcome.results.append(result_of("file", "import", mistake_of(error, "file", file)))
    else:
        yield from check_each(parts, sheet, outcome)
    outcome.done = True
    yield outcome


def check_objects(objects: Namespace, sheet_name: str | None = None) -> Iterator[Outcome]:
    """As check_file, for classes and functions of this process by their names. Raises UserError."""
    sheet = sheet_of(objects, {}, sheet_name)
    known = [id(obj) for *_, obj in matches(sheet, objects)]
    for name, obj in objects.items():
        if id(obj) not in known:
            known_parts = ", ".join(sheet.parts)
            raise UserError(f"{name} is none of {known_parts}: write grade(SelfAttention={name})")
    namespace: Namespace = {}
    for obj in objects.values():
        namespace |= getattr(obj, "__globals__", {})
    parts = parts_among(sheet, objects, "", namespace | objects)
    yield from check_each(parts, sheet, Outcome())


def check_each(parts: list[Part], sheet: Sheet, outcome: Outcome) -> Iterator[Outcome]:
    """Yields the outcome before each check of these parts."""
    parts = sorted(parts, key=lambda part: [*KINDS].index(part.kind.name))
    outcome.sheet, outcome.expected = sheet.title, sheet.parts
    for part in parts:
        add_names(outcome, part, sheet)
    yield outcome
    wrong: list[Any] = []  # the classes and functions of the parts in which a check fails
    for part in parts:
        outcome.doing = [part.name, outcome.parts[part.name][0]]
        yield outcome
        chosen = choose_call(part)
        add_names(outcome, chosen, sheet)
        texts = list(notes(chosen))
        if user := user_of_helper(chosen, parts):
            texts = [f"It was not checked: {user} calls it, but not as {part.entry.signature}."]
            outcome.parts[part.name] = []
        for text in texts:
            outcome.results.append(Result(part.name, "sheet", None, None, text))
        if not user and (yield from run_rules(chosen, outcome, uses_wrong=uses(part, wrong))):
            wrong.append(part.definition)
    yield outcome


def user_of_helper(part: Part, parts: list[Part]) -> str:
    """Returns the name of a part of the right shape that uses this one, if this one is a helper: it
    has a part's name but not its shape; "" if there is none.
    """
    if not part.entry.any_name or has_shape(part):
        return ""
    users = (user for user in parts if user.name != part.name and uses(user, [part.definition]))
    return next((user.name for user in users if has_shape(choose_call(user))), "")


def add_names(outcome: Outcome, part: Part, sheet: Sheet) -> None:
    """Adds the names of the part's checks, and its further names: those of its kind, and those of
    the sheet for this kind.
    """
    outcome.parts[part.name] = [rule.name for rule in part.kind.rules()]
    in_sheet = [entry.name for entry in sheet.entries if entry.kinds[0] == part.kind.name]
    outcome.labels[part.name] = [part.kind.name, *part.kind.also_called, *in_sheet]


# --- the rules of a part --------------------------------------------------------------------------


def run_rules(part: Part, outcome: Outcome, uses_wrong: bool) -> Generator[Outcome, None, bool]:
    """Adds the results of the part's rules. Yields the outcome before each of them, and returns
    whether one of them fails.

    All rules need the first one. uses_wrong: whether the part uses one with a finding, which may be
    the cause of what is found here.
    """
    failed: set[str] = set()
    rules = part.kind.rules()
    for rule in rules:
        outcome.doing = [part.name, rule.name]
        yield outcome
        result = attempt(rule, part, failed & {rules[0].name, *rule.needs})
        if result.held is False and uses_wrong and result.finding != "not-written-yet":
            reason = "To be checked when the part that it uses is corrected."
            result = Result(part.name, rule.name, None, "blocked", reason)
        if result.held is False or result.finding == "blocked":
            failed.add(rule.name)
        outcome.results.append(result)
    return bool(failed)


def attempt(rule: Rule, part: Part, failed: set[str]) -> Result:
    """Returns the result of a rule. failed: those that must hold before it, and do not."""

    def unmade(finding: str | None, reason: str) -> Result:
        return Result(part.name, rule.name, None, finding, reason)

    if rule.option and not part.accepts(rule.option):
        reason = f"{rule.option} was not checked: {part.name} has no argument {rule.option}."
        return unmade(None, reason)
    if failed:
        return unmade("blocked", f"Not checked: {' and '.join(sorted(failed))} must hold first.")
    torch.default_generator.manual_seed(0)
    first_paragraph = str(rule.test.__doc__).partition("\n\n")[0]
    try:
        with torch.enable_grad():  # the file may have disabled it
            sentence = rule.test(part) or " ".join(first_paragraph.split())
        return Result(part.name, rule.name, True, None, sentence)
    except Mistake as mistake:
        return result_of(part.name, rule.name, mistake, part.line)
    except NotCompared as error:
        return unmade("not-compared", str(error))
    except NotChecked as error:
        return unmade(None, str(error))
    except StudentError as error:
        raised = mistake_of(error.args[0], part.name, part.file, part.entry.signature)
        return result_of(part.name, rule.name, raised, part.line)
    except Exception as error:  # the checker itself failed
        reason = (
            f"{rule.name} was not checked: the checker raised {type(error).__name__}:"
            f" {one_line(error)}."
        )
        return unmade("not-checked", reason)


def mistake_of(error: BaseException, part: str, file: str, signature: str = "") -> Mistake:
    """Returns the finding for an exception of the student's code."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"Line {f.lineno}{f.filename[len(file) :]}"
        for f in frames
        if file and f.filename.startswith(file)
    ]
    finding = "raises"
    if isinstance(error, NotImplementedError):
        finding = "not-written-yet"
    elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        finding = "too-much-memory"
    elif isinstance(error, TypeError) and not lines:
        finding = "wrong-signature"
    fix = "Correct that line." if lines else "Correct the call that raises it."
    if part == "file":  # at its import
        fix = 'Correct that line, or put tests and training under if __name__ == "__main__".'
    message = f"{type(error).__name__}: {one_line(error)}"
    values = {"part": part, "where": [part, *lines][-1], "signature": signature}
    return mistake(finding, message=message, fix=fix, **values)


# --- what a file has ------------------------------------------------------------------------------


def is_students(obj: Any) -> bool:
    """Returns whether it can be called, and is not a class or function of torch."""
    is_torchs = isinstance(obj, type | FunctionType) and obj.__module__.startswith("torch")
    return callable(obj) and not is_torchs


def required(namespace: Namespace, part: str, name: str, file: str) -> Any:
    """Returns the class or function that --name gives for a part. Raises UserError if absent."""
    if not callable(namespace.get(name)):
        raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    return namespace[name]


def sheet_of(objects: Namespace, named: Namespace, sheet_name: str | None) -> Sheet:
    """Returns the sheet of this name, or the one that has the parts that are named, or that the
    file is recognized as.
    """
    if sheet_name:
        return load(sheet_name)
    sheets = [load(name) for name in SHEETS]
    having = [sheet for sheet in sheets if named and named.keys() <= {*sheet.parts}]
    return having[0] if having else choose_sheet(sheets, named | objects)


def parts_among(sheet: Sheet, objects: Namespace, file: str, namespace: Namespace) -> list[Part]:
    """Returns the parts of the sheet among these objects. Raises UserError if there is none."""
    parts: dict[str, Part] = {}
    for entry, name, obj in matches(sheet, objects):
        shown = name if entry.any_name or entry.name in parts else entry.name
        if shown not in parts:
            kind, form = KINDS[entry.kinds[0]], entry.call_forms[0]
            parts[shown] = Part(shown, obj, entry, kind, file, namespace, form)
    if not parts:
        stub = f"--stub {sheet.name} prints a file with all of them"
        raise UserError(f"{file or 'it'} has none of {', '.join(sheet.parts)}: {stub}")
    return list(parts.values())


def names_in(obj: Any) -> set[str]:
    """Returns the names that a function, or the methods of a class, use."""
    functions = vars(obj).values() if isinstance(obj, type) else [obj]
    codes = [getattr(function, "__code__", None) for function in functions]
    return set().union(*(source.loaded(code) for code in codes if code))


def uses(part: Part, others: list[Any]) -> bool:
    """Returns whether the part is one of the other classes and functions, or uses it, also through
    others of the file.
    """
    seen: list[Any] = []
    left = [part.definition]
    while left:
        user = left.pop()
        if any(user is other for other in others):
            return True
        if str(getattr(user, "__module__", "")).startswith("torch") or user in seen:
            continue
        seen.append(user)
        left += getattr(user, "__bases__", ())
        named = [part.namespace.get(name) for name in names_in(user)]
        left += [obj for obj in named if callable(obj)]
    return False
