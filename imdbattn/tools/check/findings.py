"""What is found: the exceptions with which a check ends, and the texts of findings.txt."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path(__file__).parent


@dataclass(eq=False)
class Mistake(Exception):
    """A rule does not hold. fix: what to change."""

    finding: str
    sentence: str
    example: str = ""
    fix: str = ""


class NotChecked(Exception):
    """The rule does not apply to this solution. The message is the reason."""


class Differs(NotChecked):
    """The solution differs from the sheet, and is defensible. The message says how."""


class NotCompared(NotChecked):
    """The results could not be compared with those of the reference. The message is the reason."""


class StudentError(Exception):
    """Holds an exception that the student's code raised."""


def lines_of(*files: Path) -> list[str]:
    """Returns the lines of the files without comments."""
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [line for line in lines if not line.startswith("#")]


def read_findings() -> dict[str, list[str]]:
    """Returns the sentence, the example and what to change of each finding, by its name."""
    found = {}
    for block in "\n".join(lines_of(FOLDER / "findings.txt")).strip().split("\n\n"):
        name, *texts = block.split("\n")
        found[name] = texts
    return found


FINDINGS = read_findings()


def show(values: Any, digits: int = 3) -> str:
    """Numbers as in [[0.7, 0.4], [0.3, 0.6]]."""
    if isinstance(values, list):
        return f"[{', '.join(show(value, digits) for value in values)}]"
    return f"{0 if abs(values) < 1e-12 else values:.{digits}g}"


def mistake(finding: str, *tensors: "Tensor", **values: object) -> Mistake:
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
    texts = [text.format(*numbers, **values) for text in FINDINGS[finding]]
    return Mistake(finding, *texts)
