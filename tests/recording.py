"""Records training steps on a CPU as a CUDA graph does on a GPU: operations on fixed tensors, which
a replay repeats without Python. Whatever Python computed while they were recorded is frozen.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from imdbattn.nn import fast
from imdbattn.runs import trainer
from imdbattn.tasks import data_module, recorded

READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


class Tape(TorchDispatchMode):
    """Keeps the operations that are made in it. Reading a value raises an exception."""

    def __init__(self, keeps: bool = True):
        super().__init__()
        self.keeps = keeps
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise RuntimeError("a value is read within a step")
        result = func(*args, **(kwargs or {}))
        if self.keeps:
            self.operations.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Repeats the operations: results are written into the tensors of the first time."""
        for func, args, kwargs, result in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tensors_in(result), tensors_in(again), strict=True):
                if not shares_memory(old, new):
                    old.copy_(new)


def tensors_in(result: Any) -> list[Tensor]:
    """Returns the tensors among the results of an operation."""
    results = result if isinstance(result, tuple | list) else [result]
    return [one for one in results if isinstance(one, Tensor)]


def shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class Tapes:
    """The methods of recorded.CudaGraphs for the CPU. recorded: the number of recordings."""

    def __init__(self) -> None:
        self.recorded = 0

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def refusing_reads(self) -> Iterator[None]:
        with Tape(keeps=False):
            yield

    def record(self, work: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        self.recorded += 1
        with Tape() as tape:
            result = work()
        return tape.replay, result


def record_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Tapes:
    """Lets steps be recorded on the CPU, on batches that are made together, as on a GPU."""
    backend = Tapes()
    monkeypatch.setattr(recorded, "CudaGraphs", lambda device: backend)
    monkeypatch.setattr(trainer, "CUDAAccelerator", CPUAccelerator)
    monkeypatch.setattr(data_module, "is_on_gpu", lambda items: True)
    monkeypatch.setattr(fast, "use_blocks", lambda *_: False)
    return backend
