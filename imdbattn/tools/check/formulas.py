"""Expressions of sheets and of the tables in mistakes/, computed and compared with results."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.tools.check.findings import Differs, Mistake, NotCompared, mistake, show
from imdbattn.tools.check.numbers import same
from imdbattn.tools.check.tables import Table, Variant

Names = dict[str, Any]  # what an expression may use
Call = Callable[..., Any]
RIGHT = ""
NOTE = "note"  # instead of a finding: the result differs from the sheet, but is defensible


class Binding(NamedTuple):
    """The values with which a formula is computed.

    names: a function from the arguments of an example to the names that the formula uses. finding:
    RIGHT, or the mistake of using these values, with its sentence. is_usual: whether the mistakes
    of the table are looked for with these names. has_others: whether the part has parameters that
    the formula does not use.
    """

    names: Call
    finding: str = RIGHT
    sentence: str = ""
    is_usual: bool = True
    has_others: bool = False


TOOLS: Names = {"torch": torch, "F": F, "inf": float("inf")}


@cache
def compiled(expression: str) -> CodeType:
    return compile(expression, "expression", "eval")


def evaluate(expression: object, names: Names) -> Any:
    """Returns the value of a Python expression that uses these names."""
    return eval(compiled(str(expression)), TOOLS | names)


def last_step(steps: dict[str, str], names: Names) -> Any:
    """Returns the value of the last step; None if a step cannot be computed with these shapes."""
    names = {name: value for name, value in names.items() if name not in steps}
    with suppress(RuntimeError, IndexError):
        for name, expression in steps.items():
            names[name] = evaluate(expression, names)
    return names.get([*steps][-1])


def identity(y: Tensor, *arguments: Any) -> Tensor:
    return y


@dataclass
class Comparison:
    """Results of a part beside those of the formula and of its known mistakes.

    name, change: of the part. examples: description -> arguments. results: of each example; the
    steps can use them as `found`. keep: returns the numbers of a result that the formula defines.
    """

    name: str
    change: Callable[[str, Table], str]
    table: Table
    examples: Names
    results: list[Tensor]
    bindings: list[Binding]
    keep: Call = identity

    @property
    def rights(self) -> list[Binding]:
        return [binding for binding in self.bindings if binding.finding == RIGHT]

    @property
    def usual(self) -> list[Call]:
        """The names with which known mistakes are looked for."""
        return [binding.names for binding in self.rights if binding.is_usual]

    @torch.no_grad()
    def is_right(self) -> bool:
        """Returns whether the formula gives the results."""
        return any(self.holds({}, binding.names) for binding in self.rights)

    def differences(
        self, changes: dict[str, str], names: Call, keep: Call | None = None
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yields the examples for which the changed steps give another result, and both results."""
        keep = keep or self.keep
        steps = self.table.steps | changes
        for (text, arguments), y in zip(self.examples.items(), self.results, strict=True):
            z = last_step(steps, names(*arguments) | {"found": y})
            if z is None or not same(z := keep(z, *arguments), y := keep(y, *arguments)):
                yield text, y, z

    def holds(self, changes: dict[str, str], names: Call, keep: Call | None = None) -> bool:
        """Returns whether the changed steps give the results."""
        return next(self.differences(changes, names, keep), None) is None

    def differs(self, other: str, names: Call) -> Mistake | None:
        """Returns the finding with the smallest example; None if no right result is known."""
        found = [(text, y, z) for text, y, z in self.differences({}, names) if z is not None]
        if not found:
            return None
        text, y, z = min(found, key=lambda example: example[1].numel())
        values = {"other": other, "text": text, "part": self.name}
        fix = self.change("", self.table)
        return mistake("differs-from-reference", y, z, **values, fix=fix)

    def example(self, names: Call) -> str:
        """Returns the smallest example, with the right result if it is known."""
        if difference := self.differs("right", names):
            return difference.example
        numbers = show(self.results[0].flatten()[:3].tolist())
        return f"For {next(iter(self.examples))}, the result is {numbers}."

    def mistakes(self) -> Iterator[tuple[Variant, Call]]:
        """Yields those of the table with the usual names, and then those of the bindings."""
        yield from itertools.product(self.table.variants, self.usual)
        for binding in self.bindings:
            if binding.finding != RIGHT:
                yield (binding.finding, binding.sentence, {}), binding.names

    @cached_property
    def known(self) -> tuple[Variant, Call] | None:
        """The first mistake that gives all results; if none does, the first that gives those that
        are kept. Results at padding may tell mistakes apart.
        """
        found = None
        for variant, names in self.mistakes():
            if self.holds(variant[2], names):
                found = found or (variant, names)
                if self.holds(variant[2], names, identity):
                    return variant, names
        return found

    @torch.no_grad()
    def finding(self) -> Exception:
        """Returns the known mistake that gives the results, or that they differ; NotCompared if the
        parameters of the part may not be those of the formula.
        """
        if self.known is None:
            found = self.differs("that of the formula", self.usual[0]) if self.usual else None
            if found is None or any(binding.has_others for binding in self.bindings):
                return NotCompared(
                    "Results were not compared: the parameters of the formula were not recognized."
                )
            return replace(found, finding=self.table.texts.get("differs", found.finding))
        (finding, sentence, steps), names = self.known
        if finding == NOTE:
            return Differs(f"Differs from the sheet: {sentence}")
        right = names if steps or not self.usual else self.usual[0]
        change = self.change(finding, self.table)
        return Mistake(finding, sentence, self.example(right), change)
