"""Reads CSV and TSV, whose quotes programs write in three ways.

A value may be enclosed in quotes, and its own quotes are DOUBLED, or ESCAPED by a backslash; or
quotes are characters like others (LITERAL).
"""

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Literal

DOUBLED, ESCAPED, LITERAL = "doubled", "escaped", "literal"
VALUES = {  # forms of values with a quote; of LITERAL, those without meaning in the other ways
    DOUBLED: re.compile(r'"([^"]|"")*"'),
    ESCAPED: re.compile(r'"([^"\\]|\\.)*"'),
    LITERAL: re.compile(r'(?!".*"$|.*\\").*'),
}
# A placeholder for \" within a row; text that is decoded from UTF-8 does not contain it.
ESCAPED_QUOTE = "\udc22"


def read_delimited(lines: Callable[[], Iterator[str]], delimiter: str) -> Iterator[list[str]]:
    """Returns the header and the rows. lines: a function, called several times.

    The file is read in each of the three ways, and is refused if it is a table in none of them. If
    it is also a table without quoting, its quotes must have one meaning: either all values are
    enclosed, or no value spans several lines and all quoted values fit one way. Raises ValueError.
    """
    if not any('"' in line for line in lines()):
        return delimited_rows(lines(), delimiter, LITERAL)
    rows: dict[str, int] = {}  # the number of rows in each way
    errors = {}
    for way in VALUES:
        try:
            rows[way] = sum(1 for _ in delimited_rows(lines(), delimiter, way))
        except ValueError as error:
            errors[way] = error
    if not rows:
        raise errors[DOUBLED]
    ways, where = list(rows), ""
    if LITERAL in ways:
        unlike = {way: first_unlike(lines(), delimiter, VALUES[way]) for way in ways}
        where = f"line {unlike[ways[0]] or 1}: "
        by_line = len(set(rows.values())) == 1
        alike = [way for way in ways if by_line and not unlike[way]]
        ways = [way for way in ways if way in alike or all_enclosed(lines, delimiter, way)]
    if len(ways) != 1:
        raise ValueError(
            f"{where}quotes may enclose values or belong to them: write all values in quotes, and"
            " double the quotes within them"
        )
    return delimited_rows(lines(), delimiter, ways[0])


def first_unlike(lines: Iterable[str], delimiter: str, form: re.Pattern[str]) -> int | None:
    """Returns the number of the first line with a value that has a quote, but not this form."""
    for number, line in enumerate(lines, 1):
        values = line.rstrip("\r\n").split(delimiter) if '"' in line else []
        if any('"' in value and not form.fullmatch(value) for value in values):
            return number
    return None


def all_enclosed(lines: Callable[[], Iterator[str]], delimiter: str, way: str) -> bool:
    """Returns whether all values are enclosed: each quote of the file encloses or is in one."""
    within = 2 if way == DOUBLED else 1
    values = chain.from_iterable(delimited_rows(lines(), delimiter, way))
    count = sum(2 + within * value.count('"') for value in values)
    return way != LITERAL and count == sum(line.count('"') for line in lines())


def delimited_rows(lines: Iterable[str], delimiter: str, way: str) -> Iterator[list[str]]:
    """Yields the header and the rows without blank lines. Raises ValueError naming wrong lines.

    If quotes are escaped, all other backslashes are doubled, as in Python, or none is, as in R.
    """
    csv.field_size_limit(sys.maxsize)
    followers = set()  # what follows the backslashes: quotes, backslashes, or "" for all others

    def marked(match: re.Match[str]) -> str:
        followers.add(match[1])
        return ESCAPED_QUOTE if match[1] == '"' else "\\"

    if way == ESCAPED:
        lines = (re.sub(r'\\([\\"]?)', marked, line) if "\\" in line else line for line in lines)
    quoting: Literal[0, 3] = csv.QUOTE_NONE if way == LITERAL else csv.QUOTE_MINIMAL
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
    first, width = 1, 0
    try:
        for row in reader:
            if row:
                width = width or len(row)
                if len(row) != width:
                    raise csv.Error(f"expected {width} columns, got {len(row)}")
                if way == ESCAPED:
                    if any('"' in value for value in row) or {"\\", ""} <= followers:
                        raise csv.Error("a quote or backslash is not escaped")
                    row = [value.replace(ESCAPED_QUOTE, '"') for value in row]
                yield row
            first = reader.line_num + 1
        if way == ESCAPED and '"' not in followers:
            raise csv.Error("no quote is escaped")
    except csv.Error as error:
        last = reader.line_num
        raise ValueError(
            f"lines {first} to {last}: {error}" if last > first else f"line {first}: {error}"
        ) from error
