"""Applies a finished run to new texts: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import sys

from omegaconf import DictConfig
from tqdm import tqdm

from imdbattn.data.user_files.tables import Lines, kept_columns, open_lines
from imdbattn.errors import UserError
from imdbattn.io.files import expanded
from imdbattn.launch.command import command, plain_dict, validated
from imdbattn.launch.process import without_gc
from imdbattn.launch.quoting import take_argument
from imdbattn.runs.run import Run
from imdbattn.settings.safety import visible

KEYS = ("file", "column", "out", "data.glove.path", "data.cache_dir")


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints a line per text, with explain=true also a page; with out= writes a table instead."""
    given = {} if text is None else {"text": text}
    settings = validated("runs.settings.Predict", plain_dict(cfg) | given)
    if settings.text is None:
        column = Run(settings.run).text_column if isinstance(settings.run, str) else "text"
        texts = open_lines(settings.file, settings.column, column)
    else:
        texts = Lines(iter([str(settings.text)]), 1)
    out = settings.out and expanded(settings.out)
    if out and settings.file and out.exists() and os.path.samefile(out, expanded(settings.file)):
        raise UserError(f"out={settings.out} is the file that is read: choose another name")
    kept = None
    if settings.keep and settings.file:
        kept = kept_columns(expanded(settings.file), settings.keep)
    with without_gc():
        from imdbattn.launch.labeling import write_table_of
        from imdbattn.runs.predict import load_predictor, predictions_of
        from imdbattn.tools.explain.show import digest, print_predictions, write_page

    predictor, folder = load_predictor(settings)
    if out:
        write_table_of(predictor, texts, settings, out, kept)
        print(f"predictions: {settings.out}")
    elif settings.explain:
        predictions = list(predictions_of(predictor, texts.lines, settings))
        print_predictions(predictions)
        page = folder / "explanations" / f"{digest(predictions)}.html"
        print(f"page: {write_page(predictions, page)}")
    else:  # a progress bar only if the lines do not go to a terminal
        bar = {"total": texts.total, "unit": " texts", "delay": 1}
        results = predictions_of(predictor, texts.lines, settings)
        for result in tqdm(results, **bar, disable=sys.stdout.isatty() or None):
            print(visible(result.line), flush=True)


def main() -> None:
    text = take_argument("text")
    # which Hydra has to parse
    lists_runs = any(argument.startswith("run=[") for argument in sys.argv)
    keys = KEYS if lists_runs else ("run", *KEYS)
    command("predict", *keys)(lambda cfg: predict(cfg, text))()


if __name__ == "__main__":
    main()
