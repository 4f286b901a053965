"""Applies a finished run to new texts: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from imdbattn.data.user_files.tables import Lines, kept_columns, open_lines
from imdbattn.errors import UserError
from imdbattn.io.files import expanded
from imdbattn.launch.command import command, plain_dict, take_argument, validated, without_gc
from imdbattn.runs.run_folder import text_column
from imdbattn.settings.safety import visible


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints one line per text as soon as it is available; with explain=true all results and the
    path of a page.

    With out=, writes a table instead, which is complete or absent.
    """
    settings = validated(
        "runs.settings.Predict", plain_dict(cfg) | ({} if text is None else {"text": text})
    )
    if settings.text is None:
        texts = open_lines(settings.file, settings.column, text_column(settings.run))
    else:
        texts = Lines(iter([str(settings.text)]), 1)
    out = settings.out and expanded(settings.out)
    if out and settings.file and out.exists() and os.path.samefile(out, expanded(settings.file)):
        raise UserError(f"out={settings.out} is the file that is read: choose another name")
    kept = None
    if settings.keep and settings.file:
        kept = kept_columns(expanded(settings.file), settings.keep)
    with without_gc():
        from imdbattn.runs.predict import load_predictor, predict_columns, predictions_of
        from imdbattn.tools.explain.show import digest, print_predictions, write_page

    predictor, folder = load_predictor(settings)
    if out:
        chunks = predict_columns(predictor, texts.lines, settings)
        if kept is not None:
            chunks = joined(chunks, kept)
        write_results(chunks, out, texts.total)
        print(f"predictions: {settings.out}")
    elif settings.explain:
        predictions = list(predictions_of(predictor, texts.lines, settings))
        print_predictions(predictions)
        print(
            "page:"
            f" {write_page(predictions, folder / 'explanations' / f'{digest(predictions)}.html')}"
        )
    else:  # a progress bar only if the lines do not go to a terminal
        results = predictions_of(predictor, texts.lines, settings)
        for result in tqdm(
            results, total=texts.total, unit=" texts", delay=1, disable=sys.stdout.isatty() or None
        ):
            print(visible(result.line), flush=True)


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


def write_results(chunks: Iterator[dict[str, list[Any]]], out: Path, total: int | None) -> None:
    """Writes the results into a file with a progress bar, and prints its path."""
    from imdbattn.data.user_files.tables import write_table
    from imdbattn.runs.process import exiting_on_signals

    with exiting_on_signals(), tqdm(total=total, unit=" texts", delay=1, disable=None) as bar:

        def counted() -> Iterator[dict[str, list[Any]]]:
            for columns in chunks:
                yield columns
                bar.update(len(columns["row"]))

        write_table(out, counted())


def main() -> None:
    text = take_argument("text")
    # which Hydra has to parse
    lists_runs = any(argument.startswith("run=[") for argument in sys.argv)
    command(
        "predict",
        *["run"] * (not lists_runs),
        "file",
        "column",
        "out",
        "data.glove.path",
        "data.cache_dir",
    )(lambda cfg: predict(cfg, text))()


if __name__ == "__main__":
    main()
