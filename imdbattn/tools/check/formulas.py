"""Formulas of the tables in mistakes/, computed and compared with results."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
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
# a guess may be right, but results that differ from it are not therefore wrong; rare ones may be
# right, too, but mistakes in them are not looked for
RIGHT, GUESS, RARE = "", "guess", "rare"
NOTE = "note"  # instead of a finding: it differs from the sheet, and is defensible


def factor(scores: Tensor, values: Tensor, mask: Tensor, result: Tensor) -> Tensor:
    """The number that the scores are multiplied by, if the result is the sum of the values with the
    softmax of these scores as weights; any number if it is not.
    """
    weights = torch.linalg.lstsq(values.mT, result.mT, driver="gelsd").solution.mT
    is_word = (mask & torch.ones_like(scores, dtype=torch.bool)).to(scores)
    count = is_word.sum(-1, keepdim=True).clamp(min=1)
    logs = weights.clamp(min=1e-30).log() * is_word
    logs = (logs - logs.sum(-1, keepdim=True) / count) * is_word
    scores = (scores - (scores * is_word).sum(-1, keepdim=True) / count) * is_word
    return (logs * scores).sum() / scores.square().sum().clamp(min=1e-30)


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


def keeps_its_linear(steps: dict[str, str], names: Names) -> bool:
    """Lets a Linear that is found by its result be that of these steps, those of a mistake.

    Returns whether there is none, or it was found.
    """
    linears = [one for one in names.values() if isinstance(one, Fitted)]
    for linear in linears:
        linear.matrix = None
    evaluate(steps, names)
    for linear in linears:
        linear.kept = linear.matrix is not None
    return all(linear.kept for linear in linears)


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
    In the steps, found is the result itself.
    known: whether to look for known mistakes. padded: the description of the examples with padding:
    a mistake that gives only the other results is one of two, the second with the mask.
    """
    bindings = list(bindings)
    results_of = dict(zip(examples, results, strict=True))
    rights = [bind for finding, _, bind in bindings if finding in (RIGHT, GUESS)]
    rare = [bind for finding, _, bind in bindings if finding == RARE]

    @cache
    def names_of(bind: Call, text: str) -> Names:
        return bind(*examples[text])

    @cache
    def right_steps(bind: Call, text: str) -> Names:
        """The names, and the steps of the reference."""
        return computed_steps(table.steps, names_of(bind, text) | {"found": results_of[text]})

    def differences(
        changes: dict[str, str], bind: Call, keep: Call = keep, without: str = ""
    ) -> Iterator[Any]:
        """The examples for which the changed steps give another result, with both results."""
        steps = from_first_change(table.steps, changes) if changes else table.steps
        for (text, given), y in zip(examples.items(), results, strict=True):
            if text == without:
                continue
            if changes and next(iter(steps)) in table.steps:
                z = evaluate(steps, right_steps(bind, text))
            else:
                z = evaluate(steps, names_of(bind, text) | {"found": y})
            if z is None or not same(z := keep(z, *given), y := keep(y, *given)):
                yield text, y, z

    def holds(*given: Any, **named: Any) -> bool:
        return next(differences(*given, **named), None) is None

    def differs(other: str, bind: Call) -> Mistake:
        text, y, z = min(differences({}, bind), key=lambda found: found[1].numel())
        values = {"other": other, "text": text, "part": part.name, "fix": part.change("", table)}
        return mistake("differs-from-reference", y, z, **values)

    def example(steps: dict[str, str], bind: Call) -> str:
        """The smallest example with the right result, or, if this is not known, without it."""
        right = bind if steps or not rights else rights[0]
        text = next(iter(examples))
        names = names_of(right, text) | {"found": results_of[text]}
        if keeps_its_linear(table.steps | steps, names) and not holds({}, right):
            return str(differs("right", right).args[2])
        return f"For {text}, the result is {show(results_of[text].flatten()[:3].tolist())}."

    if any(holds({}, bind) for bind in (*rights, *rare)):
        return None
    if not known:
        return Mistake("differs-from-reference", "", "", "")
    mistakes: list[Any] = [
        (name, text, {}, bind) for name, text, bind in bindings if name not in (RIGHT, GUESS, RARE)
    ]
    for variants in (table.variants, *with_other_fills(table, results)):
        mistakes += [(*variant, bind) for variant in variants for bind in rights]
    matching = (one for one in mistakes if holds(one[2], one[3]))
    if first := next(matching, None):  # results for padding may tell which of two mistakes it is
        found = itertools.chain([first], matching)
        exact = (one for one in found if holds(one[2], one[3], whole))
        name, sentence, steps, bind = next(exact, first)
        if name == NOTE:
            return NotChecked(f"Differs from the sheet: {sentence}")
        raise Mistake(name, sentence, example(steps, bind), part.change(name, table))
    if padded and not any(holds({}, bind, without=padded) for bind in rights):
        for name, sentence, steps, bind in mistakes:
            if name != NOTE and holds(steps, bind, without=padded):
                also = f"{sentence} The results with padding differ from this mistake's, too."
                raise Mistake(name, also, example(steps, bind), part.change(name, table))
    if RIGHT not in [finding for finding, *_ in bindings]:
        return NotCompared(
            "Results were not compared: the parameters of the formula were not recognized."
        )
    _, *rest = differs("the closest that was found", rights[0]).args
    return Mistake(table.texts.get("differs", "differs-from-reference"), *rest)
