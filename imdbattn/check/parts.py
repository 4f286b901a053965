"""The rules of each part, and the check of all parts of a file."""

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check import classifier, references, rules, source
from imdbattn.check.report import Outcome, result_of
from imdbattn.check.rules import Part, explain, run
from imdbattn.check.source import PARTS
from imdbattn.errors import UserError

REFERENCES = {
    "SelfAttention": references.attention_reference,
    "MultiHeadAttention": references.attention_reference,
    "scaled_dot_product_attention": references.attention_reference,
    "masked_softmax": references.softmax_reference,
    "masked_mean": references.mean_reference,
    "positional_encoding": references.position_reference,
    "test_accuracy": references.accuracy_reference,
    "PlainLayer": references.layer_reference,
    "ResidualLayer": references.layer_reference,
    "AdditiveScore": references.score_reference,
    "BilinearScore": references.score_reference,
    "DecoderAttention": references.decoder_reference,
}
RULES = {p: classifier.RULES if p == "Classifier" else rules.rules_of(REFERENCES[p], PARTS[p]) for p in PARTS}


# --- right implementations, with which the parts that use a wrong one are still checked; they accept other arguments --


def product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(-1)
    return weights @ v, weights


class Attention(nn.Module):
    def __init__(self, width: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        return product(*self.qkv(x).chunk(3, -1), None if mask is None else mask[:, None])[0]


class Layer(Attention):
    def __init__(self, width: int, *_: Any, **__: Any) -> None:
        super().__init__(width)
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        return self.linear(x + super().forward(self.norm(x), mask)).relu()


class Additive(nn.Module):
    def __init__(self, query_width: int, key_width: int, hidden: int) -> None:
        super().__init__()
        self.W, self.U, self.v = nn.Linear(query_width, hidden), nn.Linear(key_width, hidden), nn.Linear(hidden, 1)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.v(torch.tanh(self.W(q)[:, :, None] + self.U(k)[:, None])).squeeze(-1)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def softmax(scores: Tensor, valid_lengths: Tensor) -> Tensor:
    return scores.masked_fill(torch.arange(scores.shape[-1]) >= valid_lengths.view(-1, 1, 1), -1e9).softmax(-1)


INSTEAD = {
    "SelfAttention": Attention,
    "PlainLayer": Layer,
    "ResidualLayer": Layer,
    "AdditiveScore": Additive,
    "masked_mean": mean,
    "masked_softmax": softmax,
    "positional_encoding": references.sinusoids,
}


def instead(part: Part) -> Any:
    """For scaled_dot_product_attention, one that returns the weights, too, if the student's does."""
    if part.name == "scaled_dot_product_attention":
        with suppress(Exception):
            if not isinstance(part.make(*rules.inputs(part, 2)), tuple):
                return lambda *given, **options: product(*given, **options)[0]
        return product
    return INSTEAD.get(part.name, part.make)


# --- all parts of a file ----------------------------------------------------------------------------------------------


def check(file: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Messages: {"parts": names of their checks, "near": names that other parts may have}, and those of rules.run.

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
        whole = Part("file", None, "Python", file, {})
        yield {"result": result_of("file", "import", False, *explain(error, whole))}
        yield {"done": True}
        return
    checks = {part.name: [rule.name for rule in RULES[part.name]] for part in parts}
    yield {"parts": checks, "near": similar(own, PARTS.keys() - checks.keys(), set(names.values()))}
    for part in parts:
        wrong = False
        for message in run(RULES[part.name], part):
            yield message
            wrong |= message.get("result", {}).get("held") is False
        if wrong:
            own[names.get(part.name, part.name)] = instead(part)  # it is not found again in the parts that use it
    yield {"done": True}


def similar(own: dict[str, Any], absent: Iterable[str], used: set[str]) -> dict[str, str]:
    """Parts that are absent -> names of classes and functions of the file that may be meant."""
    mine = [name for name, v in own.items() if callable(v) and getattr(v, "__module__", "") == "_checked_file"]
    plain = {name.replace("_", "").lower(): name for name in mine if name not in PARTS and name not in used}
    found = {part: difflib.get_close_matches(part.replace("_", "").lower(), plain, 1, 0.75) for part in absent}
    return {part: plain[names[0]] for part, names in found.items() if names}


def find(own: dict[str, Any], file: str, names: Mapping[str, str]) -> list[Part]:
    """The parts in the order of PARTS. Raises UserError if one of the names, or every part, is missing."""
    for part, name in names.items():
        if not callable(own.get(name)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    makes = {part: own.get(names.get(part, part)) for part in PARTS}
    foreign = [p for p, make in makes.items() if str(getattr(make, "__module__", "")).startswith("torch")]
    makes = {p: make for p, make in makes.items() if callable(make) and (p in names or p not in foreign)}
    if not makes:
        raise UserError(f"{file} has none of {', '.join(PARTS)}: --stub prints a file with all of them")
    return [part_of(part, make, file, own) for part, make in makes.items()]


def part_of(name: str, make: Any, file: str, own: dict[str, Any]) -> Part:
    """The part, of which MultiHeadAttention may also be called with (x, mask)."""
    signature = PARTS[name]
    forward = getattr(make, "forward", None)
    if name == "MultiHeadAttention" and forward and len(inspect.signature(forward).parameters) <= 3:  # with self
        signature = PARTS["SelfAttention"].replace("SelfAttention(width)", "MultiHeadAttention(width, heads)")
    return Part(name, make, signature, file, own)


def check_parts(makes: dict[str, Any]) -> Outcome:
    """Checks objects of this process by the names of their parts. Raises UserError for another name."""
    outcome, dtype, state = Outcome(), torch.get_default_dtype(), torch.get_rng_state()
    try:
        for name, make in makes.items():
            if name not in PARTS:
                raise UserError(f"{name} is none of {', '.join(PARTS)}: write score(SelfAttention={name})")
            part = part_of(name, make, "", getattr(make, "__globals__", {}))
            outcome.parts[name] = [rule.name for rule in RULES[name]]
            for message in run(RULES[name], part):
                outcome.take(message)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_rng_state(state)
    return outcome
