"""The student's part: its kind, how a sheet makes and calls it, and calls with random inputs."""

import inspect
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from imdbattn.tools.check.findings import Mistake, NotChecked, StudentError, mistake
from imdbattn.tools.check.formulas import Comparison, evaluate
from imdbattn.tools.check.numbers import mask, normal
from imdbattn.tools.check.sheets import CallForm, Entry, parameters_of, pattern_of, unknown
from imdbattn.tools.check.tables import SIGNATURES, TABLES, Table

WIDTH, HEADS, HIDDEN, QUERY_WIDTH = 8, 2, 10, 6
# The sizes of a model: words, the width of their vectors, and classes
VOCABULARY, VECTORS, CLASSES = 37, 16, 3
SIZES = {"1": 1, "D": WIDTH, "E": QUERY_WIDTH, "C": CLASSES, "F": 7}
SIZES |= {"L": 2, "S": 4, "V": VOCABULARY}  # a decoder's layers, steps and words
NAMES = {"width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "vocabulary": VOCABULARY}
NAMES |= {"classes": CLASSES, "query_width": QUERY_WIDTH, "key_width": WIDTH}

Namespace = dict[str, Any]  # the names of a file


def vectors_VD() -> Tensor:
    return normal(VOCABULARY, VECTORS)


class Rule(NamedTuple):
    """test: raises Mistake, or returns what holds; None stands for its docstring."""

    name: str
    test: "Callable[[Part], str | None]"
    needs: tuple[str, ...] = ()  # the rules that must hold first
    option: str | None = None  # an argument without which the rule does not apply


class Kind:
    """What a part is, whatever it is called: its signature, its rules, and its formula.

    choosing.py lists the subclasses.
    """

    returns_weights = False  # it may return (result, weights)
    also_called: tuple[str, ...] = ()  # names in --points and --require
    is_model = False  # it is called with tokens
    is_given_lengths = False  # not by the call of the sheet, but by `adapt`
    may_overwrite_first = False  # its first argument, as a function of tensors may
    variants: tuple[dict[str, Any], ...] = ({},)  # combinations of options

    def __init__(self, name: str) -> None:
        self.name = name
        start, _, call = SIGNATURES[name].partition(": ")
        self.is_module = "(" in start
        self.made_with = re.findall(r"(?<=[( ])(\w+)(?=[,)])", start)  # options are omitted
        arguments, _, returned = call.partition(" -> ")
        # Arguments and the letters of their dimensions: {"mask": ["B", "T"]}; only tensors have any
        self.arguments = {
            argument: re.findall(r"\b\w\b", dimensions)
            for argument, dimensions in re.findall(r"(\w+)(?: \(([^)]*)\))?", arguments)
        }
        self.returned = re.findall(r"\b\w\b", returned)

    def rules(self) -> list[Rule]:
        """Those that a part of this kind must hold."""
        raise NotImplementedError

    def compare(self, part: "Part") -> Comparison:
        """Returns the results of the part, beside those of the formula."""
        raise NotImplementedError

    def adapt(self, part: "Part", called: Callable[..., Any], module: Any) -> Callable[..., Any]:
        """Returns a function of this kind's arguments that calls the student's function, or method
        of a module.
        """
        return part.with_kind_arguments(called)


@dataclass(eq=False)
class Part:
    """A class or function that a sheet asks for, as one of its kinds, with one of its calls.

    definition: the class or function. namespace: all names of the file.
    """

    name: str
    definition: Any
    entry: Entry
    kind: Kind
    file: str
    namespace: Namespace
    call_form: CallForm

    @cached_property
    def comparison(self) -> Comparison:
        """As Kind.compare, once."""
        return self.kind.compare(self)

    @property
    def called(self) -> Callable[..., Any]:
        """The function, or the method of the class that is called, without self."""
        method = getattr(self.definition, self.entry.method or "forward", None)
        if isinstance(self.definition, type) and method:
            return partial(method, None)
        return self.definition

    @property
    def line(self) -> str:
        """Where a function, or the method that a class is called with, is defined, such as "line 12
        of cell 3"; "" if that is not in the file.
        """
        code = getattr(getattr(self.called, "func", self.definition), "__code__", None)
        if code is None or not self.file or not code.co_filename.startswith(self.file):
            return ""
        return f"line {code.co_firstlineno}{code.co_filename[len(self.file) :]}"

    def change(self, finding: str, table: Table | None = None) -> str:
        """Returns what to change: what the section says for the finding, or for the whole part.

        table: the section with the finding; by default that of the part.
        """
        texts = (table or TABLES[self.kind.name]).texts
        return texts.get(finding) or self.entry.change or texts.get("change", "")

    @cached_property
    def is_masked(self) -> bool:
        """Whether it is given which words are padding; True if its arguments are unknown."""
        if self.entry.uses_project_signature or self.kind.is_given_lengths:
            return True
        names = parameters_of(self.called)
        for form in self.entry.call_forms:
            has_mask = any(pattern_of(name, form.masks) for name in names)
            if has_mask or unknown(names, form.arguments):
                return True
        return False

    def lengths(self, *lengths: int) -> tuple[int, ...]:
        """These lengths, or the longest for all if the part has no mask."""
        return lengths if self.is_masked else (max(lengths),) * len(lengths)

    def accepts(self, option: str) -> bool:
        parameters = inspect.signature(self.definition).parameters
        return option in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    # --- how a sheet makes and calls it -----------------------------------------------------------

    @cached_property
    def make_expressions(self) -> set[str]:
        """The expressions of what its class is given, such as "heads"."""
        values = self.entry.make
        patterns = [pattern_of(name, values) for name in parameters_of(self.definition)]
        return {str(values[pattern]) for pattern in patterns if pattern}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions, by their letters."""
        if not self.entry.sizes:
            return SIZES
        module = self.build(vectors_VD(), SIZES)
        classes = SIZES["C"] if "classes" in self.make_expressions else class_count(module)
        names = {"it": module, "hidden": hidden_size, "vocabulary": vocabulary, "classes": classes}
        return SIZES | {k: evaluate(size, names) for k, size in self.entry.sizes.items()}

    def build(self, table_VD: Tensor, sizes: dict[str, int], **options: Any) -> Any:
        """Returns the student's module. options: of a model of this project."""
        names: dict[str, Any] = sizes | NAMES | {"vectors": table_VD}
        if self.entry.uses_project_signature:
            return self.definition(*(names[name] for name in self.kind.made_with), **options)
        expressions = self.entry.make
        if self.entry.free and (other := unknown(parameters_of(self.definition), expressions)):
            raise NotChecked(f"It was not checked: it is not known what {other[0]} is.")
        if "D // heads" in self.make_expressions and "heads" not in self.make_expressions:
            names["heads"] = 1  # the class is one head
        settings = Settings(expressions, names)
        return call_with(self.definition, expressions, names | {"settings": settings})

    def with_kind_arguments(self, called: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of the kind's arguments that calls another one as the sheet says."""
        if self.entry.uses_project_signature:
            return called

        def call(*values: Any) -> Any:
            names = dict(zip(self.kind.arguments, values, strict=True))
            add_mask_or_lengths(names)
            y = call_with(called, self.call_form.arguments, names)
            if isinstance(y, tuple) and self.call_form.result == "y":
                y = y[0]
            return evaluate(self.call_form.result, names | {"y": y})

        return call

    # --- calls with random parameters and inputs --------------------------------------------------

    def inputs(self, *lengths: int, seed: int = 0) -> list[Tensor]:
        """Returns the arguments for reviews of these lengths. Padding is random."""
        lengths = self.lengths(*lengths)
        sizes = self.sizes | {"B": len(lengths), "T": max(lengths), "Q": max(lengths)}
        made = []
        for index, (name, dimensions) in enumerate(self.kind.arguments.items()):
            shape = [sizes[letter] for letter in dimensions]
            if name == "mask":
                made.append(mask(*lengths).view(shape))
            elif name.endswith("lengths"):
                made.append(torch.tensor(lengths))
            elif name in ("tokens", "target"):
                words = torch.arange(math.prod(shape)) * 5 + 3 + seed
                made.append((words % sizes["V"]).view(shape))
            else:
                made.append(normal(*shape, seed=seed + 100 * index))
        return made

    def net(self, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Any:
        """Returns the function, or a module in evaluation mode with random parameters, which is
        called with the arguments of the kind. vectors, options: of a model.
        """
        if not self.entry.is_module:
            return self.with_kind_arguments(self.definition)
        table_VD = vectors_VD() if vectors is None else vectors
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
        sizes = call_student(lambda: self.sizes)
        module = call_student(self.build, table_VD, sizes, **options)
        if not isinstance(module, nn.Module):
            raise mistake("not-a-module", type=type(module).__name__)
        if not self.entry.uses_project_signature:
            called = getattr(module, self.entry.method or "forward")
            object.__setattr__(module, "forward", self.kind.adapt(self, called, module))
        if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
            self.call(module, *self.inputs(1))
            unused = [k for k, p in module.named_parameters() if nn.parameter.is_lazy(p)]
            if unused:
                name = unused[0].rpartition(".")[0]
                raise mistake("module-not-called", unused=name, names=", ".join(unused[:4]))
        # With a factor of 1, words after plain layers are so similar that mistakes have small
        # effects.
        randomize(module, seed, 1.6 if self.kind.is_model else 1)
        if self.kind.is_model and not self.entry.uses_project_signature:  # it may make its table
            for parameter in module.parameters():
                if parameter.shape == table_VD.shape:
                    parameter.data.copy_(table_VD)
        return module.eval()

    def nets(self) -> Iterator[tuple[str, Any]]:
        """Yields `net` with each combination of options that is implemented, after its text."""
        for options in self.kind.variants:
            if all(map(self.accepts, options)):
                try:
                    made = self.net(**options)
                except StudentError as error:
                    if isinstance(error.args[0], NotImplementedError) and options:
                        continue
                    raise
                yield "".join(f"With {name}={value!r}: " for name, value in options.items()), made

    def call(self, net: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result for the kind's arguments, without weights that may come with it."""
        y = call_student(net, *arguments)
        return y[0] if isinstance(y, tuple) and y and self.kind.returns_weights else y


def call_student(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the student's code with copies of the arguments. Turns exceptions into StudentError."""
    try:
        return call(*(a.clone() if isinstance(a, Tensor) else a for a in arguments), **options)
    except (KeyboardInterrupt, Mistake, NotChecked):
        raise
    except BaseException as error:  # SystemExit is one, too
        raise StudentError(error) from error


def randomize(module: nn.Module, seed: int, gain: float) -> None:
    """Sets the parameters to random numbers, which do not depend on the options of the class."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
            torch.default_generator.manual_seed(seed + zlib.crc32(name.encode()))
            parameter.data.normal_(std=gain * (1, *parameter.squeeze().shape)[-1] ** -0.5)


def call_with(called: Callable[..., Any], expressions: dict[str, Any], names: Namespace) -> Any:
    """Calls a class or function with arguments by name, or in the sheet's order if a required name
    is unknown.

    expressions: pattern of an argument's name -> its value, an expression of the names.
    """
    parameters = parameters_of(called)
    if not parameters or unknown(parameters, expressions):
        return called(*(evaluate(expression, names) for expression in expressions.values()))
    patterns = {name: pattern_of(name, expressions) for name in parameters}
    return called(**{k: evaluate(expressions[key], names) for k, key in patterns.items() if key})


def add_mask_or_lengths(names: dict[str, Any]) -> None:
    """Adds the lengths that belong to a mask, or the mask that belongs to lengths."""
    if "mask" in names:
        names["lengths"] = names["mask"].flatten(1).sum(1)
    elif "lengths" in names:
        positions = torch.arange(names["tokens"].shape[1])
        names["mask"] = positions < names["lengths"][:, None]


def hidden_size(module: nn.Module) -> int:
    """The width of the results of the module's first recurrent layer."""
    for child in module.modules():
        if isinstance(child, nn.RNNBase | nn.RNNCellBase):
            return child.hidden_size * (1 + getattr(child, "bidirectional", False))
    raise NotChecked("It was not checked: the module has no recurrent layer.")


def vocabulary(module: nn.Module) -> int:
    """Returns the words of the module's smallest table."""
    sizes = [child.num_embeddings for child in module.modules() if isinstance(child, nn.Embedding)]
    sizes += [len(table) for table in module.parameters(recurse=False) if table.ndim == 2]
    return min(sizes)


def class_count(module: nn.Module) -> int:
    """2 for a model with a Linear of two outputs and none of CLASSES, and else CLASSES."""
    outputs = [child.out_features for child in module.modules() if isinstance(child, nn.Linear)]
    return 2 if 2 in outputs and CLASSES not in outputs else CLASSES


class Settings:
    """A config for a class: its attributes, or keys, have the values that arguments of these names
    are given.
    """

    def __init__(self, expressions: dict[str, Any], names: dict[str, Any]) -> None:
        self._expressions, self._names = expressions, names

    def __getattr__(self, name: str) -> Any:
        key = pattern_of(name, self._expressions)
        if name.startswith("_") or key is None:
            raise AttributeError(f"it is not known what {name} is")
        return evaluate(self._expressions[key], self._names)

    __getitem__ = __getattr__
