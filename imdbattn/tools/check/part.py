"""The student's part: its arguments, how it is made, and calls of it."""

import inspect
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError, mask, mistake, normal
from imdbattn.tools.check.sheets import meant, parameters_of
from imdbattn.tools.check.tables import SIGNATURES, TABLES, Table, change_for

WIDTH, HEADS, HIDDEN, QUERY_WIDTH = 8, 2, 10, 6
# of a Classifier: words, the width of their vectors, and classes
VOCABULARY, VECTORS, CLASSES = 37, 16, 3
# of a Classifier; with 1, plain layers make words so similar that mistakes have small effects
GAIN = 1.6
SIZES = {"1": 1, "D": WIDTH, "E": QUERY_WIDTH, "C": CLASSES, "F": 7}
MADE_WITH = {
    "width": WIDTH,
    "heads": HEADS,
    "query_width": QUERY_WIDTH,
    "key_width": WIDTH,
    "hidden": HIDDEN,
}
NAMES = {"heads": HEADS, "hidden": HIDDEN, "vocabulary": VOCABULARY, "classes": CLASSES}
NAMES |= dict.fromkeys(("query_width", "key_width", "value_width"), WIDTH)
MAY_RETURN_WEIGHTS = ("MultiHeadAttention", "scaled_dot_product_attention", "DecoderAttention")

Own = dict[str, Any]  # the names of a file
OPTIONS: list[dict[str, Any]] = [{}, {"positions": "sinusoidal"}, {"cls": True}]
OPTIONS += [OPTIONS[1] | OPTIONS[2]]


class Part:
    """A class or function of a file. own: all names of the file.

    kind: the part whose rules hold for it, by default that of its name. adapter: how it is made and
    called as that kind, if a sheet describes it.
    """

    def __init__(
        self,
        name: str,
        make: Any,
        file: str = "",
        own: Own | None = None,
        kind: str = "",
        adapter: Adapter | None = None,
    ) -> None:
        self.name, self.make, self.file = name, make, file
        self.kind, self.adapter = kind or name, adapter
        self.others: list[Part] = []  # of the same file
        self.own = getattr(make, "__globals__", {}) if own is None else own
        self.signature = SIGNATURES[self.kind]
        forward = getattr(make, "forward", None)
        given: list[str] = []
        if name == self.kind == "MultiHeadAttention" and not adapter and forward:
            given = [*inspect.signature(forward).parameters][1:]
        if given and (len(given) < 3 or "mask" in given[1]):  # x, mask
            self.signature = SIGNATURES["SelfAttention"].replace(
                "SelfAttention(width)", "MultiHeadAttention(width, heads)"
            )
        start, _, call = self.signature.partition(": ")
        # names of arguments; of a class
        self.made_with = re.findall(r"\w+", start)[1:] if "(" in start else None
        # Names of the arguments with their dimensions, and last the result's: [("mask", ["B",
        # "T"]), ...].
        self.arguments = [
            (argument, re.findall(r"\w", dimensions))
            for argument, dimensions in re.findall(r"(\w+|->) \(([^)]*)\)", call)
        ]

    @property
    def shown(self) -> str:
        """How it is called, in the words of the sheet."""
        return self.adapter.entry.signature if self.adapter else self.signature

    def name_of(self, argument: str) -> str:
        """The solution's own name of an argument, or the documented one if it is given by order."""
        if not self.adapter:
            return argument
        wanted = self.adapter.way.arguments
        called = getattr(self.make, self.adapter.entry.method or "forward", self.make)
        for name in parameters_of(called):
            if re.search(rf"\b{argument}\b", wanted.get(meant(name, wanted) or "", "")):
                return name
        return argument

    def change(self, finding: str, table: Table | None = None) -> str:
        """What to change for a finding, also in the words of the sheet.

        table: the section with the finding; by default that of the part.
        """
        sheets = self.adapter.entry.change if self.adapter else ""
        return change_for(table or TABLES[self.kind], finding, sheets)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions, by their letters."""
        if not self.adapter:
            return SIZES
        if self.adapter.entry.sizes and not self.adapter.sizes:
            student(self.adapter.build, self.make, SIZES | NAMES, vectors=vectors_VD())
        return SIZES | self.adapter.sizes | self.adapter.widths

    def lengths(self, *lengths: int) -> tuple[int, ...]:
        """These lengths, or the longest for all if the part has no mask."""
        if self.adapter and not self.adapter.masked:
            return (max(lengths),) * len(lengths)
        return lengths

    def accepts(self, option: str) -> bool:
        given = inspect.signature(self.make).parameters
        return option in given or any(
            one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values()
        )


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
        elif name == "tokens":
            made.append(
                ((torch.arange(len(lengths) * max(lengths)) * 5 + 3 + seed) % VOCABULARY).view(
                    shape
                )
            )
        else:
            made.append(normal(*shape, seed=seed + 100 * place))
    return made


def with_other_padding(
    part: Part, given: list[Tensor], other: list[Tensor], length: int
) -> list[Tensor]:
    """The arguments with the padding of others after the last review, which has so many words."""
    moved = []
    for (_, letters), x, y in zip(part.arguments, given, other, strict=False):
        if letters[:2] == ["B", "T"] and x.dtype != torch.bool:
            x = x.clone()
            x[-1, length:] = y[-1, length:]
        moved.append(x)
    return moved


def net_of(part: Part, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Any:
    """A function, or a module in evaluation mode with random parameters. vectors, options: of a
    Classifier.
    """
    adapter = part.adapter
    if adapter and not adapter.entry.is_module:
        return adapter.called(part.make)
    if part.made_with is None and not adapter:
        return part.make
    gain, arguments = 1.0, list[Any](MADE_WITH.get(name) for name in part.made_with or ())
    if part.kind in ("Classifier", "Model"):
        gain, arguments = GAIN, [vectors_VD() if vectors is None else vectors, CLASSES]
    if (
        part.kind == "MultiHeadAttention"
        and not adapter
        and "batch_first" in inspect.signature(part.make).parameters
    ):
        options["batch_first"] = True
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    if adapter:
        given = vectors_VD() if vectors is None else vectors
        module = student(adapter.build, part.make, part.sizes | NAMES, vectors=given)
    else:
        module = student(part.make, *arguments, **options)
    if not isinstance(module, nn.Module):
        raise mistake("not-a-module", type=type(module).__name__)
    if adapter:
        adapter.attach(module)
    is_lazy = any(nn.parameter.is_lazy(parameter) for parameter in module.parameters())
    if is_lazy and part.kind == "Decoder":  # it is called first in its own rules
        return module.eval()
    if is_lazy:
        call(part, module, *inputs(part, 1))
        unused = [k for k, p in module.named_parameters() if nn.parameter.is_lazy(p)]
        if unused:
            name = unused[0].rpartition(".")[0]
            raise mistake("module-not-called", unused=name, names=", ".join(unused[:4]))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
            # the same with other options
            torch.default_generator.manual_seed(seed + zlib.crc32(name.encode()))
            parameter.data.normal_(std=gain * (1, *parameter.squeeze().shape)[-1] ** -0.5)
    if adapter and part.kind == "Model":
        set_vectors(module, vectors_VD() if vectors is None else vectors)
    if like_torch(part, module):
        forward = module.forward
        module.forward = lambda *given: forward(*given[:-1], key_padding_mask=~given[-1])[0]
    return module.eval()


def like_torch(part: Part, net: nn.Module) -> bool:
    """Whether it is called as torch.nn.MultiheadAttention, whose key_padding_mask is True on
    padding.
    """
    return (
        part.kind == "MultiHeadAttention"
        and part.adapter is None
        and "key_padding_mask" in inspect.signature(type(net).forward).parameters
    )


def nets(part: Part) -> Iterator[tuple[str, Any]]:
    """One for each implemented combination of the options of a Classifier, with their text."""
    for options in OPTIONS if part.kind == "Classifier" else [{}]:
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
    return y[0] if isinstance(y, tuple) and y and part.kind in MAY_RETURN_WEIGHTS else y


class Watching(TorchDispatchMode):
    """Calls `before` and `after` for each operation of torch within a with block."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports dynamo, which takes seconds

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = self.before((args, kwargs or {}))
        result = operation(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.after(operation.__name__, given, tensors)
        return result

    def before(self, arguments: object) -> list[Any]:
        """Returns what `after` needs of the arguments, which an operation may change."""
        return []

    def after(self, name: str, given: list[Any], results: list[Tensor]) -> None:
        """Keeps what is needed of an operation with its name, as in `add.Tensor`."""
        raise NotImplementedError


class Recorder(Watching):
    """Keeps the tensors that each operation of torch makes, as they are then."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    def after(self, name: str, given: list[Any], results: list[Tensor]) -> None:
        self.made += [x.detach().clone() for x in results if x.is_floating_point()]


def record(part: Part, net: Callable[..., object], *given: Tensor) -> list[Tensor]:
    """The tensors that the operations of a call make, in their order."""
    with Recorder() as recorder:
        call(part, net, *given)
    return recorder.made


def set_vectors(module: nn.Module, table_VD: Tensor) -> None:
    """Gives the vectors to the embedding, or the parameter, that a model makes itself."""
    for parameter in module.parameters():
        if parameter.shape == table_VD.shape:
            parameter.data.copy_(table_VD)


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value
