"""Parts that are compared with a formula: the rules of such a part, and those that are functions of
vectors or of numbers.

The parameters of a student's module are copied into the formula (see weights.py); the mistakes of a
formula are in mistakes/. Shape suffixes: B reviews, T positions, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.findings import Mistake
from imdbattn.tools.check.formulas import Binding, Call, Comparison, Names, identity
from imdbattn.tools.check.numbers import mask, normal
from imdbattn.tools.check.part import WIDTH, Kind, Part, Rule
from imdbattn.tools.check.tables import TABLES

WITH_PADDING = "3 reviews of 2, 4 and 3 words and padding"


def agrees(part: Part) -> None:
    """The result is that of the formula; known mistakes are not looked for."""
    if not part.comparison.is_right():
        raise Mistake("differs-from-reference", "")


def reference(part: Part) -> str:
    """The result is that of the formula. Returns the sentence.

    If not, a mistake of the table is the finding, or else a property that does not hold.
    """
    comparison = part.comparison
    if comparison.is_right():
        return comparison.table.texts["holds"]
    finding = comparison.finding()
    is_unnamed = comparison.known is None and isinstance(finding, Mistake)
    if is_unnamed and any(part.kind.arguments.values()):
        rules.batch(part)
        if isinstance(part.net(), nn.Module):
            rules.gradients(part)
    raise finding


RESULT_RULES = [
    Rule("reference", reference, ("repeatable", "registered")),
    Rule("batch", rules.batch, ("repeatable", "registered", "reference")),
    Rule("finite", rules.finite, ("registered", "reference", "input-unchanged")),
]


class FormulaKind(Kind):
    """A part whose result is that of the formula with the same name in mistakes/."""

    def rules(self) -> list[Rule]:
        if not self.is_module:
            return [*rules.FIRST, *RESULT_RULES]
        needs = ("registered", "reference", "input-unchanged")
        gradients = Rule("gradients", rules.gradients, needs)
        return [*rules.FIRST, rules.REGISTERED, *RESULT_RULES, gradients]

    def examples(self, part: Part) -> Names:
        """Returns the inputs that are compared, by description; the last ones have padding."""
        return {
            "16 reviews of 3 words": part.inputs(*[3] * 16),
            "1 review of 1 word": part.inputs(1),
            "1 review of 2 words": part.inputs(2),
            WITH_PADDING: [x[1:] for x in part.inputs(6, 2, 4, 3)],
        }

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        """Returns what the formula uses besides arguments."""
        return [Binding(self.names())]

    def names(self, **more: Any) -> Call:
        """Returns a function from the arguments of an example to the names that expressions use:
        the arguments by name, and `more`.
        """
        return lambda *arguments: dict(zip(self.arguments, arguments, strict=True)) | more

    def compare(self, part: Part) -> Comparison:
        net = part.net()
        examples = self.examples(part)
        results = [self.result(part, net, arguments) for arguments in examples.values()]
        bindings = self.bindings(part, net, results)
        is_of_words = [*self.arguments] == ["x", "mask"] and "T" in self.returned
        keep: Call = (lambda y, x, words: y[words]) if is_of_words else identity
        table = TABLES[self.name]
        return Comparison(part.name, part.change, table, examples, results, bindings, keep)

    def result(self, part: Part, net: Any, arguments: Any) -> Tensor:
        y: Tensor = part.call(net, *arguments)
        return y.detach()


class MaskedMeanKind(FormulaKind):
    def examples(self, part: Part) -> Names:
        x_BTD, numbers = normal(3, 4, WIDTH), torch.zeros(1, 3, WIDTH)
        x_BTD[0, 1], x_BTD[1, 0, 2], numbers[0, :, 0] = 0, 0, torch.tensor([2.0, 4.0, 30.0])
        text = "the words 2 and 4 and padding of 30 as the first numbers"
        return {
            text: (numbers, mask(2, size=3)),
            "3 reviews of 4, 2 and 3 words": (x_BTD, mask(4, 2, 3)),
        }


class PositionsKind(FormulaKind):
    """A function of numbers."""

    def rules(self) -> list[Rule]:
        return [Rule("reference", reference)]

    def examples(self, part: Part) -> Names:
        sizes = (1, 2), (2, 4), (5, 6), (30, 8)
        return {f"length {length} and width {width}": (length, width) for length, width in sizes}

    def result(self, part: Part, net: Any, arguments: Any) -> Tensor:
        y = part.call(net, *arguments)
        rules.require_shape(y, arguments, f"positional_encoding{arguments}", part)
        return y.detach()


class EncodingKind(FormulaKind):
    """A module that adds positions to vectors."""

    may_overwrite_first = True

    def rules(self) -> list[Rule]:
        return [*rules.FIRST, *RESULT_RULES[:2]]

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        names = lambda x: {"x": x, "length": x.shape[1], "width": x.shape[2]}  # noqa: E731
        return [Binding(names)]
