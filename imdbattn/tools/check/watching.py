"""What happens within a call of a solution: results of operations, and calls of its modules."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from imdbattn.tools.check.part import Part


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


def record(part: Part, net: Callable[..., object], *arguments: Tensor) -> list[Tensor]:
    """Returns the tensors that the operations of a call make, in their order."""
    with Recorder() as recorder:
        part.call(net, *arguments)
    return recorder.made


def copies(values: object) -> list[Tensor]:
    """Returns copies of the tensors in a structure of lists, tuples and dicts."""
    return [x.detach().clone() for x in tree_leaves(values) if isinstance(x, Tensor)]


ModuleCall = tuple[nn.Module, list[Tensor], list[Tensor]]


def module_calls(part: Part, net: Callable[..., object], *arguments: Tensor) -> list[ModuleCall]:
    """Returns the calls of modules within a call: the module, and copies of the tensors that it is
    given and that it returns, without the lists in which they are.
    """
    found: list[ModuleCall] = []

    def keep(module: nn.Module, positional: Any, named: Any, y: Any) -> None:
        found.append((module, copies((positional, named)), copies(y)))

    with nn.modules.module.register_module_forward_hook(keep, with_kwargs=True):
        part.call(net, *arguments)
    return found
