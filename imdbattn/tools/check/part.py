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

from imdbattn.tools.check.numbers import StudentError, mask, mistake, normal
from imdbattn.tools.check.tables import PARTS

WIDTH, HEADS, HIDDEN, QUERY_WIDTH = 8, 2, 10, 6
# of a Classifier: words, the width of their vectors, and classes
VOCABULARY, VECTORS, CLASSES = 37, 16, 3
# of a Classifier; with 1, plain layers make words so similar that mistakes have small effects
GAIN = 1.6
SIZES = {"1": 1, "D": WIDTH, "E": QUERY_WIDTH, "C": CLASSES}
MADE_WITH = {
    "width": WIDTH,
    "heads": HEADS,
    "query_width": QUERY_WIDTH,
    "key_width": WIDTH,
    "hidden": HIDDEN,
}
MAY_RETURN_WEIGHTS = ("MultiHeadAttention", "scaled_dot_product_attention", "DecoderAttention")

OPTIONS: list[dict[str, Any]] = [{}, {"positions": "sinusoidal"}, {"cls": True}]
OPTIONS += [OPTIONS[1] | OPTIONS[2]]


class Part:
    """A class or function of a file. own: all names of the file."""

    def __init__(
        self, name: str, make: Any, file: str = "", own: dict[str, Any] | None = None
    ) -> None:
        self.name, self.make, self.file = name, make, file
        self.own = getattr(make, "__globals__", {}) if own is None else own
        self.signature = PARTS[name]
        forward = getattr(make, "forward", None)
        given = (
            [*inspect.signature(forward).parameters][1:]
            if name == "MultiHeadAttention" and forward
            else []
        )
        if given and (len(given) < 3 or "mask" in given[1]):  # x, mask
            self.signature = PARTS["SelfAttention"].replace(
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        raise StudentError(error) from error


def vectors_VD() -> Tensor:
    return normal(VOCABULARY, VECTORS)


# --- calls of a part ------------------------------------------------------------------------------


def inputs(part: Part, *lengths: int, seed: int = 0) -> list[Tensor]:
    """The arguments of a part for reviews of these lengths. Padding is random."""
    sizes = SIZES | {"B": len(lengths), "T": max(lengths), "Q": max(lengths)}
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


def net_of(part: Part, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Any:
    """A function, or a module in evaluation mode with random parameters. vectors, options: of a
    Classifier.
    """
    if part.made_with is None:
        return part.make
    gain, arguments = 1.0, list[Any](MADE_WITH.get(name) for name in part.made_with)
    if part.name == "Classifier":
        gain, arguments = GAIN, [vectors_VD() if vectors is None else vectors, CLASSES]
    if (
        part.name == "MultiHeadAttention"
        and "batch_first" in inspect.signature(part.make).parameters
    ):
        options["batch_first"] = True
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    module = student(part.make, *arguments, **options)
    if not isinstance(module, nn.Module):
        raise mistake("not-a-module", type=type(module).__name__)
    if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        call(part, module, *inputs(part, 1))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
            # the same with other options
            torch.default_generator.manual_seed(seed + zlib.crc32(name.encode()))
            nn.init.normal_(parameter, std=gain * (1, *parameter.squeeze().shape)[-1] ** -0.5)
    if like_torch(part, module):
        forward = module.forward
        module.forward = lambda *given: forward(*given[:-1], key_padding_mask=~given[-1])[0]
    return module.eval()


def like_torch(part: Part, net: Any) -> bool:
    """Whether it is called as torch.nn.MultiheadAttention, whose key_padding_mask is True on
    padding.
    """
    return (
        part.name == "MultiHeadAttention"
        and "key_padding_mask" in inspect.signature(type(net).forward).parameters
    )


def nets(part: Part) -> Iterator[tuple[str, Any]]:
    """One for each implemented combination of the options of a Classifier, with their text."""
    for options in OPTIONS if part.name == "Classifier" else [{}]:
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
    return y[0] if isinstance(y, tuple) and y and part.name in MAY_RETURN_WEIGHTS else y


class Recorder(TorchDispatchMode):
    """Keeps the tensors that each operation of torch makes, as they are then."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports dynamo, which takes seconds

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.made += [x.detach().clone() for x in tree_leaves(result) if isinstance(x, Tensor)]
        return result


def record(part: Part, net: Any, *given: Tensor) -> list[Tensor]:
    """The tensors that the operations of a call make, in their order."""
    with Recorder() as recorder:
        call(part, net, *given)
    return recorder.made


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value
