"""The rules of each part, and the check of all parts of a file."""

import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check import classifier, generic, references, source
from imdbattn.check.core import Part, Result, explain, run
from imdbattn.check.report import Outcome
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
RULES = {p: classifier.RULES if p == "Classifier" else generic.rules(REFERENCES[p], PARTS[p]) for p in PARTS}


class Attention(nn.Module):
    """Replaces a wrong SelfAttention, so that the parts that use it are still checked. It accepts other arguments."""

    def __init__(self, width: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return (scores if mask is None else scores.masked_fill(~mask[:, None], -1e9)).softmax(-1) @ self.v(x)


class Layer(nn.Module):
    """Replaces a wrong PlainLayer or ResidualLayer."""

    def __init__(self, width: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.norm, self.f, self.linear = nn.LayerNorm(width), Attention(width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        return self.linear(x + self.f(self.norm(x), mask)).relu()


class Additive(nn.Module):
    """Replaces a wrong AdditiveScore."""

    def __init__(self, query_width: int, key_width: int, hidden: int) -> None:
        super().__init__()
        self.W, self.U, self.v = nn.Linear(query_width, hidden), nn.Linear(key_width, hidden), nn.Linear(hidden, 1)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.v(torch.tanh(self.W(q)[:, :, None] + self.U(k)[:, None])).squeeze(-1)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def softmax(scores: Tensor, valid_lengths: Tensor) -> Tensor:
    return scores.masked_fill(torch.arange(scores.shape[-1]) >= valid_lengths.view(-1, 1, 1), -1e9).softmax(-1)


def product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, mask)


def product_and_weights(q: Tensor, k: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
    eye = torch.eye(k.shape[-2]).expand(*k.shape[:-1], -1)
    mask = [*others[1:2], *options.values(), None][0]
    return product(q, k, others[0], mask), product(q, k, eye, mask)


def instead(part: Part) -> Any:
    """A right implementation, with which the parts that use a wrong one are still checked."""
    if part.name == "scaled_dot_product_attention":
        try:
            pair = isinstance(part.make(*generic.inputs(part, 2)), tuple)
        except Exception:
            pair = True
        return product_and_weights if pair else product
    return INSTEAD.get(part.name, part.make)


INSTEAD = {"SelfAttention": Attention, "masked_mean": mean, "positional_encoding": references.sinusoids}
INSTEAD |= {"PlainLayer": Layer, "ResidualLayer": Layer, "masked_softmax": softmax, "AdditiveScore": Additive}


def check(file: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Messages: {"parts": names of their checks, "near": names that other parts may have},
    {"doing": [part, check]} before each check, {"result": Result}.

    The last one is {"done": True}, or {"error": message} for a UserError.
    """
    try:
        yield {"doing": ["file", "import"]}
        try:
            own = vars(source.load(file))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            whole = Part("file", None, "Python", file, {})
            yield {"result": Result("file", "import", False, *explain(error, whole))._asdict()}
        else:
            parts = find(own, file, names)
            yield {"parts": {part.name: [rule.name for rule in RULES[part.name]] for part in parts}}
            mine = {
                name: v for name, v in own.items() if getattr(v, "__module__", "") == "_checked_file" and callable(v)
            }
            others = {name.replace("_", "").lower(): name for name in mine.keys() - PARTS.keys() - set(names.values())}
            for absent in PARTS.keys() - {part.name for part in parts}:
                if near := difflib.get_close_matches(absent.replace("_", "").lower(), others, 1, 0.75):
                    yield {"near": {absent: others[near[0]]}}
            for part in parts:
                wrong = False
                for rule, result in run(RULES[part.name], part):
                    yield {"doing": [part.name, rule]} if result is None else {"result": result._asdict()}
                    wrong |= result is not None and result.held is False
                if wrong:  # it is not found again in the parts that use it
                    own[names.get(part.name, part.name)] = instead(part)
        yield {"done": True}
    except UserError as error:
        yield {"error": str(error)}


def find(own: dict[str, Any], file: str, names: Mapping[str, str]) -> list[Part]:
    """The parts in the order of PARTS. Raises UserError if one of the names, or every part, is missing."""
    for part, name in names.items():
        if not callable(own.get(name)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    makes = {part: own.get(names.get(part, part)) for part in PARTS}
    makes = {
        part: make
        for part, make in makes.items()
        if callable(make) and (part in names or not str(getattr(make, "__module__", "")).startswith("torch"))
    }
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
            outcome.results += [result._asdict() for _, result in run(RULES[name], part) if result]
    finally:
        torch.set_default_dtype(dtype)
        torch.set_rng_state(state)
    return outcome
