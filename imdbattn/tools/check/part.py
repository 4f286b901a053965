"""The student's part: what kind it is, its arguments, how it is made, and calls of it."""

import inspect
import math
import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError, mask, mistake, normal
from imdbattn.tools.check.tables import SIGNATURES, TABLES, Table

if TYPE_CHECKING:
    from imdbattn.tools.check.formulas import Comparison

WIDTH, HEADS, HIDDEN, QUERY_WIDTH = 8, 2, 10, 6
# of a model: words, the width of their vectors, and classes
VOCABULARY, VECTORS, CLASSES = 37, 16, 3
SIZES = {"1": 1, "D": WIDTH, "E": QUERY_WIDTH, "C": CLASSES, "F": 7}
SIZES |= {"L": 2, "S": 4, "V": VOCABULARY}  # of a decoder: layers, steps, and words
NAMES = {"width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "vocabulary": VOCABULARY}
NAMES |= {"classes": CLASSES, "query_width": QUERY_WIDTH, "key_width": WIDTH}
IN_SHEETS = NAMES | dict.fromkeys(("query_width", "key_width", "value_width"), WIDTH)

Own = dict[str, Any]  # the names of a file


class Rule(NamedTuple):
    """test: raises Mistake; returns the sentence if the rule holds, or None for that of its
    docstring.
    """

    name: str
    test: "Callable[[Part], str | None]"
    needs: tuple[str, ...] = ()  # rules that must hold first
    option: str | None = None  # an argument without which the rule does not apply


class Kind:
    """What a part is, whatever it is called: its signature, its rules, and its formula.

    The subclasses are in kinds.py.
    """

    gain = 1.0  # of the random parameters
    returns_weights = False  # (result, weights) is a result, too
    also_called: tuple[str, ...] = ()  # names in --points and --require
    is_model = False  # it is called with tokens
    before: tuple[str, ...] = ()  # of a decoder: findings, if what comes before it has no effect
    spent: tuple[str, ...] = ()  # arguments that may be changed: a caller does not need them again
    variants: tuple[dict[str, Any], ...] = ({},)  # combinations of options

    def __init__(self, name: str) -> None:
        self.name, self.signature = name, SIGNATURES[name]
        start, _, call = self.signature.partition(": ")
        # names of arguments; of a class
        self.made_with = re.findall(r"\w+", start)[1:] if "(" in start else None
        # the names of the arguments with their dimensions, and last the result's: [("mask", ["B",
        # "T"]), ...]
        self.arguments = [
            (argument, re.findall(r"\w", dimensions))
            for argument, dimensions in re.findall(r"(\w+|->) \(([^)]*)\)", call)
        ]
        # also of arguments that have no dimensions
        self.given = re.sub(r" \([^)]*\)", "", call.partition(" ->")[0]).split(", ")

    def rules(self) -> list[Rule]:
        """Those that a part of this kind must hold."""
        raise NotImplementedError

    def comparison(self, part: "Part") -> "Comparison":
        """The results of the part, beside those of the formula."""
        raise NotImplementedError

    def attach(self, part: "Part", module: Any) -> None:
        """Lets a module that a sheet describes be called as this kind."""
        assert part.adapter is not None
        part.adapter.attach(module)

    def make(self, part: "Part", vectors_VD: Tensor, options: dict[str, Any]) -> Any:
        """The module, without a sheet."""
        return student(part.make, *(NAMES[name] for name in self.made_with or ()), **options)


class Part:
    """A class or function of a file. own: all names of the file.

    adapter: how it is made and called as its kind, if a sheet describes it.
    """

    def __init__(
        self,
        name: str,
        make: Any,
        kind: Kind,
        file: str = "",
        own: Own | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        self.name, self.make, self.kind = name, make, kind
        self.file, self.adapter = file, adapter
        self.others: list[Part] = []  # of the same file
        self.compared: dict[torch.dtype, Comparison] = {}  # by the default type
        self.own = getattr(make, "__globals__", {}) if own is None else own
        self.names, self.arguments = kind.given, kind.arguments

    @property
    def line(self) -> str:
        """Where a function, or the method that a class is called with, is defined, such as "line 12
        of cell 3"; "" if that is not in the file.
        """
        method = self.adapter.entry.method if self.adapter else ""
        code = getattr(getattr(self.make, method or "forward", self.make), "__code__", None)
        if code is None or not self.file or not code.co_filename.startswith(self.file):
            return ""
        return f"line {code.co_firstlineno}{code.co_filename[len(self.file) :]}"

    @property
    def shown(self) -> str:
        """How it is called, in the words of the sheet."""
        return self.adapter.entry.signature if self.adapter else self.kind.signature

    @property
    def result(self) -> list[str]:
        """The dimensions of the result."""
        return self.arguments[-1][1]

    @property
    def is_masked(self) -> bool:
        return not self.adapter or self.adapter.masked

    def change(self, finding: str, table: Table | None = None) -> str:
        """What to change for a finding: what its section says for it, or else for the whole part.

        table: the section with the finding; by default that of the part.
        """
        texts = (table or TABLES[self.kind.name]).texts
        sheets = self.adapter.entry.change if self.adapter else ""
        return texts.get(finding) or sheets or texts.get("change", "")

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions, by their letters."""
        if not self.adapter:
            return SIZES
        if self.adapter.entry.sizes and not self.adapter.sizes:
            student(self.adapter.build, self.make, SIZES | IN_SHEETS, vectors=vectors_VD())
        return SIZES | self.adapter.sizes

    def lengths(self, *lengths: int) -> tuple[int, ...]:
        """These lengths, or the longest for all if the part has no mask."""
        return lengths if self.is_masked else (max(lengths),) * len(lengths)

    def accepts(self, option: str) -> bool:
        given = inspect.signature(self.make).parameters
        kinds = [one.kind for one in given.values()]
        return option in given or inspect.Parameter.VAR_KEYWORD in kinds


def student(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of the student's code for copies of its arguments. Raises StudentError for every
    exception.
    """
    try:
        return call(*(a.clone() if isinstance(a, Tensor) else a for a in arguments), **options)
    except (KeyboardInterrupt, Mistake, NotChecked):
        raise
    except BaseException as error:  # also SystemExit
        raise StudentError(error) from error


def vectors_VD() -> Tensor:
    return normal(VOCABULARY, VECTORS)


# --- calls of a part ------------------------------------------------------------------------------


def inputs(part: Part, *lengths: int, seed: int = 0) -> list[Tensor]:
    """The arguments of a part for reviews of these lengths. Padding is random."""
    lengths = part.lengths(*lengths)
    sizes = part.sizes | {"B": len(lengths), "T": max(lengths), "Q": max(lengths)}
    made = []
    for place, (name, dimensions) in enumerate(part.arguments[:-1]):
        shape = [sizes[letter] for letter in dimensions]
        if name == "mask":
            made.append(mask(*lengths).view(shape))
        elif name.endswith("lengths"):
            made.append(torch.tensor(lengths))
        elif name in ("tokens", "target"):
            words = torch.arange(math.prod(shape)) * 5 + 3 + seed
            made.append((words % sizes["V"]).view(shape))
        else:
            made.append(normal(*shape, seed=seed + 100 * place))
    return made


def net_of(part: Part, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Any:
    """A function, or a module in evaluation mode with random parameters. vectors, options: of a
    model.
    """
    adapter, table_VD = part.adapter, vectors_VD() if vectors is None else vectors
    if adapter and not adapter.entry.is_module:
        return adapter.called(part.make)
    if part.kind.made_with is None and not adapter:
        return part.make
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    if adapter:
        module = student(adapter.build, part.make, part.sizes | IN_SHEETS, vectors=table_VD)
    else:
        module = part.kind.make(part, table_VD, options)
    if not isinstance(module, nn.Module):
        raise mistake("not-a-module", type=type(module).__name__)
    if adapter:
        part.kind.attach(part, module)
    if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        call(part, module, *inputs(part, 1))
        unused = [k for k, p in module.named_parameters() if nn.parameter.is_lazy(p)]
        if unused:
            name = unused[0].rpartition(".")[0]
            raise mistake("module-not-called", unused=name, names=", ".join(unused[:4]))
    randomize(module, seed, part.kind.gain)
    if adapter and part.kind.is_model:
        set_vectors(module, table_VD)
    return module.eval()


def randomize(module: nn.Module, seed: int, gain: float = 1.0) -> None:
    """Gives random numbers to the parameters, the same with other options of the class."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
            torch.default_generator.manual_seed(seed + zlib.crc32(name.encode()))
            parameter.data.normal_(std=gain * (1, *parameter.squeeze().shape)[-1] ** -0.5)


def set_vectors(module: nn.Module, table_VD: Tensor) -> None:
    """Gives the vectors to the embedding, or the parameter, that a model makes itself."""
    for parameter in module.parameters():
        if parameter.shape == table_VD.shape:
            parameter.data.copy_(table_VD)


def nets(part: Part) -> Iterator[tuple[str, Any]]:
    """One for each implemented combination of the options, with their text."""
    for options in part.kind.variants:
        if all(map(part.accepts, options)):
            try:
                made = net_of(part, **options)
            except StudentError as error:
                if isinstance(error.args[0], NotImplementedError) and options:
                    continue
                raise
            yield "".join(f"With {name}={value!r}: " for name, value in options.items()), made


def call(part: Part, net: Callable[..., Any], *given: Any) -> Any:
    """The result for the documented arguments; without the weights that some parts may return,
    too.
    """
    y = student(net, *given)
    return y[0] if isinstance(y, tuple) and y and part.kind.returns_weights else y


class Recorder(TorchDispatchMode):
    """Keeps the tensors that each operation of torch makes within a with block."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports dynamo, which takes seconds

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.made += [x.detach().clone() for x in tensors if x.is_floating_point()]
        return result


def record(part: Part, net: Callable[..., object], *given: Tensor) -> list[Tensor]:
    """The tensors that the operations of a call make, in their order."""
    with Recorder() as recorder:
        call(part, net, *given)
    return recorder.made


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value
