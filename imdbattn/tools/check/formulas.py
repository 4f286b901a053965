"""Formulas of the tables in mistakes/, computed and compared with results."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.tools.check.numbers import Mistake, NotChecked, NotCompared, mistake, same, show
from imdbattn.tools.check.part import Part
from imdbattn.tools.check.tables import Table, Variant

Names = dict[str, Any]  # what the expressions of a table use
Call = Callable[..., Any]
RIGHT = ""
NOTE = "note"  # instead of a finding: it differs from the sheet, and is defensible


class Binding(NamedTuple):
    """names: those that a formula uses, of the arguments of an example. finding: RIGHT, or that of
    a mistake, with its sentence. is_usual: whether mistakes are looked for with these names.
    """

    names: Call
    finding: str = RIGHT
    sentence: str = ""
    is_usual: bool = True


def factor(scores: Tensor, values: Tensor, mask: Tensor, result: Tensor) -> Tensor:
    """The number that the scores are multiplied by, if the result is the sum of the values with the
    softmax of these scores as weights; any number if it is not.
    """
    if not bool(result.isfinite().all()):  # of which LAPACK prints an error
        return torch.tensor(float("nan"))
    weights = torch.linalg.lstsq(values.mT, result.mT, driver="gelsd").solution.mT
    is_word = (mask & torch.ones_like(scores, dtype=torch.bool)).to(scores)
    count = is_word.sum(-1, keepdim=True).clamp(min=1)
    logs = weights.clamp(min=1e-30).log() * is_word
    logs = (logs - logs.sum(-1, keepdim=True) / count) * is_word
    scores = (scores - (scores * is_word).sum(-1, keepdim=True) / count) * is_word
    number = (logs * scores).sum() / scores.square().sum().clamp(min=1e-30)
    return number.where(number.abs() > 1e-6, float("nan"))  # equal weights are another mistake


def ratio(found_BD: Tensor, sum_BD: Tensor, count_B1: Tensor | None = None) -> Tensor:
    """(B, 1), the number that each row of the sum is multiplied by, if the result is a multiple.

    count_B1: the number of words; nan if the result is the same multiple of all means, which the
    Linear after it may undo.
    """
    size_B1 = sum_BD.square().sum(-1, keepdim=True).clamp(min=1e-30)
    number_B1 = (found_BD * sum_BD).sum(-1, keepdim=True) / size_B1
    if count_B1 is None:
        return number_B1
    of_mean_B1 = number_B1 * count_B1
    if same(of_mean_B1, of_mean_B1.mean().expand_as(of_mean_B1)):
        return number_B1 * float("nan")
    return number_B1


def first_position(pe_BTD: Tensor) -> Tensor:
    """The position of the first word, from the columns with the longest wavelength."""
    width = pe_BTD.shape[-1]
    sine, cosine = pe_BTD[0, 0, -2:]
    return (torch.atan2(sine, cosine) * 10000 ** ((width - 2) / width)).round()


def distance(pe_BTD: Tensor) -> Tensor:
    """That between two words, from the columns with the shortest wavelength; 1 for one word."""
    if pe_BTD.shape[1] == 1:
        return torch.tensor(1.0)
    sine, cosine = pe_BTD[0, 1, :2]
    return torch.atan2(sine, cosine)


def base_of(pe_BTD: Tensor) -> Tensor:
    """The number in the place of 10000, from the columns with the longest wavelength."""
    if pe_BTD.shape[1] == 1:
        return torch.tensor(10000.0)
    width = pe_BTD.shape[-1]
    sine, cosine = pe_BTD[0, 1, -2:]
    return torch.atan2(sine, cosine).clamp(min=1e-30) ** (-width / (width - 2))


TOOLS: Names = {"torch": torch, "F": F, "inf": float("inf")}
TOOLS |= {one.__name__: one for one in (factor, ratio, first_position, distance, base_of)}


@cache
def compiled(expression: str) -> CodeType:
    return compile(expression, "mistakes", "eval")


def evaluate(steps: dict[str, str], names: Names) -> Any:
    """The last of the steps in their order; None if one cannot be computed for tensors of these
    shapes.
    """
    names = TOOLS | names
    for name in steps:
        names.pop(name, None)
    with suppress(RuntimeError, IndexError):
        for name, expression in steps.items():
            names[name] = eval(compiled(expression), names)
    return names.get([*steps][-1])


def whole(y: Tensor, *given: Any) -> Tensor:
    return y


def words_only(y_BTD: Tensor, x_BTD: Tensor, words_BT: Tensor) -> Tensor:
    return y_BTD[words_BT]


def with_other_fills(table: Table, results: list[Tensor]) -> list[Variant]:
    """The mistakes where masked scores are -inf instead of -1e9, if a result is nan, or 0, as that
    of a query without keys may be then.
    """
    masked = {k: v.replace("-1e9", "-inf") for k, v in table.steps.items() if "-1e9" in v}
    is_nan = any(not bool(y.isfinite().all()) for y in results)
    is_zero = any(bool((y == 0).all(-1).any()) for y in results)
    if not masked or "weights" not in table.steps or not (is_nan or is_zero):
        return []
    found: list[Variant] = []
    for finding, sentence, steps in table.variants:
        changed = masked | {k: v.replace("-1e9", "-inf") for k, v in steps.items()}
        weights = changed.get("weights", table.steps["weights"])
        zero = changed | {"weights": f"({weights}).nan_to_num(0)"}
        found += [(finding, sentence, changed), (finding, sentence, zero)]
    return found


class Comparison:
    """Results of a part beside those of the formula and of its known mistakes.

    examples: the inputs of each result by their description. keep: what of a result the formula
    defines. is_known: whether one of the right bindings must be that of the part. In the steps,
    found is the result itself.
    """

    def __init__(
        self,
        part: Part,
        table: Table,
        results: list[Tensor],
        bindings: Iterable[Binding],
        examples: Names,
        keep: Call = whole,
        is_known: bool = True,
    ) -> None:
        self.part, self.table, self.results, self.keep = part, table, results, keep
        self.bindings, self.examples, self.is_known = list(bindings), examples, is_known
        self.rights = [one.names for one in self.bindings if one.finding == RIGHT]
        self.usual = [b.names for b in self.bindings if b.finding == RIGHT and b.is_usual]

    @torch.no_grad()
    def is_right(self) -> bool:
        """Whether the formula gives the results."""
        return any(self.holds({}, names) for names in self.rights)

    def differences(
        self, changes: dict[str, str], names: Call, keep: Call | None = None
    ) -> Iterator[tuple[str, Any, Any]]:
        """The examples for which the changed steps give another result, with both results."""
        keep = keep or self.keep
        steps = self.table.steps | changes
        for (text, given), y in zip(self.examples.items(), self.results, strict=True):
            z = evaluate(steps, names(*given) | {"found": y})
            if z is None or not same(z := keep(z, *given), y := keep(y, *given)):
                yield text, y, z

    def holds(self, changes: dict[str, str], names: Call, keep: Call | None = None) -> bool:
        """Whether the changed steps give the results."""
        return next(self.differences(changes, names, keep), None) is None

    def differs(self, other: str, names: Call) -> Mistake:
        found = [one for one in self.differences({}, names) if one[2] is not None]
        text, y, z = min(found, key=lambda one: one[1].numel())
        change = self.part.change("", self.table)
        values = {"other": other, "text": text, "part": self.part.name, "fix": change}
        return mistake("differs-from-reference", y, z, **values)

    def example(self, names: Call) -> str:
        """The smallest example, with the right result if it is known."""
        if next((one for one in self.differences({}, names) if one[2] is not None), None):
            return str(self.differs("right", names).args[2])
        numbers = show(self.results[0].flatten()[:3].tolist())
        return f"For {next(iter(self.examples))}, the result is {numbers}."

    def mistakes(self) -> Iterator[tuple[Variant, Call]]:
        """Those of the table with each right binding, and then those of the bindings."""
        variants = [*self.table.variants, *with_other_fills(self.table, self.results)]
        for variant in variants:
            for names in self.usual:
                yield variant, names
        for names, finding, sentence, _ in self.bindings:
            if finding != RIGHT:
                yield (finding, sentence, {}), names

    def known(self) -> tuple[Variant, Call] | None:
        """The first mistake that gives the results; or one that gives those of padding, too, which
        may tell them apart.
        """
        found = None
        for one in self.mistakes():
            if self.holds(one[0][2], one[1]):
                found = found or one
                if self.keep is whole or self.holds(one[0][2], one[1], whole):
                    return one
        return found

    @torch.no_grad()
    def diagnose(self) -> Exception:
        """The known mistake that gives the results, or else that they differ; NotCompared if no
        binding must be that of the part.
        """
        if one := self.known():
            (finding, sentence, steps), names = one
            if finding == NOTE:
                return NotChecked(f"Differs from the sheet: {sentence}")
            right = names if steps or not self.usual else self.usual[0]
            change = self.part.change(finding, self.table)
            return Mistake(finding, sentence, self.example(right), change)
        if not self.is_known or not self.usual:
            return NotCompared(
                "Results were not compared: the parameters of the formula were not recognized."
            )
        _, *rest = self.differs("that of the formula", self.usual[0]).args
        return Mistake(self.table.texts.get("differs", "differs-from-reference"), *rest)


def diagnose(
    part: Part, table: Table, result: Tensor, names: list[Names], text: str
) -> Exception | None:
    """None if the formula gives this one result with one of the names; if not, as
    Comparison.diagnose.
    """
    bindings = [Binding(lambda one=one: one) for one in names]
    comparison = Comparison(part, table, [result], bindings, {text: ()})
    return None if comparison.is_right() else comparison.diagnose()
