"""Modules of a part with random parameters, and calls of them with random inputs."""

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from imdbattn.tools.check.numbers import NotChecked, StudentError, mask, mistake, normal
from imdbattn.tools.check.part import Part, vectors_VD
from imdbattn.tools.check.tables import Mistake


def call_student(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the student's code with copies of the arguments. Turns exceptions into StudentError."""
    try:
        return call(*(a.clone() if isinstance(a, Tensor) else a for a in arguments), **options)
    except (KeyboardInterrupt, Mistake, NotChecked):
        raise
    except BaseException as error:  # SystemExit is one, too
        raise StudentError(error) from error


def inputs(part: Part, *lengths: int, seed: int = 0) -> list[Tensor]:
    """Returns the arguments of a part for reviews of these lengths. Padding is random."""
    lengths = part.lengths(*lengths)
    sizes = part.sizes | {"B": len(lengths), "T": max(lengths), "Q": max(lengths)}
    made = []
    for place, (name, dimensions) in enumerate(part.kind.arguments[:-1]):
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
    """Returns a function, or a module in evaluation mode with random parameters. vectors, options:
    of a model.
    """
    table_VD = vectors_VD() if vectors is None else vectors
    if not part.entry.is_module:
        return part.with_kind_arguments(part.make)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    sizes = call_student(lambda: part.sizes)
    module = call_student(part.build, table_VD, sizes, **options)
    if not isinstance(module, nn.Module):
        raise mistake("not-a-module", type=type(module).__name__)
    if not part.entry.uses_project_signature:
        called = getattr(module, part.entry.method or "forward")
        object.__setattr__(module, "forward", part.kind.adapt(part, called, module))
    if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        call(part, module, *inputs(part, 1))
        unused = [k for k, p in module.named_parameters() if nn.parameter.is_lazy(p)]
        if unused:
            name = unused[0].rpartition(".")[0]
            raise mistake("module-not-called", unused=name, names=", ".join(unused[:4]))
    randomize(module, seed, part.kind.gain)
    if part.kind.is_model and not part.entry.uses_project_signature:  # it may make its own table
        for parameter in module.parameters():
            if parameter.shape == table_VD.shape:
                parameter.data.copy_(table_VD)
    return module.eval()


def randomize(module: nn.Module, seed: int, gain: float = 1.0) -> None:
    """Sets the parameters to random numbers, which do not depend on the options of the class."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
            torch.default_generator.manual_seed(seed + zlib.crc32(name.encode()))
            parameter.data.normal_(std=gain * (1, *parameter.squeeze().shape)[-1] ** -0.5)


def nets(part: Part) -> Iterator[tuple[str, Any]]:
    """Yields the module with each combination of options that is implemented, and their text."""
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
    """Returns the result for the documented arguments, without weights that may come with it."""
    y = call_student(net, *given)
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
        self.made += [x for x in copies(result) if x.is_floating_point()]
        return result


def record(part: Part, net: Callable[..., object], *given: Tensor) -> list[Tensor]:
    """Returns the tensors that the operations of a call make, in their order."""
    with Recorder() as recorder:
        call(part, net, *given)
    return recorder.made


def copies(values: object) -> list[Tensor]:
    """Returns copies of the tensors in a structure of lists, tuples and dicts."""
    return [x.detach().clone() for x in tree_leaves(values) if isinstance(x, Tensor)]


ModuleCall = tuple[nn.Module, list[Tensor], list[Tensor]]


def module_calls(part: Part, net: Callable[..., object], *given: Tensor) -> list[ModuleCall]:
    """Returns the calls of modules within a call: the module, and copies of the tensors that it is
    given and that it returns, without the lists in which they are.
    """
    found: list[ModuleCall] = []

    def keep(module: nn.Module, arguments: Any, named: Any, y: Any) -> None:
        found.append((module, copies((arguments, named)), copies(y)))

    with nn.modules.module.register_module_forward_hook(keep, with_kwargs=True):
        call(part, net, *given)
    return found


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value
