"""Formulas of the tables in mistakes/, computed and compared with results."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.tools.check.affine import Fitted
from imdbattn.tools.check.numbers import Mistake, NotChecked, NotCompared, mistake, same, show
from imdbattn.tools.check.part import Part
from imdbattn.tools.check.tables import Table, Variant

Names = dict[str, Any]  # what the expressions of a table use
Call = Callable[..., Any]
# finding and sentence of a mistake, or RIGHT or GUESS and ""; names of inputs
Binding = tuple[str, str, Call]
Choice = tuple[str, str, Any]  # the same, or with the names that are not arguments
Candidate = tuple[str, str, dict[str, str], Call]  # a mistake: finding, sentence, steps; bind
# a guess may be right, but results that differ from it are not therefore wrong; rare ones may be
# right, too, but mistakes in them are not looked for
RIGHT, GUESS, RARE = "", "guess", "rare"
NOTE = "note"  # instead of a finding: it differs from the sheet, and is defensible


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


TOOLS: Names = {
    "torch": torch,
    "F": F,
    "inf": float("inf"),
    "factor": factor,
    "ratio": ratio,
    "first_position": first_position,
    "distance": distance,
    "base_of": base_of,
}


@cache
def compiled(expression: str) -> CodeType:
    return compile(expression, "mistakes", "eval")


def evaluate(steps: dict[str, str], names: Names) -> Any:
    """The last of the steps in their order; None if one cannot be computed for tensors of these
    shapes.
    """
    return computed_steps(steps, names).get([*steps][-1])


def computed_steps(steps: dict[str, str], names: Names) -> Names:
    """The names, and the steps up to the first that cannot be computed."""
    names = TOOLS | names
    for name in steps:
        names.pop(name, None)
    with suppress(RuntimeError, IndexError):
        for name, expression in steps.items():
            names[name] = eval(compiled(expression), names)
    return names


def from_first_change(steps: dict[str, str], changes: dict[str, str]) -> dict[str, str]:
    """The steps that differ, from the first one that is changed on."""
    order = [*steps]
    first = min((order.index(name) for name in changes if name in steps), default=0)
    changed = steps | changes
    return {name: changed[name] for name in [*changed][first:]}


def whole(y: Tensor, *given: Any) -> Tensor:
    return y


def words_only(y_BTD: Tensor, x_BTD: Tensor, words_BT: Tensor) -> Tensor:
    return y_BTD[words_BT]


def with_other_fills(table: Table, results: list[Tensor]) -> list[list[Variant]]:
    """The mistakes where masked scores are -inf instead of -1e9, if a result is nan, or 0, as that
    of a query without keys may be then.
    """
    masked = {k: v.replace("-1e9", "-inf") for k, v in table.steps.items() if "-1e9" in v}
    is_nan = any(not bool(y.isfinite().all()) for y in results)
    is_zero = any(bool((y == 0).all(-1).any()) for y in results)
    if not masked or "weights" not in table.steps or not (is_nan or is_zero):
        return []
    nan, zero = [], []
    for finding, sentence, steps in table.variants:
        if finding != NOTE:
            changed = masked | {k: v.replace("-1e9", "-inf") for k, v in steps.items()}
            weights = changed.get("weights", table.steps["weights"])
            nan.append((finding, sentence, changed))
            zero.append((finding, sentence, changed | {"weights": f"({weights}).nan_to_num(0)"}))
    return [nan] * is_nan + [zero] * is_zero


def linear_of(names: Names) -> Fitted | None:
    """The Linear of the formula that is found by its result; None if it has none."""
    return next((one for one in names.values() if isinstance(one, Fitted)), None)


def keeps_its_linear(steps: dict[str, str], names: Names) -> bool:
    """Lets a Linear that is found by its result be that of these steps, those of a mistake.

    Returns whether there is none, or it was found.
    """
    linear = linear_of(names)
    if linear is None:
        return True
    linear.matrix = None
    evaluate(steps, names)
    linear.kept = linear.matrix is not None
    return linear.kept


class Comparison:
    """Results of a part beside those of the reference and of its known mistakes.

    examples: the inputs of each result by their description. keep: what the reference defines. In
    the steps, found is the result itself.
    """

    def __init__(
        self,
        part: Part,
        table: Table,
        results: list[Tensor],
        bindings: Iterable[Binding],
        examples: Names,
        keep: Call = whole,
    ) -> None:
        self.part, self.table, self.examples, self.keep = part, table, examples, keep
        self.bindings, self.results = list(bindings), results
        self.rights = [bind for finding, _, bind in self.bindings if finding in (RIGHT, GUESS)]
        self.named: dict[tuple[Call, str], Names] = {}
        self.computed: dict[tuple[Call, str], Names] = {}

    @cached_property
    def is_right(self) -> bool:
        """Whether the reference gives the results."""
        rare = [bind for finding, _, bind in self.bindings if finding == RARE]
        with torch.no_grad():
            return any(self.holds({}, bind) for bind in (*self.rights, *rare))

    def names_of(self, bind: Call, text: str) -> Names:
        """The names for one of the examples, and its result."""
        if (bind, text) not in self.named:
            place = [*self.examples].index(text)
            names = bind(*self.examples[text]) | {"found": self.results[place]}
            self.named[bind, text] = names
        return self.named[bind, text]

    def right_steps(self, bind: Call, text: str) -> Names:
        """The names, and the steps of the reference."""
        if (bind, text) not in self.computed:
            names = self.names_of(bind, text)
            self.computed[bind, text] = computed_steps(self.table.steps, names)
        return self.computed[bind, text]

    def differences(
        self, changes: dict[str, str], bind: Call, keep: Call, without: str = ""
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The examples for which the changed steps give another result, with both results."""
        steps = from_first_change(self.table.steps, changes) if changes else self.table.steps
        is_changed = bool(changes) and next(iter(steps)) in self.table.steps
        for (text, given), y in zip(self.examples.items(), self.results, strict=True):
            if text == without:
                continue
            names = self.right_steps(bind, text) if is_changed else self.names_of(bind, text)
            z = evaluate(steps, names)
            if z is None or not same(z := keep(z, *given), y := keep(y, *given)):
                yield text, y, z

    def holds(
        self, changes: dict[str, str], bind: Call, keep: Call | None = None, without: str = ""
    ) -> bool:
        """Whether the changed steps give the results, with one of the targets of a Linear."""
        linear = linear_of(self.names_of(bind, next(iter(self.examples))))
        if linear is None:
            return self.agrees(changes, bind, keep, without)
        linear.number = 0
        while not self.agrees(changes, bind, keep, without):
            linear.number += 1
            if linear.number >= linear.count:
                linear.number = 0
                return False
        return True

    def agrees(
        self, changes: dict[str, str], bind: Call, keep: Call | None = None, without: str = ""
    ) -> bool:
        """As holds, with the target that the Linear has now."""
        found = self.differences(changes, bind, keep or self.keep, without)
        return next(found, None) is None

    def differs(self, other: str, bind: Call) -> Mistake:
        found = self.differences({}, bind, self.keep)
        text, y, z = min(found, key=lambda one: one[1].numel())
        change = self.part.change("", self.table)
        values = {"other": other, "text": text, "part": self.part.name, "fix": change}
        return mistake("differs-from-reference", y, z, **values)

    def example(self, steps: dict[str, str], bind: Call) -> str:
        """The smallest example with the right result, or, if this is not known, without it."""
        right = bind if steps or not self.rights else self.rights[0]
        text = next(iter(self.examples))
        is_found = keeps_its_linear(self.table.steps | steps, self.names_of(right, text))
        if is_found and not self.agrees({}, right):
            return str(self.differs("right", right).args[2])
        numbers = show(self.results[0].flatten()[:3].tolist())
        return f"For {text}, the result is {numbers}."

    def mistakes(self) -> Iterator[Candidate]:
        """Those of the bindings, and then those of the table with each right binding."""
        for name, sentence, bind in self.bindings:
            if name not in (RIGHT, GUESS, RARE):
                yield name, sentence, {}, bind
        for variants in (self.table.variants, *with_other_fills(self.table, self.results)):
            for variant in variants:
                for bind in self.rights:
                    yield *variant, bind

    def holding(self, padded: str, near: list[Candidate]) -> Iterator[Candidate]:
        """The mistakes that give the results.

        Those that give all but the results with padding are added to near.
        """
        for one in self.mistakes():
            if self.holds(one[2], one[3], without=padded):
                if not padded or self.holds(one[2], one[3]):
                    yield one
                else:
                    near.append(one)

    def matching(self, padded: str, near: list[Candidate]) -> Candidate | None:
        """The first of those that hold, or one that gives the results for padding, too, which may
        tell them apart.
        """
        found = self.holding(padded, near)
        first = next(found, None)
        if first is None:
            return None
        for one in itertools.chain([first], found):
            if self.holds(one[2], one[3], whole):
                return one
        self.holds(first[2], first[3])  # its Linear is found again
        return first

    @torch.no_grad()
    def diagnose(self, padded: str = "") -> Exception:
        """Raises Mistake for the known mistake that gives the results.

        Otherwise returns the exception: the Mistake that they differ, or NotChecked if no binding
        must be right.
        padded: the description of the examples with padding: a mistake that gives only the other
        results is one of two, the second with the mask.
        """
        near: list[Candidate] = []
        if one := self.matching(padded, near):
            name, sentence, steps, bind = one
            if name == NOTE:
                return NotChecked(f"Differs from the sheet: {sentence}")
            change = self.part.change(name, self.table)
            raise Mistake(name, sentence, self.example(steps, bind), change)
        near = [one for one in near if one[0] != NOTE]
        if near and not any(self.holds({}, bind, without=padded) for bind in self.rights):
            name, sentence, steps, bind = near[0]
            self.holds(steps, bind, without=padded)  # its Linear is found again
            also = f"{sentence} The results with padding differ from this mistake's, too."
            change = self.part.change(name, self.table)
            raise Mistake(name, also, self.example(steps, bind), change)
        if RIGHT not in [finding for finding, *_ in self.bindings]:
            return NotCompared(
                "Results were not compared: the parameters of the formula were not recognized."
            )
        _, *rest = self.differs("the closest that was found", self.rights[0]).args
        return Mistake(self.table.texts.get("differs", "differs-from-reference"), *rest)


def diagnose(
    part: Part,
    table: Table,
    results: list[Tensor],
    bindings: Iterable[Binding],
    examples: Names,
) -> Exception | None:
    """None if the reference gives the results; if not, as Comparison.diagnose."""
    comparison = Comparison(part, table, results, bindings, examples)
    return None if comparison.is_right else comparison.diagnose()
