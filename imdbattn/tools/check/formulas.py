"""Expressions of sheets and of the tables in mistakes/, computed and compared with results."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.tools.check.numbers import Differs, NotCompared, mistake, same, show
from imdbattn.tools.check.tables import Mistake, Table, Variant

Names = dict[str, Any]  # what the expressions of a table use
Call = Callable[..., Any]
RIGHT = ""
NOTE = "note"  # instead of a finding: it differs from the sheet, and is defensible


class Binding(NamedTuple):
    """The values with which a formula is computed.

    names: a function from the arguments of an example to the names that the formula uses. finding:
    RIGHT, or the finding of a mistake that these values make, with its sentence. is_usual: whether
    further mistakes are looked for with these names. has_others: whether the part has parameters
    that the formula has not.
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


def identity(y: Tensor, *given: Any) -> Tensor:
    return y


def words_only(y_BTD: Tensor, x_BTD: Tensor, words_BT: Tensor) -> Tensor:
    return y_BTD[words_BT]


@dataclass
class Comparison:
    """Results of a part beside those of the formula and of its known mistakes.

    name, change: of the part. examples: description -> its arguments. results: for each example;
    the steps can use them as `found`. keep: what of a result the formula defines.
    """

    name: str
    change: Callable[[str, Table], str]
    table: Table
    examples: Names
    results: list[Tensor]
    bindings: list[Binding]
    keep: Call = identity

    @property
    def usual(self) -> list[Call]:
        """The names with which known mistakes are looked for."""
        return [one.names for one in self.bindings if one.finding == RIGHT and one.is_usual]

    @torch.no_grad()
    def is_right(self) -> bool:
        """Returns whether the formula gives the results."""
        rights = [one.names for one in self.bindings if one.finding == RIGHT]
        return any(self.holds({}, names) for names in rights)

    def differences(
        self, changes: dict[str, str], names: Call, keep: Call | None = None
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yields the examples for which the changed steps give another result, and both results."""
        keep = keep or self.keep
        steps = self.table.steps | changes
        for (text, given), y in zip(self.examples.items(), self.results, strict=True):
            z = last_step(steps, names(*given) | {"found": y})
            if z is None or not same(z := keep(z, *given), y := keep(y, *given)):
                yield text, y, z

    def holds(self, changes: dict[str, str], names: Call, keep: Call | None = None) -> bool:
        """Returns whether the changed steps give the results."""
        return next(self.differences(changes, names, keep), None) is None

    def differs(self, other: str, names: Call) -> Mistake:
        found = [one for one in self.differences({}, names) if one[2] is not None]
        text, y, z = min(found, key=lambda one: one[1].numel())
        values = {"other": other, "text": text, "part": self.name}
        fix = self.change("", self.table)
        return mistake("differs-from-reference", y, z, **values, fix=fix)

    def example(self, names: Call) -> str:
        """Returns the smallest example, with the right result if it is known."""
        if next((one for one in self.differences({}, names) if one[2] is not None), None):
            return self.differs("right", names).example
        numbers = show(self.results[0].flatten()[:3].tolist())
        return f"For {next(iter(self.examples))}, the result is {numbers}."

    def mistakes(self) -> Iterator[tuple[Variant, Call]]:
        """Those of the table with each right binding, and then those of the bindings."""
        for variant in self.table.variants:
            for names in self.usual:
                yield variant, names
        for one in self.bindings:
            if one.finding != RIGHT:
                yield (one.finding, one.sentence, {}), one.names

    @cached_property
    def known(self) -> tuple[Variant, Call] | None:
        """The first mistake that gives the results; or one that gives those of padding, too, which
        may tell them apart.
        """
        found = None
        for one in self.mistakes():
            if self.holds(one[0][2], one[1]):
                found = found or one
                if self.keep is identity or self.holds(one[0][2], one[1], identity):
                    return one
        return found

    @torch.no_grad()
    def named(self) -> Exception | None:
        """Returns the known mistake that gives the results; None if there is none."""
        if (one := self.known) is None:
            return None
        (finding, sentence, steps), names = one
        if finding == NOTE:
            return Differs(f"Differs from the sheet: {sentence}")
        right = names if steps or not self.usual else self.usual[0]
        change = self.change(finding, self.table)
        return Mistake(finding, sentence, self.example(right), change)

    @torch.no_grad()
    def unnamed(self) -> Exception:
        """That the results differ, or NotCompared if no names must be those of the part."""
        if not self.usual or any(one.has_others for one in self.bindings):
            return NotCompared(
                "Results were not compared: the parameters of the formula were not recognized."
            )
        found = self.differs("that of the formula", self.usual[0])
        return replace(found, finding=self.table.texts.get("differs", found.finding))
