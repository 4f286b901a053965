"""Runs the rules, and describes an exception of the student's code as a finding."""

import traceback
from collections.abc import Generator

import torch

from imdbattn.errors import one_line
from imdbattn.tools.check.numbers import NotChecked, NotCompared, StudentError
from imdbattn.tools.check.part import Part, Rule
from imdbattn.tools.check.report import Outcome, Result, result_of
from imdbattn.tools.check.tables import Mistake, describe


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
    torch.set_grad_enabled(True)  # the file may have changed it
    try:
        first_paragraph = str(rule.test.__doc__).partition("\n\n")[0]
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
    values = {
        "part": part,
        "signature": signature,
        "message": f"{type(error).__name__}: {one_line(error)}",
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
