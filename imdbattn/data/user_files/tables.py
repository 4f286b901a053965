"""Reads tables (CSV, TSV, JSON, Parquet, Excel), texts and streams of lines; writes tables."""

import bz2
import gzip
import json
import logging
import lzma
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from imdbattn.data.labels import check_column, counted
from imdbattn.data.user_files.delimited import read_delimited
from imdbattn.errors import UserError, one_line, wrapping_errors
from imdbattn.io.files import atomically

log = logging.getLogger(__name__)

TEXT_TABLES = (".csv", ".tsv", ".jsonl", ".json")  # tables that are text, and may be compressed
SUFFIXES = (*TEXT_TABLES, ".parquet", ".xlsx")
UNREAD_TABLES = (".ndjson", ".tab")  # tables that are text, and are not read as lines
WRITTEN = (".csv", ".tsv", ".jsonl", ".parquet")
Row = tuple[str | None, ...]  # values of a table, None for null
Table = tuple[list[str], Callable[[Sequence[str]], Iterator[Row]]]  # see `open_table`
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def suffix_of(path: Path) -> str:
    """Returns the suffix in lower case; .csv for reviews.csv.gz."""
    suffix = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    return inner if suffix in COMPRESSED and inner in TEXT_TABLES else suffix


def is_table(path: Path) -> bool:
    """Returns whether a file has the suffix of a table."""
    return suffix_of(path) in SUFFIXES


def open_bytes(path: Path) -> BinaryIO:
    """Returns the bytes of a file, decompressed if its suffix says that they are compressed."""
    opener = COMPRESSED.get(path.suffix.lower(), open)
    return cast(BinaryIO, opener(path, "rb"))


# --- files ----------------------------------------------------------------------------------------


def visible_in(folder: Path) -> list[Path]:
    """Returns the files and folders in a folder, sorted, without the copies and metadata that
    editors, notebooks and macOS write; their number is logged.
    """
    entries = sorted(folder.iterdir())
    visible = [entry for entry in entries if entry.name[0] != "." and entry.name != "__MACOSX"]
    if count := len(entries) - len(visible):
        log.info("%s: skipped %d hidden files or folders", folder, count)
    return visible


def numbered(files: Sequence[Path]) -> list[Path]:
    """Returns the files in aclImdb's numeric order, 2_7 before 10_3: neighbors are about one film.

    Raises UserError for a file that is not .txt.
    """
    for file in files:
        if suffix_of(file) != ".txt":
            raise UserError(f"{file} is not a .txt file: rename it, or move it elsewhere")

    def key(file: Path) -> list[tuple[int, int, str]]:
        pieces = file.stem.split("_")
        return [(0, int(piece), piece) if piece.isdecimal() else (1, 0, piece) for piece in pieces]

    return sorted(files, key=key)


# --- text -----------------------------------------------------------------------------------------


def read_text(file: Path) -> str:
    """Returns a whole text file, with line breaks as \\n."""
    return "".join(read_lines(file)).replace("\r\n", "\n").replace("\r", "\n")


def read_lines(file: Path | None) -> Iterator[str]:
    """Yields the lines of a file or pipe, or of standard input if None, as they arrive, without a
    byte order mark.

    Only newlines separate lines, and stay at their ends: \\x85 and similar occur in reviews. Raises
    UserError for a line that is not UTF-8, or has a null byte, as UTF-16 does.
    """
    name = file or "standard input"
    with nullcontext(sys.stdin.buffer) if file is None else open_bytes(file) as stream:
        for number, line in enumerate(stream, 1):
            with wrapping_errors(f"{name}, line {number}", "save it as UTF-8"):
                text = line.decode()
                if "\0" in text:
                    raise ValueError("it has a null byte, as UTF-16 does")
            if number == 1:
                text = text.removeprefix("\ufeff")
            if text:  # a byte order mark alone is not a line
                yield text


def stream_lines(file: Path | None) -> Iterator[str]:
    """Yields the lines of `read_lines` without their newlines."""
    for line in read_lines(file):
        yield line.replace("\r\n", "\n").removesuffix("\n")


class TextStream(NamedTuple):
    """Texts. total: number of texts; None for a stream."""

    texts: Iterator[str]
    total: int | None = None


def open_lines(path: Path, column: str = "text") -> TextStream:
    """Returns the lines of a file, the texts of a folder, or the values of `column` of a table.

    A regular file is first read to its end, to check it.
    """
    if suffix_of(path) in UNREAD_TABLES:
        raise UserError(f"{path} is not one of {', '.join(SUFFIXES)}, nor a text: convert it")
    # `numbered` refuses a folder with other files, such as aclImdb/train.
    files = numbered(visible_in(path)) if path.is_dir() else []

    def read() -> Iterator[str]:
        if is_table(path):
            return (value for (value,) in read_rows(path, {"column": column}))
        return map(read_text, files) if path.is_dir() else stream_lines(path)

    total = sum(1 for _ in read()) if path.is_dir() or path.is_file() else None
    if total == 0:
        raise UserError(f"{path} has no texts")
    return TextStream(read(), total)


# --- reading tables -------------------------------------------------------------------------------


def read_columns(file: Path, columns: Mapping[str, str]) -> list[list[str]]:
    """Returns the values of some columns of a table. columns: see `read_rows`."""
    return [list(values) for values in zip(*read_rows(file, columns), strict=True)]


def read_rows(file: Path, columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yields the values of some columns in each row of a file with one of SUFFIXES, as text.

    columns: a setting that names a column -> the column's name. Raises UserError for a missing
    column or value (null), a file without rows, and ambiguous or unreadable rows.
    """
    chosen, row = [*columns.values()], -1
    with wrapping_errors(file):
        names, rows_of = open_table(file)
        for setting, column in columns.items():
            check_column(file, column, names, setting)
        for row, values in enumerate(rows_of(chosen)):
            if None in values:
                missing = chosen[values.index(None)]
                raise ValueError(f"{counted(row)} has no '{missing}': fill it, or remove the row")
            yield values  # type: ignore[misc]
        if row < 0:
            raise ValueError("it has no rows")


def kept_columns(file: Path, names: str | Sequence[str]) -> Iterator[dict[str, str | None]]:
    """Returns an iterator over the rows of a table, each with some of its columns as text.

    names: one column, several, or `all`. Values may be missing. Raises UserError for a file that is
    not a table, and for a column that the table does not have.
    """
    with wrapping_errors(file):
        header, rows_of = open_table(file)
    chosen = header if names == "all" else [names] if isinstance(names, str) else [*names]
    for name in chosen:
        check_column(file, name, header, "keep")

    def rows() -> Iterator[dict[str, str | None]]:
        with wrapping_errors(file):
            for values in rows_of(chosen):
                yield dict(zip(chosen, values, strict=True))

    return rows()


def open_table(file: Path) -> Table:
    """Returns the names of all columns (of JSON, those of the first row), and a function, called at
    most once, that yields the values of some columns in each row.
    """
    lines = partial(read_lines, file)
    if suffix_of(file) == ".parquet":
        return open_parquet(file)
    if suffix_of(file) in (".jsonl", ".json"):
        return table_of_objects(json_objects(lines()))
    if not is_table(file):
        raise UserError(f"{file} is not one of {', '.join(SUFFIXES)}: convert it to one of them")
    if suffix_of(file) == ".xlsx":
        rows = sheet_rows(file)
    else:
        rows = map(tuple, read_delimited(lines, "," if suffix_of(file) == ".csv" else "\t"))
    header = next(rows, ())
    names = [name or "" for name in header]

    def rows_of(columns: Sequence[str]) -> Iterator[Row]:
        places = [names.index(name) for name in columns]
        for number, row in enumerate(rows):
            if row == header and len(names) > 1:
                raise ValueError(f"{counted(number)} repeats the header: remove it")
            yield tuple(row[place] for place in places)

    return names, rows_of


def table_of_objects(objects: Iterator[dict[str, object]]) -> Table:
    first = next(objects, {})

    def rows_of(columns: Sequence[str]) -> Iterator[Row]:
        for row in chain([first], objects):
            yield tuple(text_of_cell(row.get(name)) for name in columns)

    return list(first), rows_of


def open_parquet(file: Path) -> Table:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)

    def rows_of(columns: Sequence[str]) -> Iterator[Row]:
        for batch in table.iter_batches(4096, columns=columns):
            values = [batch[name].cast("string").to_pylist() for name in columns]
            yield from zip(*values, strict=True)

    return table.schema_arrow.names, rows_of


def sheet_rows(file: Path) -> Iterator[Row]:
    """Returns the header and the rows of an Excel file with one sheet, read by pandas."""
    import pandas as pd

    sheets = pd.read_excel(
        file, sheet_name=None, header=None, dtype=object, keep_default_na=False, na_values=[""]
    )
    if len(sheets) != 1:
        raise ValueError(f"it has the sheets {', '.join(sheets)}: save one of them as .csv")
    (table,) = sheets.values()
    return (tuple(map(text_of_cell, row)) for row in table.itertuples(index=False))


def json_objects(lines: Iterable[str]) -> Iterator[dict[str, object]]:
    """Yields the objects of JSON Lines, or of an array. pyarrow's reader crashes on some invalid
    lines, such as `null[`.
    """
    lines, first = iter(lines), True
    for number, line in enumerate(lines, 1):
        if first and line.lstrip().startswith("["):
            yield from ({**value} for value in json.loads("".join([line, *lines])))
        elif line.strip():
            first = False
            try:
                yield {**json.loads(line)}
            except (ValueError, TypeError) as error:  # it is not JSON, or not an object
                raise ValueError(f"line {number}: {error}") from error


def text_of_cell(value: object) -> str | None:
    """Returns a value of JSON or Excel as in a CSV file; None for null, NaN, and an Excel error,
    which pandas reads as NaN. Raises ValueError for a list or an object.
    """
    if isinstance(value, (list, dict)):
        raise ValueError(f"a value is a {type(value).__name__}: {one_line(value)}")
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    is_nan = value != value
    return None if value is None or is_nan else str(value).lower()


# --- writing tables -------------------------------------------------------------------------------


def write_chunks(path: Path, chunks: Iterable[Mapping[str, Sequence[object]]]) -> None:
    """Writes rows into a file with one of WRITTEN, which replaces `path` when all are written.

    All values in CSV and TSV are quoted, so that a text with quotes can be read in only one way.
    An exception leaves no new file behind. Raises UserError if the disk is full or read-only.
    """
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    def array(values: Sequence[object]) -> pa.Array:
        # Only text may be missing, perhaps in all rows of a chunk.
        return pa.array(values, "string" if None in values else None)

    tables = (pa.table([*map(array, columns.values())], [*columns]) for columns in chunks)
    suffix = suffix_of(path)
    with atomically(path) as temporary, open(temporary, "wb") as file:
        if suffix == ".jsonl":
            for columns in chunks:
                for row in zip(*columns.values(), strict=True):
                    line = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)
                    file.write(f"{line}\n".encode())
        else:
            first = next(tables, pa.table({}))  # a stream may have no lines
            if suffix == ".parquet":
                writer = pq.ParquetWriter(file, first.schema)
            else:
                delimiter = "," if suffix == ".csv" else "\t"
                options = pc.WriteOptions(delimiter=delimiter, quoting_style="all_valid")
                writer = pc.CSVWriter(file, first.schema, write_options=options)
            with writer:
                for table in chain([first], tables):
                    writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())
