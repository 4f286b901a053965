"""Reads CSV and TSV, whose quotes programs write in three ways.

A value may be enclosed in quotes, and its own quotes are DOUBLED, or ESCAPED by a backslash; or
quotes are characters like others (LITERAL).
"""

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator
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
    """Returns the header and the rows. lines: a function, called up to six times.

    The file is read in each of the three ways. How it is read then depends on the ways in which it
    is a table:

        none                    it is refused, with the error of DOUBLED
        DOUBLED or ESCAPED      in this way
        DOUBLED and ESCAPED     it is refused
        LITERAL, maybe others   in the only one of these ways in which its quotes have one meaning:
                                either all values are enclosed, or no value spans several lines and
                                all values with quotes have the form of this way; else it is refused

    Raises ValueError for a file that is refused.
    """
    if not any('"' in line for line in lines()):
        return delimited_rows(lines(), delimiter, LITERAL)
    rows, quotes, errors = {}, {}, {}
    for way in VALUES:
        try:
            rows[way], quotes[way] = count_rows_and_quotes(lines(), delimiter, way)
        except ValueError as error:
            errors[way] = error
    if not rows:
        raise errors[DOUBLED]
    ways, where = list(rows), ""
    if LITERAL in rows:
        quotes_of_file, unlike = quotes_in(lines(), delimiter)
        one_row_per_line = len({*rows.values()}) == 1
        enclosed = [way for way in ways if quotes[way] == quotes_of_file]
        alike = [way for way in ways if one_row_per_line and way not in unlike]
        where = next((f"line {unlike[way]}: " for way in ways if way in unlike), "")
        ways = [way for way in ways if way in enclosed or way in alike]
    if len(ways) != 1:
        raise ValueError(
            f"{where}quotes may enclose values or belong to them: write all values in quotes, and"
            " double the quotes within them"
        )
    return delimited_rows(lines(), delimiter, ways[0])


def quotes_in(lines: Iterable[str], delimiter: str) -> tuple[int, dict[str, int]]:
    """Returns the number of quotes and, for each way, the number of the first line with a value
    that has a quote, but not the form of this way.
    """
    count = 0
    unlike: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if '"' in line:
            count += line.count('"')
            values = line.rstrip("\r\n").split(delimiter)
            quoted = [value for value in values if '"' in value]
            for way, form in VALUES.items():
                if way not in unlike and not all(map(form.fullmatch, quoted)):
                    unlike[way] = number
    return count, unlike


def count_rows_and_quotes(lines: Iterable[str], delimiter: str, way: str) -> tuple[int, int]:
    """Returns the number of rows of a file that is read in one way, and of the quotes that it would
    have if all values were enclosed. Raises ValueError if it is not a table.
    """
    rows = quotes = 0
    for row in delimited_rows(lines, delimiter, way):
        rows += 1
        within = sum(value.count('"') for value in row)
        quotes += 2 * len(row) + (2 * within if way == DOUBLED else within)
    return rows, quotes


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
                    raise csv.Error(f"{delimiter!r} separates {len(row)} columns, not {width}")
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
