"""How rules are run, and the finding for an exception of the student's code."""

import traceback
from collections.abc import Iterator
from typing import Any

import torch

from imdbattn.errors import in_line
from imdbattn.tools.check.numbers import Mistake, NotChecked, NotCompared, StudentError
from imdbattn.tools.check.part import Part, Rule
from imdbattn.tools.check.report import Message, result_of
from imdbattn.tools.check.tables import describe


def run(rules: list[Rule], part: Part) -> Iterator[Message]:
    """Messages: {"doing": [part, rule]} before each rule, and {"result": ...} afterwards.

    All rules need the first one.
    """
    failed: set[str] = set()
    for rule in rules:
        yield {"doing": [part.name, rule.name]}
        found = attempt(rule, part, failed & {rules[0].name, *rule.needs})
        if found[0] is False or found[1] == "blocked":
            failed.add(rule.name)
        result = result_of(part.name, rule.name, *found)
        yield {"result": result | {"line": part.line if found[0] is False else ""}}


def attempt(rule: Rule, part: Part, failed: set[str]) -> tuple[Any, ...]:
    """Returns what result_of is given. failed: rules that must hold before this one."""
    if rule.option and not part.accepts(rule.option):
        reason = f"{rule.option} was not checked: {part.name} has no argument {rule.option}."
        return None, None, reason
    if failed:
        return None, "blocked", f"Not checked before {' and '.join(sorted(failed))} hold."
    torch.default_generator.manual_seed(0)
    torch.set_grad_enabled(True)  # the file may have changed it
    try:
        first_paragraph = str(rule.test.__doc__).partition("\n\n")[0]
        return True, None, rule.test(part) or " ".join(first_paragraph.split())
    except Mistake as mistake:
        return False, *mistake.args
    except NotCompared as error:
        return None, "not-compared", str(error)
    except NotChecked as error:
        return None, None, str(error)
    except StudentError as error:
        return False, *finding_of(error.args[0], part.name, part.file, part.entry.signature)
    except Exception as error:  # the checker itself failed
        reason = (
            f"{rule.name} was not checked: the checker raised {type(error).__name__}:"
            f" {in_line(error)}."
        )
        return None, "not-checked", reason


def finding_of(error: BaseException, part: str, file: str, signature: str = "") -> list[str]:
    """Returns the finding for an exception of the student's code."""
    values = {
        "part": part,
        "signature": signature,
        "message": f"{type(error).__name__}: {in_line(error)}",
    }
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"Line {f.lineno}{f.filename[len(file) :]}"
        for f in frames
        if file and f.filename.startswith(file)
    ]
    if isinstance(error, NotImplementedError):
        return describe("not-written-yet", **values)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return describe("too-much-memory", **values)
    if isinstance(error, TypeError) and not lines:
        return describe("wrong-signature", **values)
    where = [part, *lines][-1]
    fix = "Correct that line." if lines else "Correct the call that raises it."
    if part == "file":  # at its import
        fix = 'Correct that line, or put tests and training under if __name__ == "__main__".'
    return describe("raises", where=where, fix=fix, **values)
