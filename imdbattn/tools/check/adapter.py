"""Makes and calls what a sheet asks for as one of the parts that the rules know."""

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.tools.check.numbers import NotChecked
from imdbattn.tools.check.sheets import (
    Entry,
    Way,
    arguments_of,
    evaluate,
    meant,
    parameters_of,
    unknown_among,
)


@dataclass(eq=False)
class Adapter:
    """An entry of a sheet for one class or function, called in one of its ways."""

    entry: Entry
    signature: str
    way: Way
    masked: bool
    widths: dict[str, int] = field(default_factory=dict)  # instead of the usual ones
    # of the class: expressions that were found by trial
    made_with: dict[str, str] = field(default_factory=dict)
    takes_vectors: bool = False  # whether it raises an exception for tokens
    unchecked: str = ""  # why the part is not checked by itself
    settled: bool = False  # whether the way is the solution's
    # Of the latest module that was built: sizes of dimensions, the expressions that its class was
    # given, and the vectors of the words if it is given these instead of tokens.
    sizes: dict[str, int] = field(default_factory=dict, init=False)
    asked: set[str] = field(default_factory=set, init=False)
    vectors_VD: Tensor | None = field(default=None, init=False)

    @property
    def given(self) -> list[str]:
        """The names of the arguments of the kind of part."""
        call = self.signature.partition(": ")[2].partition(" ->")[0]
        return re.findall(r"(\w+)(?:,|$| \()", re.sub(r"\([^)]*\)", "(", call))

    def build(self, make: Callable[..., Any], sizes: dict[str, int], **names: Any) -> Any:
        """The module that the sheet describes."""
        if self.unchecked:
            raise NotChecked(self.unchecked)
        wanted = {re.escape(k): v for k, v in self.made_with.items()} | self.entry.make
        parameters = parameters_of(make)
        if self.entry.free and (other := unknown_among(parameters, wanted)):
            raise NotChecked(f"It was not checked: it is not known what {other[0]} is.")
        asked = [wanted.get(meant(k, wanted) or "", "") for k in parameters]
        if "D // heads" in asked and not {"heads", "settings"} & {*asked}:
            sizes = sizes | {"heads": 1}  # the class is one head
        self.asked = {*asked}
        settings = Settings(wanted, sizes | names, self.asked, defaults_of(parameters))
        given, named = arguments_of(parameters, wanted, sizes | names | {"settings": settings})
        module = make(*given, **named)
        is_model = self.given[:1] == ["tokens"] and isinstance(module, nn.Module)
        if is_model and not {"vectors", "vocabulary"} & self.asked:
            is_given_tokens = has_table(module) and not self.takes_vectors
            self.vectors_VD = None if is_given_tokens else names.get("vectors")
        if self.entry.sizes and isinstance(module, nn.Module):
            is_asked = "classes" in self.asked
            classes = sizes["C"] if is_asked else class_count(module, sizes["C"])
            found = {"it": module, "hidden": hidden_size, "classes": classes}
            self.sizes = {k: evaluate(v, found) for k, v in self.entry.sizes.items()}
        return module

    def attach(self, module: nn.Module) -> None:
        """Lets the module be called as the part that the rules know."""
        called = getattr(module, self.entry.method or "forward")
        object.__setattr__(module, "forward", self.called(called))

    def called(self, called: Callable[..., Any]) -> Callable[..., Any]:
        parameters = parameters_of(called)

        def call(*values: Any, **more: Any) -> Any:
            names = dict(zip(self.given, values, strict=False)) | more
            complete(names)
            if self.vectors_VD is not None:
                names["tokens"] = self.vectors_VD[names["tokens"]]
            given, named = arguments_of(parameters, self.way.arguments, names)
            named |= {name: value for name, value in more.items() if name in parameters}
            y = called(*given, **named)
            if isinstance(y, tuple) and self.way.result == "y":
                y = y[0]
            return evaluate(self.way.result, names | {"y": y})

        return call


def complete(names: dict[str, Any]) -> None:
    """Adds the lengths that belong to a mask, or the mask that belongs to lengths."""
    if "mask" in names:
        mask = names["mask"]
        names["lengths"] = None if mask is None else mask.sum(-1)
        if mask is not None and mask.ndim == 3 and mask.shape[1] == 1:
            names["lengths"] = mask.sum(-1)[:, 0]
    elif "tokens" in names and "lengths" in names:
        places = torch.arange(names["tokens"].shape[1])
        names["mask"] = places < names["lengths"][:, None]


def has_table(module: nn.Module) -> bool:
    """Whether a model may look up the vectors of tokens itself."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    is_embedding = any(isinstance(child, nn.Embedding) for child in module.modules())
    return is_embedding or any(x.ndim == 2 for x in tensors)


def hidden_size(module: nn.Module) -> int:
    """That of the module's first recurrent layer."""
    for child in module.modules():
        if isinstance(child, nn.RNNBase | nn.RNNCellBase):
            return child.hidden_size
    raise NotChecked("It was not checked: the module has no recurrent layer.")


def class_count(module: nn.Module, classes: int) -> int:
    """2 for a model with a Linear of two outputs and none of so many classes, and else classes."""
    outputs = [child.out_features for child in module.modules() if isinstance(child, nn.Linear)]
    return 2 if 2 in outputs and classes not in outputs else classes


def defaults_of(parameters: Mapping[str, inspect.Parameter]) -> Any:
    """An object of the class that annotates one of the parameters, such as cfg: Config, if it is
    made without arguments; None if there is none.
    """
    for one in parameters.values():
        if getattr(one.annotation, "__module__", "") == "_checked_file":
            with suppress(Exception):  # it needs arguments
                return one.annotation()
    return None


class UnknownSetting(NotChecked, AttributeError, KeyError):
    """A name that no pattern matches; hasattr and getattr with a default treat it as absent."""


class Settings:
    """What a class is given as its config: attributes, or items, whose names mean what names of
    arguments mean.

    wanted: patterns of names, and their expressions. asked: receives the expressions that are read.
    defaults: an object with the values of other names, or None.
    """

    def __init__(
        self, wanted: Mapping[str, str], names: Mapping[str, Any], asked: set[str], defaults: Any
    ) -> None:
        self._wanted, self._names, self._asked = wanted, names, asked
        self._defaults = defaults

    def __getitem__(self, name: str) -> Any:
        unknown = UnknownSetting(f"It was not checked: it is not known what {name} is.")
        if name.startswith("_"):  # of Python itself, such as __deepcopy__
            raise unknown
        key = meant(name, self._wanted)
        if key is None and hasattr(self._defaults, name):
            return getattr(self._defaults, name)
        if key is None or self._wanted[key] == "settings":
            raise unknown
        self._asked.add(self._wanted[key])
        return evaluate(self._wanted[key], self._names)

    __getattr__ = __getitem__

    def __contains__(self, name: str) -> bool:
        return meant(name, self._wanted) is not None

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)
