"""The table of predictions that imdbattn.predict writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from imdbattn.data.user_files.tables import Lines, write_table
from imdbattn.runs.predict import predict_columns
from imdbattn.runs.process import exiting_on_signals
from imdbattn.runs.settings import Predict
from imdbattn.tasks.predictor import Predictor


def write_table_of(predictor: Predictor, texts: Lines, options: Predict, out: Path) -> None:
    """Writes the predictions for all texts into a table, which is complete or absent."""
    with exiting_on_signals(), tqdm(total=texts.total, unit=" texts", delay=1, disable=None) as bar:

        def counted() -> Iterator[dict[str, list[Any]]]:
            for columns in predict_columns(predictor, texts.lines, options):
                yield columns
                bar.update(len(columns["row"]))

        write_table(out, counted())
