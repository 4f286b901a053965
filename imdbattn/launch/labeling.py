"""The table of predictions that imdbattn.predict writes."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from imdbattn.data.user_files.tables import Lines, write_table
from imdbattn.runs.predict import predict_columns
from imdbattn.runs.process import exiting_on_signals
from imdbattn.runs.settings import Predict
from imdbattn.tasks.predictor import Predictor


def write_table_of(
    predictor: Predictor,
    texts: Lines,
    options: Predict,
    out: Path,
    kept: Iterator[dict[str, str | None]] | None = None,
) -> None:
    """Writes the predictions for all texts into a table, which is complete or absent.

    kept: the columns to keep of each row of the table that was read.
    """
    chunks = predict_columns(predictor, texts.lines, options)
    if kept is not None:
        chunks = joined(chunks, kept)
    with exiting_on_signals(), tqdm(total=texts.total, unit=" texts", delay=1, disable=None) as bar:

        def counted() -> Iterator[dict[str, list[Any]]]:
            for columns in chunks:
                yield columns
                bar.update(len(columns["row"]))

        write_table(out, counted())


def joined(
    chunks: Iterator[dict[str, list[Any]]], kept: Iterator[dict[str, str | None]]
) -> Iterator[dict[str, list[Any]]]:
    """Yields the chunks of results with the columns of the table that was read.

    A column that has the name of one of the results is called `input_<name>`.
    """
    for columns in chunks:
        rows = list(islice(kept, len(columns["row"])))
        own = {name: [row[name] for row in rows] for name in rows[0]}
        renamed = {f"input_{name}" if name in columns else name: own[name] for name in own}
        yield {"row": columns["row"], **renamed, **columns}
