"""Writes a table in chunks, as CSV, TSV, JSON Lines or Parquet."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from imdbattn.data.text_files import suffix_of
from imdbattn.files import atomically

Columns = Mapping[str, Sequence[Any]]  # the values of some rows


def write_table(path: Path, chunks: Iterable[Columns]) -> None:
    """Writes rows into a file with the suffix of one of WRITERS, which replaces `path` when all are written.

    Nothing is left of it after an exception. Raises UserError if the folder cannot be written.
    """
    with atomically(path) as temporary, open(temporary, "wb") as file:
        WRITERS[suffix_of(path)](file, chunks)
        file.flush()
        os.fsync(file.fileno())


def write_parquet(file: BinaryIO, chunks: Iterable[Columns]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        writer = None
        for columns in chunks:
            table = pa.table(dict(columns))
            writer = writer or stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)


def write_json_lines(file: BinaryIO, chunks: Iterable[Columns]) -> None:
    for columns in chunks:
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        file.write("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())


def write_csv(file: BinaryIO, chunks: Iterable[Columns], delimiter: str = ",") -> None:
    """Writes all values in quotes, also the header: a text with quotes can then be read in one way only."""
    for number, columns in enumerate(chunks):
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows([] if number else [columns])
        writer.writerows(zip(*columns.values(), strict=True))
        file.write(text.getvalue().encode())


WRITERS: dict[str, Callable[[BinaryIO, Iterable[Columns]], None]] = {
    ".csv": write_csv,
    ".tsv": partial(write_csv, delimiter="\t"),
    ".jsonl": write_json_lines,
    ".parquet": write_parquet,
}
