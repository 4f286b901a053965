"""Reads CSV and TSV, and refuses quotes and backslashes that can be read in two ways."""

import csv
import re
import sys
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

AMBIGUOUS = "a quote may enclose a value or belong to it: write all values in quotes, and double the quotes within them"
ESCAPED = "\udc22"  # stands for an escaped quote; does not occur in text that is decoded from UTF-8


class Row(NamedTuple):
    """A row of a file. line: its first line. quoted: whether it has quotes. single: whether some are not doubled."""

    line: int
    lines: list[str]
    values: list[str]
    quoted: bool
    single: bool


def read_delimited(lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """The header and the rows. Raises ValueError with the lines of a wrong row.

    Without quoting, a text may begin with a quote, and a later one end with a quote: the rows between would be merged.
    Raises ValueError after the last row if each line of a value in quotes is also a row by itself, and either so is
    every line of the file, or another row has, in some column, the same value as each of these lines. Raises it also
    for a value in quotes if every line is a row by itself, and other values have quotes that are not doubled.
    """
    rows = read_rows(lines, delimiter)
    header = next(rows, None)
    if header is None:
        return
    yield header.values
    known: list[set[str]] = [set() for _ in header.values]  # of each column, the first 1000 values
    merged: list[tuple[int, list[set[str]]]] = []  # first line, and values of each column, of lines that may be rows
    by_line = '"' not in "".join(header.lines)  # whether every line is a row by itself
    single, enclosed = False, 0  # whether there are quotes that are not doubled; the first line with a value in quotes
    for row in rows:
        if len(row.values) != len(known):
            raise ValueError(f"line {row.line}: expected {len(known)} columns, got {len(row.values)}")
        if row.quoted and (by_line or len(row.lines) > 1):
            alone = [line for line in row.lines if line.strip("\r\n")]
            if any(line.count(delimiter) != len(known) - 1 for line in alone):
                by_line = False
            else:
                columns = [line.rstrip("\r\n").split(delimiter) for line in alone]
                single = single or row.single
                enclosed = enclosed or (row.line if columns != [row.values] else 0)
                if len(row.lines) > 1:
                    merged.append((row.line, [set(values) for values in zip(*columns, strict=True)]))
        for values, value in zip(known, row.values, strict=True):
            if len(values) < 1000:
                values.add(value)
        yield row.values
    if by_line and single and enclosed:
        raise ValueError(f"line {enclosed}: {AMBIGUOUS}")
    for line, columns in merged:
        if (by_line and len(known) > 1) or any(map(set.issubset, columns, known)):
            raise ValueError(f"line {line}: {AMBIGUOUS}")


def read_rows(lines: Iterator[str], delimiter: str, line: int = 1, escaped: bool = False) -> Iterator[Row]:
    """The rows, without blank lines.

    Quotes within a value in quotes are doubled, or all are `escaped`, by a backslash before them. Other backslashes are
    then either all doubled, as by Python and MySQL, or none is, as by R.
    Raises ValueError with the lines of a wrong row, also if quotes or backslashes are written in several ways.
    """
    csv.field_size_limit(sys.maxsize)
    taken: list[str] = []  # lines of this row
    followers: set[str] = set()  # what follows the backslashes: quotes, backslashes, or "" for all others
    ends: set[bool] = set()  # for values that end with a backslash: whether they are the last of their row
    doubled = single = backslash = False  # whether a row has doubled or single quotes, or a backslash before a quote

    def marked(match: re.Match[str]) -> str:
        followers.add(match[1])
        return ESCAPED if match[1] == '"' else "\\"

    def taking() -> Iterator[str]:
        for text in lines:
            taken.append(text)
            yield re.sub(r'\\([\\"]?)', marked, text) if escaped else text

    try:
        for values in csv.reader(taking(), delimiter=delimiter, strict=True):
            text = taken[0] if len(taken) == 1 else "".join(taken)
            quotes, is_single, quoted = 0, False, '"' in text
            if quoted:
                quotes = sum(2 + 2 * value.count('"') for value in values if '"' in value)  # if they are doubled
                is_single = text.count('"') < quotes
                single, doubled = single or is_single, doubled or quotes > 0
            if "\\" in text:
                backslash, doubled = backslash or r"\"" in text, doubled or r"\\" in text
                if r"\"" not in text:
                    ends.update(n == len(values) for n, value in enumerate(values, 1) if value.endswith("\\"))
            if len(ends) == 2 or {"\\", ""} <= followers or (quotes if escaped else single and backslash):
                raise csv.Error("a backslash may belong to the value, or escape what follows")
            if escaped:
                values = [value.replace(ESCAPED, '"') for value in values]
            if values:
                yield Row(line, taken, values, quoted, is_single)
            line += len(taken)
            taken.clear()
    except csv.Error as error:
        if escaped or doubled or backslash or not any(r"\"" in text for text in taken):
            where = f"lines {line} to {line + len(taken) - 1}" if len(taken) > 1 else f"line {line}"
            raise ValueError(f"{where}: {error}") from error
        yield from read_rows(chain(taken, lines), delimiter, line, escaped=True)
