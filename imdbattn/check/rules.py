"""Rules that check a part of a student's file, their results, and `diagnose`, which names what reproduces an output."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from imdbattn.errors import in_line


class Mistake(Exception):
    """Raised by a rule that does not hold, with the finding, sentence, example and fix of a Result."""


class NotChecked(Exception):
    """The rule does not apply to this solution. The message is the reason."""


class Part(NamedTuple):
    """A class or function of the student's file. signature: as documented in the stub. own: all of the file's names."""

    name: str
    make: Any
    signature: str
    file: str
    own: dict[str, Any]


class Result(NamedTuple):
    """held: None if the rule does not apply. finding: "blocked" if a rule that must hold first does not, "not-checked"
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
            reason = f"Not checked before {' and '.join(sorted(by))} {'hold' if by - {min(by)} else 'holds'}."
            result = Result(part.name, rule.name, False, "blocked", reason)
        else:
            result = attempt(rule, part)
            if number == 0 and not result.held and result.finding != "not-written-yet":
                torch.set_default_dtype(torch.float32)  # the file may use float32 whatever the input is
                result = attempt(rule, part)
        failed |= {rule.name} if result.held is False else set()
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


class StudentError(Exception):
    """Holds an exception that the student's code raised."""


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
        return "too-much-memory", sentence, message, "Raise --memory if the file needs so much."
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == part.file]
    if lines:
        return "raises", f"Line {lines[-1]} raises an exception.", message, "Correct that line."
    if isinstance(error, TypeError):
        sentence = f"{part.name} cannot be called as documented."
        return "wrong-signature", sentence, message, f"Its signature is {part.signature}."
    return "raises", f"{part.name} raises an exception.", message, "Correct the call that raises it."


def build(make: Callable[..., Any], *arguments: Any, sample: tuple[Tensor, ...] = (), seed: int = 0, **options: Any):
    """A module in evaluation mode with random parameters. sample: inputs that give lazy layers their shapes."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    gain = options.pop("gain", 1)
    module = student(make, *arguments, **options)
    if not isinstance(module, nn.Module):
        example = f"The result of the call is of the type {type(module).__name__}."
        raise Mistake("not-a-module", "It is no torch.nn.Module.", example, "Derive the class from nn.Module.")
    if sample and any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        student(module, *sample)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
                parameter.normal_(std=gain * parameter.shape[-1] ** -0.5)
    return module.eval()


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


def differing(name: str, sentence: str, example: str, first: Tensor, second: Tensor, fix: str) -> Mistake:
    """example: with two {} for numbers of the tensors from the first difference on, with enough digits."""
    a, b = first.detach().flatten(), second.detach().flatten()
    start = int(((a - b).abs().nan_to_num(1) > 1e-4 * (1 + b.abs())).nonzero()[:1].sum()) // 3 * 3
    pairs = [[show(x[start : start + 3], digits) for x in (a, b)] for digits in range(3, 10)]
    return Mistake(name, sentence, example.format(*next((p for p in pairs if p[0] != p[1]), pairs[-1])), fix)


Formula = Callable[..., Tensor]
# Finding, sentence, formula of the mistake and of the reference.
Variant = tuple[str, str, Formula, Formula]


def diagnose(
    call: Formula,
    references: Iterable[Formula],
    variants: Callable[[], Iterable[Variant]],
    batches: dict[str, tuple[Any, ...]],
    fix: str,
    keep: Callable[..., Tensor] = lambda y, *inputs: y,
) -> bool:
    """Whether a reference gives the results of call. Raises Mistake for the variant that gives them.

    batches: inputs by their description, the smallest first. keep: the results that the reference defines.
    """
    given = [call(*inputs) for inputs in batches.values()]

    def equal(formula: Formula, selected: bool = True) -> bool:
        pairs = zip(given, batches.values(), strict=True)
        if selected:
            return all(same(keep(formula(*inputs), *inputs), keep(y, *inputs)) for y, inputs in pairs)
        return all(same(formula(*inputs), y) for y, inputs in pairs)

    if any(equal(formula) for formula in references):
        return True
    for selected in (False, True):  # results for padding may tell which of two mistakes it is
        for name, sentence, wrong, right in variants():
            if equal(wrong, selected):
                for y, (text, inputs) in zip(given, batches.items(), strict=True):
                    pair = keep(y, *inputs), keep(right(*inputs), *inputs)
                    if not same(*pair):
                        raise differing(name, sentence, f"For {text}, the result is {{}}; right is {{}}.", *pair, fix)
                raise Mistake(name, sentence, f"The results differ for padding only, in {len(given)} batches.", fix)
    return False
