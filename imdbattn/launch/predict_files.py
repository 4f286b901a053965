"""The files of imdbattn.predict: texts that it reads, and the table of predictions that it writes.

Reading does not import torch, so that wrong input is refused at once.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from tqdm import tqdm

from imdbattn.data.user_files.tables import (
    SUFFIXES,
    WRITTEN,
    TextStream,
    is_table,
    kept_columns,
    open_lines,
    stream_lines,
    write_chunks,
)
from imdbattn.errors import UserError
from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import SPLIT_TABLES
from imdbattn.io.files import with_home
from imdbattn.runs.signals import StopOnSignals
from imdbattn.settings.command_settings import PredictSettings

if TYPE_CHECKING:
    from imdbattn.tasks.predictor import Predictor

Kept = Iterator[dict[str, str | None]]  # the columns to keep of each row of the table that is read


def open_texts(options: PredictSettings) -> tuple[TextStream, Kept | None]:
    """Returns the texts from text=, file= or standard input, and the columns that keep= names.

    Raises UserError for input that cannot be read, and for an output file that exists.
    """
    if options.out:
        check_out(options.out)
    if options.text is not None:
        return TextStream(iter([str(options.text)]), 1), None
    file = with_home(options.file) if options.file is not None else None
    if options.column is not None and (file is None or not is_table(file)):
        tables = ", ".join(SUFFIXES)
        raise UserError(f"column={options.column} is for tables, {tables}: omit it")
    if file is None:
        if sys.stdin.isatty():
            print("One review (or source) per line, then Ctrl-D:", file=sys.stderr)
        return TextStream(stream_lines(None)), None
    column = options.column
    if column is None and isinstance(options.run, str):
        column = Run(options.run, options.trust).trusted_settings["data"].get("text_column")
    texts = open_lines(file, column or "text")
    return texts, kept_columns(file, options.keep) if options.keep else None


def check_out(name: str) -> None:
    """Raises UserError for a table that cannot be written, or must not be replaced."""
    out = with_home(name)
    if out.suffix.lower() not in WRITTEN:
        raise UserError(f"out={name} must end with {', '.join(WRITTEN[:-1])} or {WRITTEN[-1]}")
    if out.name in (*SPLIT_TABLES, "metrics.csv") and (out.parent / "config.yaml").exists():
        raise UserError(f"out={name} is a file of a run: choose another name")
    if out.exists():
        raise UserError(f"out={name} exists: choose another name")


def write_prediction_table(
    predictor: "Predictor", texts: TextStream, options: PredictSettings, kept: Kept | None
) -> None:
    """Writes the predictions for all texts into the table `out`, which is complete or absent."""
    from imdbattn.runs.apply import predict_columns

    out = with_home(str(options.out))
    bar = tqdm(texts.texts, total=texts.total, unit=" texts", delay=1, disable=None)
    chunks = predict_columns(predictor, bar, options)
    if kept is not None:
        chunks = with_kept_columns(chunks, kept)
    with StopOnSignals(f"stopped; {options.out} is not written"), bar:
        write_chunks(out, chunks)


def with_kept_columns(
    chunks: Iterator[dict[str, list[object]]], kept: Kept
) -> Iterator[dict[str, list[object]]]:
    """Yields the chunks of results with the columns of the table that was read.

    A column with the same name as a result is called `input_<name>`, with more prefixes if the
    table also has such a column.
    """
    for columns in chunks:
        rows = list(islice(kept, len(columns["row"])))
        own: dict[str, list[object]] = {}
        for name in rows[0]:
            new = name
            while new in columns or (new != name and new in rows[0]):
                new = f"input_{new}"
            own[new] = [row[name] for row in rows]
        yield {"row": columns["row"], **own, **columns}
