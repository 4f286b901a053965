"""The tables in mistakes/: parts, the steps of their formulas, and known mistakes."""

from typing import NamedTuple

from imdbattn.tools.check.findings import FOLDER, lines_of

Variant = tuple[str, str, dict[str, str]]  # finding, sentence, steps that are replaced


class Table(NamedTuple):
    """A section of a file in mistakes/. steps: name -> expression; the last one is the result."""

    texts: dict[str, str]
    steps: dict[str, str]
    variants: list[Variant]


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


TABLES = read_tables()
SIGNATURES = TABLES["kinds"].texts  # kinds of parts -> how they are made and called
