"""The texts of the checker: the parts, their references and known mistakes (references.txt), and
findings.txt.
"""

from pathlib import Path
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A section of references.txt. steps: name -> expression; the last one is the result."""

    texts: dict[str, str]
    steps: dict[str, str]
    variants: list[tuple[str, str, dict[str, str]]]  # finding, sentence, steps that are replaced


def lines_of(file: str) -> list[str]:
    lines = Path(__file__).with_name(file).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def read_tables() -> dict[str, Table]:
    tables: dict[str, Table] = {}
    current: list[Table] = []
    for line in filter(None, lines_of("references.txt")):
        *texts, last = line.split(" | ", 2)
        if line.startswith("["):
            current = [
                tables.setdefault(name, Table({}, {}, [])) for name in line.strip("[]").split()
            ]
        elif len(texts) == 1:
            for table in current:
                table.texts[texts[0]] = last
        else:
            steps = dict(step.split(" = ", 1) for step in last.split("; "))
            for table in current:
                table.variants.append((texts[0], texts[1], steps)) if texts else table.steps.update(
                    steps
                )
    return tables


TABLES = read_tables()
PARTS = TABLES["parts"].texts  # the parts that a file may have -> how they are made and called
FINDINGS = {
    name: texts
    for name, *texts in (
        b.split("\n") for b in "\n".join(lines_of("findings.txt")).strip().split("\n\n")
    )
}


def describe(finding: str, *numbers: str, **values: Any) -> list[str]:
    """The finding, and its sentence, example and what to change, of findings.txt."""
    return [finding, *(text.format(*numbers, **values) for text in FINDINGS[finding])]
