"""What rules are made of: the student's part, calls of it, comparisons, and `diagnose`, which names a mistake."""

import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.errors import in_line


class Mistake(Exception):
    """A rule does not hold. Has the finding, sentence, example and fix of a Result."""


class NotChecked(Exception):
    """The rule does not apply to this solution. The message is the reason."""


class StudentError(Exception):
    """Holds an exception that the student's code raised."""


class Part(NamedTuple):
    """A class or function of the student's file. signature: its line of PARTS. own: all of the file's names."""

    name: str
    make: Any
    signature: str
    file: str
    own: dict[str, Any]

    @property
    def arguments(self) -> list[tuple[str, list[str]]]:
        """Names of the arguments with their dimensions, and last the result's: [("mask", ["B", "T"]), ...]."""
        found = re.findall(r"(\w+|->) \(([^)]*)\)", self.signature.partition(": ")[2])
        return [(name, re.findall(r"\w", dimensions)) for name, dimensions in found]


class Result(NamedTuple):
    """held: None if it could not be checked. finding: "blocked" if a rule that must hold first does not, "not-checked"
    if the checker itself raised an exception.
    """

    part: str
    check: str
    held: bool | None
    finding: str | None
    sentence: str  # what holds, or what is wrong
    example: str = ""
    fix: str = ""


class Rule(NamedTuple):
    """test: raises Mistake; its docstring is the sentence if the rule holds. needs: rules that must hold first."""

    name: str
    test: Callable[[Part], None]
    needs: tuple[str, ...] = ()
    option: str | None = None  # an argument without which the rule does not apply


def run(rules: list[Rule], part: Part) -> Iterator[tuple[str, Result | None]]:
    """Yields the name of each rule with None before it runs, and with its result afterwards.

    All rules need the first one, which is tried in float64 and then in float32.
    """
    failed: set[str] = set()
    torch.set_default_dtype(torch.float64)
    for number, rule in enumerate(rules):
        yield rule.name, None
        by = failed & {rules[0].name, *rule.needs}
        if rule.option and not accepts(part.make, rule.option):
            reason = f"There are no checks of {rule.option}: {part.name} has no such argument."
            result = Result(part.name, rule.name, None, None, reason)
        elif by:
            reason = f"Not checked before {' and '.join(sorted(by))} {'hold' if len(by) > 1 else 'holds'}."
            result = Result(part.name, rule.name, None, "blocked", reason)
        else:
            result = attempt(rule, part)
            if number == 0 and not result.held and result.finding != "not-written-yet":
                torch.set_default_dtype(torch.float32)  # the file may use float32 whatever the input is
                result = attempt(rule, part)
        failed |= {rule.name} if result.held is False or result.finding == "blocked" else set()
        yield rule.name, result


def accepts(make: Any, option: str) -> bool:
    given = inspect.signature(make).parameters
    return option in given or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())


def attempt(rule: Rule, part: Part) -> Result:
    torch.default_generator.manual_seed(0)
    try:
        rule.test(part)
    except Mistake as mistake:
        return Result(part.name, rule.name, False, *mistake.args)
    except NotChecked as error:
        return Result(part.name, rule.name, None, None, in_line(error))
    except StudentError as error:
        return Result(part.name, rule.name, False, *explain(error.args[0], part))
    except Exception as error:  # of the checker itself
        reason = f"{rule.name} was not checked: the checker raised {type(error).__name__}: {in_line(error)}."
        return Result(part.name, rule.name, None, "not-checked", reason)
    return Result(part.name, rule.name, True, None, in_line((rule.test.__doc__ or "").partition("\n")[0]))


def student(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of the student's code for copies of its arguments. Raises StudentError for every exception."""
    try:
        return call(*(a.clone() if isinstance(a, Tensor) else a for a in arguments), **options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        raise StudentError(error) from error


def explain(error: BaseException, part: Part) -> tuple[str, str, str, str]:
    """Finding, sentence, example and fix for an exception of the student's code."""
    if isinstance(error, NotImplementedError):
        return "not-written-yet", f"{part.name} is not written yet.", "", f"Write {part.signature}."
    message = f"{type(error).__name__}: {in_line(error)}"
    if isinstance(error, SystemExit):
        return "raises", "The file ends Python.", message, 'Put such code under if __name__ == "__main__".'
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        sentence = "A check needed more memory than the limit."
        return "too-much-memory", sentence, message, "Make no large tensors; --memory changes the limit."
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(f.lineno, f.filename[len(part.file) :]) for f in frames if part.file and f.filename.startswith(part.file)]
    if lines:
        return "raises", f"Line {lines[-1][0]}{lines[-1][1]} raises an exception.", message, "Correct that line."
    if isinstance(error, TypeError):
        sentence = f"{part.name} cannot be called as documented."
        return "wrong-signature", sentence, message, f"Its signature is {part.signature}."
    return "raises", f"{part.name} raises an exception.", message, "Correct the call that raises it."


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same in both default types."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.get_default_dtype())


def same(first: Tensor, second: Tensor, tolerance: float = 1e-3) -> bool:
    """Whether the numbers differ by at most the tolerance times the largest one. NaN equals NaN."""
    if first.shape != second.shape:
        return False
    size = second.nan_to_num(0, 0, 0).abs().max() if second.numel() else 0
    return bool(
        (((first - second).abs() <= tolerance * size) | (first == second) | (first != first) & (second != second)).all()
    )


def show(values: Any, digits: int = 3) -> str:
    """Numbers as in [[0.7, 0.4], [0.3, 0.6]]."""
    if isinstance(values, Tensor):
        values = values.detach().tolist()
    if isinstance(values, list):
        return f"[{', '.join(show(value, digits) for value in values)}]"
    return f"{0 if abs(values) < 1e-12 else values:.{digits}g}"


def read_findings() -> dict[str, list[str]]:
    """Name of a finding -> its sentence, example and fix."""
    blocks = Path(__file__).with_name("findings.txt").read_text().split("\n\n")[1:]
    return {block.split("\n")[0]: block.strip().split("\n")[1:] for block in blocks}


FINDINGS = read_findings()


def mistake(finding: str, *tensors: Tensor, **values: Any) -> Mistake:
    """The finding with the texts of findings.txt. tensors: shown from their first difference on, with enough digits."""
    flat = [x.detach().flatten() for x in tensors]
    start = 0
    if len(flat) > 1:
        start = int(((flat[0] - flat[1]).abs().nan_to_num(1) > 1e-4 * (1 + flat[1].abs())).nonzero()[:1].sum()) // 3 * 3
    shown = [[show(x[start : start + 3], digits) for x in flat] for digits in range(3, 10)]
    numbers = next((row for row in shown if len(set(row)) == len(row)), shown[-1])
    return Mistake(finding, *(text.format(*numbers, **values) for text in FINDINGS[finding]))


class Table(NamedTuple):
    """A reference and its variants, of references.txt. steps: name -> expression; the last one is the result."""

    fix: str
    steps: dict[str, str]
    variants: list[tuple[str, str, dict[str, str]]]  # finding, sentence, steps that are replaced


def read_tables() -> dict[str, Table]:
    found: dict[str, Table] = {}
    current: list[Table] = []
    for line in Path(__file__).with_name("references.txt").read_text().splitlines():
        if line.startswith("["):
            names, _, fix = line[1:].partition("]")
            current = [found.setdefault(name, Table(fix.strip(), {}, [])) for name in names.split()]
        elif line and line[0] != "#":
            *mistake, formula = line.split(" | ", 2)
            steps = dict(step.split(" = ", 1) for step in formula.split("; "))
            for table in current:
                table.variants.append((mistake[0], mistake[1], steps)) if mistake else table.steps.update(steps)
    return found


TABLES = read_tables()
Names = dict[str, Any]  # what the expressions of a table use
TOOLS: Names = {"torch": torch, "F": F, "inf": float("inf")}


def evaluate(steps: dict[str, str], names: Names) -> Tensor | None:
    """The result of the steps in their order; None if one cannot be computed for tensors of these shapes."""
    names = TOOLS | names
    try:
        for name, expression in steps.items():
            names[name] = eval(expression, names)
    except (RuntimeError, IndexError):
        return None
    return names[name]
