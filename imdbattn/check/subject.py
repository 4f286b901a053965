"""Loads a student's file and finds the parts in it."""

import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from imdbattn.check import PARTS, classifier, evaluation, layers, mean, positions, self_attention
from imdbattn.check.rules import Part, Result, Rules, explain
from imdbattn.errors import UserError

RULES: dict[str, Rules] = {
    "SelfAttention": self_attention.RULES,
    "masked_mean": mean.RULES,
    "positional_encoding": positions.RULES,
    "PlainLayer": layers.PLAIN,
    "ResidualLayer": layers.RESIDUAL,
    "Classifier": classifier.RULES,
    "test_accuracy": evaluation.RULES,
}


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
    parts = []
    for part, signature in PARTS.items():
        make = getattr(module, names.get(part, part), None)
        if callable(make):
            parts.append(Part(part, make, signature, file))
    if not parts:
        raise UserError(f"{file} has none of {', '.join(PARTS)}: --stub prints a file with all of them")
    return parts


def check(file: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Messages: {"parts": names of their checks}, {"doing": [part, check]} before each check, {"result": Result}.

    The last one is {"done": True}, or {"error": message} for a UserError.
    """
    whole = Part("file", None, "Python", file)
    try:
        yield {"doing": ["file", "import"]}
        try:
            module = load(file)
        except (Exception, SystemExit) as error:
            yield {"result": Result("file", "import", False, *explain(error, whole)).__dict__}
        else:
            failed: set[str] = set()
            parts = find(module, file, names)
            yield {"parts": {part.name: [rule.name for rule in RULES[part.name]] for part in parts}}
            for part in parts:
                for rule, result in RULES[part.name].run(part, failed):
                    yield {"doing": [part.name, rule]} if result is None else {"result": result.__dict__}
        yield {"done": True}
    except UserError as error:
        yield {"error": str(error)}
