"""The rules of each part, and the check of all parts of a file."""

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import imdbattn.nn as own
import imdbattn.tools.check.classifier as classifier
import imdbattn.tools.check.rules as rules
import imdbattn.tools.check.source as source
from imdbattn.errors import UserError
from imdbattn.tools.check.numbers import StudentError
from imdbattn.tools.check.part import Part, inputs, student
from imdbattn.tools.check.references import reference
from imdbattn.tools.check.report import result_of
from imdbattn.tools.check.running import Rule, explain, run
from imdbattn.tools.check.tables import PARTS

FIRST = [
    Rule("shape", rules.shape),
    Rule("repeatable", rules.repeatable),
    Rule("input-unchanged", rules.unchanged),
]
RESULTS = [
    Rule("reference", reference, ("repeatable", "registered")),
    Rule("batch", rules.batch, ("repeatable", "registered", "reference")),
    Rule("finite", rules.finite, ("registered", "reference", "input-unchanged")),
]
REGISTERED = Rule("registered", rules.registered, ("repeatable", "input-unchanged"))
GRADIENTS = Rule("gradients", rules.gradients, ("registered", "reference", "input-unchanged"))
SLOPES = Rule("slopes", rules.slopes, ("reference", "input-unchanged", "gradients"))
FUNCTION = [*FIRST, *RESULTS, SLOPES]
MODULE = [*FIRST, REGISTERED, *RESULTS, GRADIENTS, SLOPES]
CLASSIFIER = [
    *FIRST,
    Rule("logits", classifier.returns_logits, ("repeatable",)),
    Rule("frozen-vectors", classifier.frozen_vectors),
    Rule("ids", classifier.ids, ("repeatable", "frozen-vectors")),
    Rule("mean", classifier.mean, ("ids", "repeatable")),
    Rule("order", classifier.order, ("ids", "repeatable", "mean")),
    Rule("layers", classifier.layers),
    Rule("registered", rules.registered),
    Rule(
        "gradients",
        rules.gradients,
        ("logits", "repeatable", "input-unchanged", "layers", "registered"),
    ),
    Rule(
        "positions", classifier.positions, ("repeatable", "order", "gradients"), option="positions"
    ),
    Rule("cls-trained", classifier.cls_trained, ("repeatable", "ids", "gradients"), option="cls"),
    Rule(
        "cls-read",
        classifier.cls_read,
        ("repeatable", "order", "gradients", "cls-trained"),
        option="cls",
    ),
    Rule("cls-key", classifier.cls_key, ("cls-read",), option="cls"),
    Rule(
        "batch",
        rules.batch,
        ("ids", "repeatable", "mean", "order", "positions", "cls-trained", "cls-read"),
    ),
    Rule("finite", rules.finite, ("batch", "input-unchanged")),
    Rule("slopes", rules.slopes, ("gradients", "frozen-vectors", "cls-trained", "cls-read")),
]


ONE = [Rule("reference", reference)]  # of functions of numbers, or of models
KINDS = {"Classifier": CLASSIFIER, "positional_encoding": ONE, "test_accuracy": ONE}
KINDS |= dict.fromkeys(("masked_mean", "masked_softmax", "scaled_dot_product_attention"), FUNCTION)
RULES = {name: KINDS.get(name, MODULE) for name in PARTS}


class Instead(nn.Module):
    """A right module, with which parts that use a wrong one are still checked; it accepts other
    arguments, too.
    """

    def __init__(self, right: Any, count: int, *sizes: int, **named: Any) -> None:
        super().__init__()
        self.right = right(*[*sizes, *named.values()][:count])

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.right(*[*given, *named.values()][:2])


def by_position(right: Any, *given: Any, **named: Any) -> Any:
    """A right function whose arguments may have other names."""
    return right(*given, *named.values())


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    weights = own.masked_softmax(q @ k.mT * k.shape[-1] ** -0.5, mask)
    return weights @ v, weights


def softmax(scores: Tensor, lengths: Tensor | None = None) -> Tensor:
    return own.masked_softmax(
        scores, None if lengths is None else own.padding_mask(lengths, scores.shape[-1])[:, None]
    )


MODULES = {
    "SelfAttention": own.SelfAttention,
    "PlainLayer": own.PlainLayer,
    "ResidualLayer": own.ResidualLayer,
}
INSTEAD: dict[str, Any] = {name: partial(Instead, right, 1) for name, right in MODULES.items()} | {
    "AdditiveScore": partial(Instead, own.Additive, 3),
    "masked_softmax": partial(by_position, softmax),
    "masked_mean": partial(by_position, own.MeanPooling(1)),
    "positional_encoding": partial(by_position, own.sinusoids),
    "scaled_dot_product_attention": partial(by_position, attention),
}


def instead(part: Part) -> Any:
    """A right part for those that use a wrong one. It returns the weights, too, if the student's
    does.
    """
    right = INSTEAD.get(part.name, part.make)
    with suppress(StudentError):
        is_attention = part.name == "scaled_dot_product_attention"
        if is_attention and not isinstance(student(part.make, *inputs(part, 2)), tuple):
            return lambda *given, **named: right(*given, **named)[0]
    return right


def check(file: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Messages: {"parts": names of their checks, "near": names that other parts may have}, and
    those of running.run.

    The last one is {"done": True}, or {"error": message} for a UserError.
    """
    try:
        yield {"doing": ["file", "import"]}
        own = vars(source.load(file))
        parts = find(own, file, names)
    except UserError as error:
        yield {"error": str(error)}
        return
    except (Exception, SystemExit) as error:
        yield {"result": result_of("file", "import", False, *explain(error, "file", file))}
        yield {"done": True}
        return
    checks = {part.name: [rule.name for rule in RULES[part.name]] for part in parts}
    yield {"parts": checks, "near": similar(own, checks, names)}
    for part in parts:
        wrong = False
        for message in run(RULES[part.name], part):
            yield message
            wrong |= message.get("result", {}).get("held") is False
        if wrong:
            # it is not found again in the parts that use it
            own[names.get(part.name, part.name)] = instead(part)
    yield {"done": True}


def similar(
    own: dict[str, Any], checks: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, str]:
    """Parts that are absent -> names of classes and functions of the file that may be meant."""
    mine = [
        name
        for name, v in own.items()
        if callable(v) and getattr(v, "__module__", "") == "_checked_file"
    ]
    plain = {
        n.replace("_", "").lower(): n for n in mine if n not in PARTS and n not in names.values()
    }
    absent = [part for part in PARTS if part not in checks]
    found = {
        part: difflib.get_close_matches(part.replace("_", "").lower(), plain, 1, 0.75)
        for part in absent
    }
    near = {part: plain[names[0]] for part, names in found.items() if names}
    return {
        part: name
        for part, name in near.items()
        if isinstance(own[name], type) == part[0].isupper()
    }


def find(own: dict[str, Any], file: str, names: Mapping[str, str]) -> list[Part]:
    """The parts in the order of PARTS. Raises UserError if one of the names, or every part, is
    missing.
    """
    for part, name in names.items():
        if not callable(own.get(name)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    makes = {part: own.get(names.get(part, part)) for part in PARTS}
    foreign = [
        p for p, make in makes.items() if str(getattr(make, "__module__", "")).startswith("torch")
    ]
    foreign = [p for p in foreign if not isinstance(makes[p], torch.jit.ScriptFunction)]
    makes = {
        p: make for p, make in makes.items() if callable(make) and (p in names or p not in foreign)
    }
    if not makes:
        raise UserError(
            f"{file} has none of {', '.join(PARTS)}: --stub prints a file with all of them"
        )
    return [Part(name, make, file, own) for name, make in makes.items()]
