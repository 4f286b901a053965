"""Formulas of the tables in mistakes/, computed and compared with results."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.tools.check.numbers import Mistake, NotChecked, NotCompared, mistake, same
from imdbattn.tools.check.part import Part
from imdbattn.tools.check.tables import Table

Names = dict[str, Any]  # what the expressions of a table use
Call = Callable[..., Any]
# finding and sentence of a mistake, or RIGHT or GUESS and ""; names of inputs
Binding = tuple[str, str, Call]
Choice = tuple[str, str, Any]  # the same, or with the names that are not arguments
# a guess may be right, but results that differ from it are not therefore wrong
RIGHT, GUESS = "", "guess"
NOTE = "note"  # instead of a finding: it differs from the sheet, and is defensible
TOOLS: Names = {"torch": torch, "F": F, "inf": float("inf")}


@cache
def compiled(expression: str) -> CodeType:
    return compile(expression, "mistakes", "eval")


def evaluate(steps: dict[str, str], names: Names) -> Any:
    """The last of the steps in their order; None if one cannot be computed for tensors of these
    shapes.
    """
    names = TOOLS | names
    try:
        for name, expression in steps.items():
            names[name] = eval(compiled(expression), names)
    except (RuntimeError, IndexError):
        return None
    return names[name]


def whole(y: Tensor, *given: Any) -> Tensor:
    return y


def words_only(y_BTD: Tensor, x_BTD: Tensor, words_BT: Tensor) -> Tensor:
    return y_BTD[words_BT]


@torch.no_grad()
def diagnose(
    part: Part,
    table: Table,
    results: list[Tensor],
    bindings: Iterable[Binding],
    examples: Names,
    keep: Call = whole,
    known: bool = True,
    padded: str = "",
) -> Exception | None:
    """None if the reference gives the results. Raises Mistake for the variant that gives them.

    Otherwise returns the exception: the Mistake that they differ, or NotChecked if no binding must
    be right.
    examples: the inputs of each result by their description. keep: what the reference defines.
    known: whether to look for known mistakes. padded: the description of the examples with padding:
    a mistake that gives only the other results is one of two, the second with the mask.
    """
    bindings = list(bindings)
    change = part.change or table.texts.get("change", "")
    rights = [bind for finding, _, bind in bindings if finding in (RIGHT, GUESS)]

    @cache
    def names_of(bind: Call, text: str) -> Names:
        return bind(*examples[text])

    def differences(
        steps: dict[str, str], bind: Call, keep: Call = keep, without: str = ""
    ) -> Iterator[Any]:
        """The examples for which the steps give another result, with both results."""
        for (text, given), y in zip(examples.items(), results, strict=True):
            if text == without:
                continue
            z = evaluate(steps, names_of(bind, text))
            if z is None or not same(z := keep(z, *given), y := keep(y, *given)):
                yield text, y, z

    def holds(*given: Any, **named: Any) -> bool:
        return next(differences(*given, **named), None) is None

    def differs(other: str, bind: Call) -> Mistake:
        text, y, z = min(differences(table.steps, bind), key=lambda found: found[1].numel())
        values = {"other": other, "text": text, "part": part.name, "fix": change}
        return mistake("differs-from-reference", y, z, **values)

    if any(holds(table.steps, bind) for bind in rights):
        return None
    if not known:
        return Mistake("differs-from-reference", "", "", "")
    mistakes: list[Any] = [
        (name, text, {}, bind) for name, text, bind in bindings if name not in (RIGHT, GUESS)
    ]
    mistakes += [(*variant, bind) for variant in table.variants for bind in rights]
    matching = (one for one in mistakes if holds(table.steps | one[2], one[3]))
    if first := next(matching, None):  # results for padding may tell which of two mistakes it is
        found = itertools.chain([first], matching)
        exact = (one for one in found if holds(table.steps | one[2], one[3], whole))
        name, sentence, steps, bind = next(exact, first)
        if name == NOTE:
            return NotChecked(f"Differs from the sheet: {sentence}")
        right = bind if steps or not rights else rights[0]
        differ = not holds(table.steps, right)
        example = (
            differs("right", right).args[2] if differ else "All results are those of this mistake."
        )
        raise Mistake(name, sentence, example, change)
    if padded and not any(holds(table.steps, bind, without=padded) for bind in rights):
        for name, sentence, steps, bind in mistakes:
            if name != NOTE and holds(table.steps | steps, bind, without=padded):
                also = f"{sentence} The results with padding differ from this mistake's, too."
                raise Mistake(name, also, differs("right", rights[0]).args[2], change)
    if RIGHT not in [finding for finding, *_ in bindings]:
        return NotCompared(
            "Results were not compared: the parameters of the formula were not recognized."
        )
    _, *rest = differs("the closest that was found", rights[0]).args
    return Mistake(table.texts.get("differs", "differs-from-reference"), *rest)
