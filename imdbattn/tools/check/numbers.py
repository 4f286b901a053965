"""Numbers that checks compare, and the exceptions with which a check ends."""

from typing import Any

import torch
from torch import Tensor

from imdbattn.tools.check.tables import Mistake, describe


class NotChecked(Exception):
    """The rule does not apply to this solution. The message is the reason."""


class Differs(NotChecked):
    """The solution differs from the sheet, and is defensible. The message says how."""


class NotCompared(NotChecked):
    """The results could not be compared with those of the reference. The message is the reason."""


class StudentError(Exception):
    """Holds an exception that the student's code raised."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same in both default types."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(
        torch.get_default_dtype()
    )


def same(first: Tensor, second: Tensor, tolerance: float = 1e-3) -> bool:
    """Returns whether numbers differ by at most the tolerance times the largest. NaN equals NaN."""
    if first.shape != second.shape:
        return False
    if not second.numel():
        return True
    largest = float(second.detach().nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(first.to(second), second, 0, tolerance * largest, equal_nan=True)


def show(values: Any, digits: int = 3) -> str:
    """Numbers as in [[0.7, 0.4], [0.3, 0.6]]."""
    if isinstance(values, list):
        return f"[{', '.join(show(value, digits) for value in values)}]"
    return f"{0 if abs(values) < 1e-12 else values:.{digits}g}"


def mistake(finding: str, *tensors: Tensor, **values: object) -> Mistake:
    """Returns the finding with the texts of findings.txt. tensors: shown from their first
    difference on, with enough digits.
    """
    flat = [x.detach().flatten().double() for x in tensors]
    start = 0
    if len(flat) > 1 and len(flat[0]) == len(flat[1]):
        is_other = (flat[0] - flat[1]).abs().nan_to_num(1) > 1e-4 * (1 + flat[1].abs())
        start = int(is_other.nonzero()[:1].sum()) // 3 * 3
    numbers: list[str] = []
    for digits in range(3, 10):
        numbers = [show(x[start : start + 3].tolist(), digits) for x in flat]
        if len(set(numbers)) == len(numbers):
            break
    return describe(finding, *numbers, **values)


def mask(*lengths: int, size: int | None = None) -> Tensor:
    """(B, T) bool, True on the words."""
    return torch.arange(size or max(lengths)) < torch.tensor(lengths)[:, None]
