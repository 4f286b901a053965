"""Applies a finished run to new texts: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from imdbattn.data.tables import Lines, open_lines
from imdbattn.errors import UserError
from imdbattn.files import expanded
from imdbattn.run_folder import text_column
from imdbattn.settings.cli import command, exit_without_reader, plain_dict, take_argument, validated, without_gc
from imdbattn.settings.safety import visible


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints one line per text as soon as it is available; with explain=true all results and the path of a page.

    With out=, writes a table instead, which is complete or absent.
    """
    settings = validated("Predict", plain_dict(cfg) | ({} if text is None else {"text": text}))
    if settings.out:
        check_out(expanded(settings.out), settings.file)
    if settings.text is None:
        texts = open_lines(settings.file, settings.column, text_column(settings.run))
    else:
        texts = Lines(iter([str(settings.text)]), 1)
    with without_gc():
        from imdbattn.explain.show import digest, print_predictions, write_page
        from imdbattn.runs.predict import load_predictor, predict_columns, predictions_of
        from imdbattn.tasks.predictor import refuse_empty

    predictor, folder = load_predictor(settings)
    if texts.blank and predictor.needs_text:
        refuse_empty(texts.blank)
    if settings.out:
        return write_results(predict_columns(predictor, texts.lines, settings), Path(settings.out), texts.total)
    results = predictions_of(predictor, texts.lines, settings)
    if not settings.explain:
        return print_lines(results, texts.total)
    predictions = list(results)
    print_predictions(predictions)
    print(f"page: {write_page(predictions, folder / 'explanations' / f'{digest(predictions)}.html')}")


def check_out(out: Path, file: str | None) -> None:
    """Raises UserError if `out` is a folder, or the file that is read."""
    if os.path.isdir(out):
        raise UserError(f"out={out} is a folder: name a file in it")
    with suppress(OSError):  # one of them does not exist
        if file and os.path.samefile(out, expanded(file)):
            raise UserError(f"out={out} is the file that is read: choose another name")


def write_results(chunks: Iterator[dict[str, list[Any]]], out: Path, total: int | None) -> None:
    """Writes the results into a file with a progress bar, and prints its path."""
    from imdbattn.data.tables import write_table
    from imdbattn.runs.process import exiting_on_signals

    with exiting_on_signals(), tqdm(total=total, unit=" texts", delay=1, disable=None) as bar:

        def counted() -> Iterator[dict[str, list[Any]]]:
            for columns in chunks:
                yield columns
                bar.update(len(columns["row"]))

        write_table(expanded(out), counted())
    print(f"predictions: {out}")


def print_lines(results: Iterator[Any], total: int | None) -> None:
    """One line per result. The progress bar is shown only if the lines do not go to a terminal."""
    try:
        for result in tqdm(results, total=total, unit=" texts", delay=1, disable=sys.stdout.isatty() or None):
            print(visible(result.line), flush=True)
    except BrokenPipeError:
        exit_without_reader()


def main() -> None:
    text = take_argument("text")
    lists_runs = any(argument.startswith("run=[") for argument in sys.argv)  # which Hydra has to parse
    command("predict", *["run"] * (not lists_runs), "file", "column", "out", "data.glove.path", "data.cache_dir")(
        lambda cfg: predict(cfg, text)
    )()


if __name__ == "__main__":
    main()
