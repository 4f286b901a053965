"""Rules that check a part of a student's file, and their results."""

import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imdbattn.errors import in_line


class Mistake(Exception):
    """Raised by a rule that does not hold, with the finding, sentence, example and fix of a Result."""


class NotChecked(Exception):
    """The rule does not apply to this solution. The message is the reason."""


@dataclass(frozen=True)
class Part:
    """A class or function of the student's file. signature: as documented in the stub."""

    name: str
    make: Any
    signature: str
    file: str


@dataclass(frozen=True)
class Result:
    """The result of a rule.

    held: None if the rule does not apply. finding: the name of the mistake; "blocked" if the rule was not checked
    because a rule that it needs does not hold. sentence: what holds, or what is wrong. example: numbers that show it.
    """

    part: str
    check: str
    held: bool | None
    finding: str | None
    sentence: str
    example: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Rule:
    """test: called with the Part, raises Mistake. The first line of its docstring is the sentence if the rule holds.

    needs: rules that must hold first: names of rules of this part, or "SelfAttention.scale" for one of another part.
    option: an argument without which the rule does not apply.
    """

    name: str
    needs: tuple[str, ...]
    option: str | None
    test: Callable[[Part], None]

    @property
    def sentence(self) -> str:
        return in_line((self.test.__doc__ or "").partition("\n")[0])


# Parts that a part usually calls. If a rule fails for both, it is reported for the part that is called only.
LAYERS = ("PlainLayer", "ResidualLayer")
CALLS = {**dict.fromkeys(LAYERS, ("SelfAttention",)), "Classifier": ("SelfAttention", "masked_mean", *LAYERS)}


class Rules(list[Rule]):
    """The rules of a part. All of them need the first one, which checks the shape, and "repeatable".

    A rule is not checked if a rule of its own part that it needs has failed. If only a rule of another part has failed,
    it is checked, because the part may not use the other; it is blocked if it fails.
    """

    def add(self, name: str, *needs: str, option: str | None = None) -> Callable[[Callable[[Part], None]], Any]:
        def register(test: Callable[[Part], None]) -> Callable[[Part], None]:
            always = [rule.name for rule in self if rule is self[0] or rule.name == "repeatable"]
            self.append(Rule(name, (*always, *needs), option, test))
            return test

        return register

    def run(self, part: Part, failed: set[str]) -> Iterator[tuple[str, Result | None]]:
        """Yields the name of each rule with None before it runs, and with its result afterwards.

        failed: names of the rules that do not hold, as "part.rule"; those of this part are added.
        """
        torch.set_default_dtype(torch.float64)
        for number, rule in enumerate(self):
            yield rule.name, None
            own = {f"{part.name}.{name}" for name in rule.needs if "." not in name} & failed
            below = {name for name in rule.needs if "." in name}
            below = (below | {f"{other}.{rule.name}" for other in CALLS.get(part.name, ())}) & failed
            if rule.option and not accepts(part.make, rule.option):
                reason = f"There are no checks of {rule.option}: {part.name} has no such argument."
                result = Result(part.name, rule.name, None, None, reason)
            elif own:
                result = blocked(part, rule, own)
            else:
                result = attempt(rule, part)
                if number == 0 and not result.held and result.finding != "not-written-yet":
                    torch.set_default_dtype(torch.float32)  # the file may use float32 whatever the input is
                    result = attempt(rule, part)
                if below and result.held is False and result.finding != "not-written-yet":
                    result = blocked(part, rule, below)  # usually a consequence of a mistake that is reported
            if result.held is False:
                failed.add(f"{part.name}.{rule.name}")
            yield rule.name, result


def blocked(part: Part, rule: Rule, by: set[str]) -> Result:
    reason = f"Not checked before {' and '.join(sorted(by))} {'hold' if by - {min(by)} else 'holds'}."
    return Result(part.name, rule.name, False, "blocked", reason)


def accepts(make: Any, *options: str) -> bool:
    """Whether a class or function has these arguments."""
    given = inspect.signature(make).parameters
    return set(options) <= set(given) or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())


def attempt(rule: Rule, part: Part) -> Result:
    torch.default_generator.manual_seed(0)
    try:
        rule.test(part)
    except Mistake as mistake:
        return Result(part.name, rule.name, False, *mistake.args)
    except NotChecked as reason:
        return Result(part.name, rule.name, None, None, in_line(reason))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        return Result(part.name, rule.name, False, *explain(error, part))
    return Result(part.name, rule.name, True, None, rule.sentence)


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


def build(make: Callable[..., Any], *arguments: Any, seed: int = 0, gain: float = 1, **options: Any) -> Any:
    """A module in evaluation mode with random values in all trainable parameters, of standard deviation ~ gain.

    It receives copies of its inputs, so that a module that changes them fails one rule and not many.
    """
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    module = make(*arguments, **options)
    if not isinstance(module, torch.nn.Module):
        example = f"The result of the call is of the type {type(module).__name__}."
        raise Mistake("not-a-module", "It is not a torch.nn.Module.", example, "Derive the class from nn.Module.")
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
                parameter.normal_(std=gain * parameter.shape[-1] ** -0.5)
    module.register_forward_pre_hook(lambda _, inputs: tuple(tensor.clone() for tensor in inputs))
    return module.eval()


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same in both default types."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.get_default_dtype())


def same(first: Tensor, second: Tensor) -> bool:
    """Whether all numbers are equal up to rounding. NaN equals nothing."""
    tolerance = 1e-6 if torch.get_default_dtype() == torch.float64 else 1e-4
    return first.shape == second.shape and bool(((first - second).abs() <= tolerance * (1 + second.abs())).all())


def show(values: Any) -> str:
    """Numbers as in [[0.7, 0.4], [0.3, 0.6]]."""
    if isinstance(values, Tensor):
        values = values.detach().tolist()
    if isinstance(values, list):
        return f"[{', '.join(map(show, values))}]"
    return f"{0 if abs(values) < 1e-12 else values:.3g}"


def require_shape(value: Any, shape: tuple[int, ...], call: str, fix: str) -> None:
    """Raises Mistake unless value is a tensor of floating-point numbers with this shape."""
    if not isinstance(value, Tensor):
        raise Mistake("not-a-tensor", "The result is not a tensor.", f"{call} is a {type(value).__name__}.", fix)
    if tuple(value.shape) != shape:
        example = f"{call} has the shape {tuple(value.shape)}, not {shape}."
        raise Mistake("wrong-shape", "The result has the wrong shape.", example, fix)
    if not value.is_floating_point() or (value.dtype != torch.float64 == torch.get_default_dtype()):
        example = f"{call} has the type {value.dtype}."
        raise Mistake("wrong-dtype", "The result has the wrong type.", example, "Keep the type of the input.")
