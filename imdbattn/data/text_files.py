"""Reading of text files: CSV, TSV, JSON Lines, Parquet, and plain text.

Whatever is wrong with a file raises a UserError whose single line names the file, the place in it and a way out.
"""

import csv
import io
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imdbattn.errors import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
COMPRESSED = (b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # zip, gz, bz2, xz, zst
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
TABLE = "write a header and one row per review, quoted if it holds the delimiter, quotes or line breaks"
EXPECTED = {".csv": TABLE, ".tsv": TABLE, ".parquet": "download or write it again"}
JSON_LINE = 'write one {"text": "...", "label": "..."} per line'
ENCODING = "save it as UTF-8, or set data.encoding_errors=replace"


def suffix_of(path: Path) -> str:
    return path.suffix.lower()


def in_line(message: object) -> str:
    """The start of an error, or of text quoted from a file, as a single line."""
    text = " ".join(str(message).split())[:200]
    return text or (type(message).__name__ if isinstance(message, BaseException) else "")


def printable(path: Path | str) -> str:
    """A path as text; bytes that are not UTF-8 become question marks."""
    return str(path).encode("utf-8", "replace").decode()


def counted(row: int) -> str:
    return f"row {row} (counted from 0)"


def state_of(file: Path) -> str:
    """Size and time of change of a regular file. Raises UserError if it is missing or something else, like a pipe."""
    try:
        state = file.stat()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): remove it, or make it readable") from error
    if not stat.S_ISREG(state.st_mode):  # reading a pipe would wait for ever
        raise UserError(f"{file} cannot be read (it is not a regular file): remove it, or give another path")
    return f"{state.st_size} {state.st_mtime_ns}"


def text_files_below(folder: Path, pattern: str) -> list[Path]:
    """The .txt files that match `pattern`, in aclImdb's numeric order: neighbours are about the same film."""

    def key(file: Path) -> tuple:  # 2_7 before 10_3
        parts = file.stem.split("_")
        return file.parent, [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]

    return sorted((file for file in folder.glob(pattern) if suffix_of(file) == ".txt"), key=key)


# --- text ------------------------------------------------------------------------------------------------------------


def read_text(file: Path, encoding_errors: str = "strict") -> str:
    """A whole text file, with line breaks as \\n. Raises UserError if it cannot be read or decoded."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): remove it, or make it readable") from error
    return decode(content, file, encoding_errors).replace("\r\n", "\n").replace("\r", "\n")


def decode(
    content: bytes,
    name: object,
    encoding_errors: str = "strict",
    way_out: str = ENCODING,
    delimiter: str | None = None,
    byte: int = 0,
    line: int = 0,
) -> str:
    """The text of UTF-8 bytes, without a byte order mark.

    Raises UserError with byte and line for anything else, and for null bytes, which a damaged file has.

    Args:
        name: the file, for the message.
        encoding_errors: `replace` turns invalid bytes and null bytes into U+FFFD instead.
        delimiter: of a file with columns, whose rows may have several lines: the message gives the row, too.
        byte, line: where in the file `content` starts.
    """
    if byte == 0:
        check_start(content, name)
    try:
        text, problem = content.decode("utf-8", encoding_errors), "has a null byte"
        start = content.find(b"\0")
    except UnicodeDecodeError as error:
        text, problem, start = "", "is not UTF-8", error.start
    if encoding_errors == "replace":
        text, start = text.replace("\0", "\ufffd"), -1
    if start >= 0:
        before = content[:start].decode()
        place = f"byte {byte + start}, line {line + 1 + before.count(chr(10))}"
        if delimiter:
            csv.field_size_limit(max(csv.field_size_limit(), len(before) + 1))
            rows = csv.reader(io.StringIO(before + "?", newline=""), delimiter=delimiter)
            row = sum(map(bool, rows)) - 2  # without the header, and this one
            place += f", in {counted(row) if row >= 0 else 'the header'}"
        raise UserError(f"{name} {problem} at {place}: {way_out}")
    return text if byte else text.removeprefix("\ufeff")


def check_start(content: bytes, name: object) -> None:
    """Raises UserError if the first bytes of a file say that it is not text."""
    if content.startswith(COMPRESSED):
        raise UserError(f"{name} is compressed: unpack it first")
    if content.startswith(UTF_16):
        raise UserError(f"{name} is UTF-16: save it as UTF-8")


# --- columns ---------------------------------------------------------------------------------------------------------


def read_columns(file: Path, columns: Mapping[str, str], encoding_errors: str) -> list[list[str | None]]:
    """The values of some columns of a file with one of SUFFIXES, as text; None where there is no value.

    columns: the setting that names a column -> its name.
    Raises UserError for a file that cannot be read or has no rows, and for a missing column.
    """
    suffix = suffix_of(file)
    if suffix not in SUFFIXES:
        raise UserError(f"{file} is none of {', '.join(SUFFIXES)}: write it as one of them")
    with open(file, "rb") as stream:
        check_start(start := stream.read(8), file)
    if not start:
        raise UserError(f"{file} is empty: it should hold reviews and their labels")
    as_json = suffix in (".jsonl", ".json")
    if as_json:
        rows = read_json_lines(file, encoding_errors)
        names, size = list(dict.fromkeys(key for row in rows for key in row)), len(rows)
    else:
        table = read_table(file, encoding_errors, tuple(columns.values()))
        names, size = table.column_names, table.num_rows
    if size == 0:
        raise UserError(f"{file} has a header and no rows: it should hold reviews and their labels")
    found = []
    for setting, column in columns.items():
        if (count := names.count(column)) != 1:
            has = f"{count} columns" if count else "no column"
            raise UserError(f"{file} has {has} '{column}'; it has {in_line(', '.join(names))}: set {setting}")
        try:
            values = [as_text(row.get(column)) for row in rows] if as_json else table[column].cast("string").to_pylist()
        except (ValueError, NotImplementedError) as error:  # pyarrow's errors of a cast, and what is not UTF-8
            check_encoding(file)
            raise UserError(f"{file}: '{column}' is not text or numbers ({in_line(error)}): flatten it") from error
        if encoding_errors == "replace":
            values = [value and value.replace("\0", "\ufffd") for value in values]
        elif row := next((row for row, value in enumerate(values, 1) if value and "\0" in value), 0):
            raise UserError(f"{file}: {counted(row - 1)} has a null byte in '{column}': {ENCODING}")
        found.append(values)
    return found


def read_table(file: Path, encoding_errors: str = "strict", text_columns: tuple[str, ...] = ()) -> Any:
    """A CSV, TSV or Parquet file as a pyarrow table. Raises UserError if it cannot be read.

    text_columns: columns that stay text, even if all values look like numbers.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    suffix = suffix_of(file)
    try:
        if suffix == ".parquet":
            return pa.parquet.read_table(file)
        source: Any = file
        if encoding_errors == "replace":
            source = pa.BufferReader(decode(file.read_bytes(), file, "replace").encode())
        table = pa.csv.read_csv(
            source,
            pa.csv.ReadOptions(block_size=1 << 26),
            pa.csv.ParseOptions(delimiter=DELIMITERS[suffix], newlines_in_values=True),
            pa.csv.ConvertOptions(strings_can_be_null=False, column_types=dict.fromkeys(text_columns, pa.string())),
        )
        "".join(table.column_names)  # raises UnicodeDecodeError here rather than later
        return table
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        check_encoding(file)
        raise UserError(f"{file} cannot be read ({in_line(error)}): {EXPECTED[suffix]}") from error


def check_encoding(file: Path) -> None:
    """Raises UserError with the place where a text file is not UTF-8; Parquet is no text."""
    if suffix_of(file) != ".parquet":
        decode(file.read_bytes(), file, delimiter=DELIMITERS.get(suffix_of(file)))


def read_json_lines(file: Path, encoding_errors: str) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file. Raises UserError with the line that is not an object.

    pyarrow's reader is not used: some invalid lines, such as `null[`, end the process.
    """
    rows = []
    for number, line in enumerate(read_text(file, encoding_errors).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} cannot be read (line {number}: {error}): {JSON_LINE}") from error
        if not isinstance(row, dict):
            raise UserError(f"{file} cannot be read (line {number} is a {type(row).__name__}): {JSON_LINE}")
        rows.append(row)
    return rows


def as_text(value: Any) -> str | None:
    """A JSON value as a CSV file has it, lone surrogates as U+FFFD. Raises ValueError for a list or an object."""
    if isinstance(value, (list, dict)):
        raise ValueError(f"a {type(value).__name__}")
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    return None if value is None else str(value).lower()
