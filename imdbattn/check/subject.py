"""Loads a student's file, finds the parts in it, and checks them."""

import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check import PARTS, classifier, functions, generic
from imdbattn.check.attention import attention_reference, layer_reference
from imdbattn.check.rules import Part, Result, Rule, explain, run
from imdbattn.errors import UserError

RULES: dict[str, list[Rule]] = {
    "SelfAttention": generic.module_rules(attention_reference),
    "masked_mean": functions.MEAN_RULES,
    "positional_encoding": functions.POSITION_RULES,
    "PlainLayer": generic.module_rules(layer_reference),
    "ResidualLayer": generic.module_rules(layer_reference),
    "Classifier": classifier.RULES,
    "test_accuracy": functions.ACCURACY_RULES,
}


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


INSTEAD = {"SelfAttention": Attention, "masked_mean": functions.mean, "positional_encoding": functions.sinusoids}
INSTEAD |= {"PlainLayer": Layer, "ResidualLayer": Layer}


def load(file: str) -> ModuleType:
    """The file as a module, whatever its name; it can import files in its folder."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(file).parent))
    module = sys.modules["_checked_file"] = ModuleType("_checked_file")  # dataclasses look it up there
    module.__file__ = file
    SourceFileLoader("_checked_file", file).exec_module(module)
    return module


def find(module: ModuleType, file: str, names: Mapping[str, str]) -> list[Part]:
    """The parts in the order of PARTS. Raises UserError if one of the names, or every part, is missing."""
    for part, name in names.items():
        if not callable(getattr(module, name, None)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    makes = {part: getattr(module, names.get(part, part), None) for part in PARTS}
    parts = [Part(part, make, PARTS[part], file, vars(module)) for part, make in makes.items() if callable(make)]
    if not parts:
        raise UserError(f"{file} has none of {', '.join(PARTS)}: --stub prints a file with all of them")
    return parts


def check(file: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Messages: {"parts": names of their checks}, {"doing": [part, check]} before each check, {"result": Result}.

    The last one is {"done": True}, or {"error": message} for a UserError.
    """
    try:
        yield {"doing": ["file", "import"]}
        try:
            module = load(file)
        except (Exception, SystemExit) as error:
            whole = Part("file", None, "Python", file, {})
            yield {"result": Result("file", "import", False, *explain(error, whole))._asdict()}
        else:
            parts = find(module, file, names)
            yield {"parts": {part.name: [rule.name for rule in RULES[part.name]] for part in parts}}
            for part in parts:
                wrong = False
                for rule, result in run(RULES[part.name], part):
                    yield {"doing": [part.name, rule]} if result is None else {"result": result._asdict()}
                    wrong |= result is not None and result.held is False
                if wrong and part.name in INSTEAD:  # so that it is not found again in the parts that use it
                    setattr(module, names.get(part.name, part.name), INSTEAD[part.name])
            torch.set_default_dtype(torch.float32)
        yield {"done": True}
    except UserError as error:
        yield {"error": str(error)}
