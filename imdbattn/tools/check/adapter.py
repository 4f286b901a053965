"""Makes and calls what a sheet asks for as one of the parts that the rules know."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from imdbattn.tools.check.numbers import NotChecked
from imdbattn.tools.check.sheets import (
    Entry,
    Way,
    arguments_of,
    evaluate,
    meant,
    parameters_of,
    unknown,
)


@dataclass(eq=False)
class Adapter:
    """An entry of a sheet for one class or function, called in one of its ways."""

    entry: Entry
    given: list[str]  # the names of the arguments of the kind of part
    way: Way
    masked: bool
    # of the latest module that was built: sizes of dimensions, and what its class was given
    sizes: dict[str, int] = field(default_factory=dict, init=False)
    asked: set[str] = field(default_factory=set, init=False)

    def build(self, make: Callable[..., Any], sizes: dict[str, int], **names: Any) -> Any:
        """The module that the sheet describes."""
        wanted = self.entry.make
        parameters = parameters_of(make)
        if self.entry.free and (other := unknown(parameters, wanted)):
            raise NotChecked(f"It was not checked: it is not known what {other[0]} is.")
        self.asked = {wanted.get(meant(k, wanted) or "", "") for k in parameters}
        if "D // heads" in self.asked and "heads" not in self.asked:
            sizes = sizes | {"heads": 1}  # the class is one head
        settings = Settings(wanted, sizes | names)
        given, named = arguments_of(parameters, wanted, sizes | names | {"settings": settings})
        module = make(*given, **named)
        if self.entry.sizes and isinstance(module, nn.Module):
            is_asked = "classes" in self.asked
            classes = sizes["C"] if is_asked else class_count(module, sizes["C"])
            found = {"it": module, "hidden": hidden_size, "vocabulary": vocabulary}
            found["classes"] = classes
            self.sizes = {k: evaluate(v, found) for k, v in self.entry.sizes.items()}
        return module

    def attach(self, module: nn.Module) -> None:
        """Lets the module be called as the part that the rules know."""
        called = getattr(module, self.entry.method or "forward")
        object.__setattr__(module, "forward", self.called(called))

    def called(self, called: Callable[..., Any]) -> Callable[..., Any]:
        parameters = parameters_of(called)

        def call(*values: Any) -> Any:
            names = dict(zip(self.given, values, strict=False))
            complete(names)
            given, named = arguments_of(parameters, self.way.arguments, names)
            y = called(*given, **named)
            if isinstance(y, tuple) and self.way.result == "y":
                y = y[0]
            return evaluate(self.way.result, names | {"y": y})

        return call


def complete(names: dict[str, Any]) -> None:
    """Adds the lengths that belong to a mask, or the mask that belongs to lengths."""
    if "mask" in names:
        mask = names["mask"]
        names["lengths"] = mask.sum(-1)
        if mask.ndim == 3 and mask.shape[1] == 1:
            names["lengths"] = mask.sum(-1)[:, 0]
    elif "tokens" in names and "lengths" in names:
        places = torch.arange(names["tokens"].shape[1])
        names["mask"] = places < names["lengths"][:, None]


def hidden_size(module: nn.Module) -> int:
    """That of the module's first recurrent layer."""
    for child in module.modules():
        if isinstance(child, nn.RNNBase | nn.RNNCellBase):
            return child.hidden_size
    raise NotChecked("It was not checked: the module has no recurrent layer.")


def vocabulary(module: nn.Module) -> int:
    """The words of the module's smallest table."""
    sizes = [child.num_embeddings for child in module.modules() if isinstance(child, nn.Embedding)]
    sizes += [len(table) for table in module.parameters(recurse=False) if table.ndim == 2]
    return min(sizes)


def class_count(module: nn.Module, classes: int) -> int:
    """2 for a model with a Linear of two outputs and none of so many classes, and else classes."""
    outputs = [child.out_features for child in module.modules() if isinstance(child, nn.Linear)]
    return 2 if 2 in outputs and classes not in outputs else classes


class Settings:
    """What a class is given as its config: attributes whose names mean what names of arguments
    mean.
    """

    def __init__(self, wanted: Mapping[str, str], names: Mapping[str, Any]) -> None:
        self._wanted, self._names = wanted, names

    def __getattr__(self, name: str) -> Any:
        key = meant(name, self._wanted)
        if name.startswith("_") or key is None:
            raise AttributeError(f"it is not known what {name} is")
        return evaluate(self._wanted[key], self._names)
