"""The texts of the checker: parts, references, known mistakes (mistakes/), and findings.txt."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent


@dataclass(eq=False)
class Mistake(Exception):
    """A rule does not hold. fix: what to change."""

    finding: str
    sentence: str
    example: str = ""
    fix: str = ""


Variant = tuple[str, str, dict[str, str]]  # finding, sentence, steps that are replaced


class Table(NamedTuple):
    """A section of a file in mistakes/. steps: name -> expression; the last one is the result."""

    texts: dict[str, str]
    steps: dict[str, str]
    variants: list[Variant]


def lines_of(*files: Path) -> list[str]:
    """Returns the lines of the files without comments."""
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [line for line in lines if not line.startswith("#")]


def read_tables() -> dict[str, Table]:
    tables: dict[str, Table] = {}
    current: list[Table] = []
    for line in filter(None, lines_of(*sorted((FOLDER / "mistakes").glob("*.txt")))):
        *texts, last = line.split(" | ", 2)
        if line.startswith("["):
            names = line.strip("[]").split()
            current = [tables.setdefault(name, Table({}, {}, [])) for name in names]
        elif len(texts) == 1:
            for table in current:
                table.texts[texts[0]] = last
        else:
            steps = dict(step.split(" = ", 1) for step in last.split("; "))
            for table in current:
                if texts:
                    table.variants.append((texts[0], texts[1], steps))
                else:
                    table.steps.update(steps)
    return tables


def read_findings() -> dict[str, list[str]]:
    """Returns the sentence, the example and what to change of each finding, by its name."""
    found = {}
    for block in "\n".join(lines_of(FOLDER / "findings.txt")).strip().split("\n\n"):
        name, *texts = block.split("\n")
        found[name] = texts
    return found


TABLES = read_tables()
SIGNATURES = TABLES["kinds"].texts  # kinds of parts -> how they are made and called
FINDINGS = read_findings()


def describe(finding: str, *numbers: str, **values: object) -> Mistake:
    """Returns the finding, with its texts in findings.txt."""
    return Mistake(finding, *(text.format(*numbers, **values) for text in FINDINGS[finding]))
