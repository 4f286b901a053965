"""Applies a finished run to new texts: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from imdbattn.data.text_files import Lines, open_lines
from imdbattn.settings.cli import command, plain_dict, take_argument, without_gc
from imdbattn.settings.safety import visible


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints one line per text as soon as it is available; with explain=true all results and the path of a page."""
    from imdbattn.settings.schema import Predict, validate_as  # pydantic, for which `--help` does not wait

    settings = validate_as(Predict, plain_dict(cfg) | ({} if text is None else {"text": text}))
    texts = open_lines(settings.file) if settings.text is None else Lines(iter([str(settings.text)]), 1)
    with without_gc():
        from imdbattn.explain.show import digest, print_readings, write_page
        from imdbattn.runs import score
        from imdbattn.tasks.task import refuse_empty

    predictor, folder = score.load_predictor(settings)
    if texts.blank and predictor.needs_text:
        refuse_empty(texts.blank)
    results = score.predict(predictor, texts.lines, settings)
    if not settings.explain:
        return print_lines(results, texts.total)
    readings = list(results)
    print_readings(readings)
    print(f"page: {write_page(readings, folder / 'explanations' / f'{digest(readings)}.html')}")


def print_lines(results: Iterator[Any], total: int | None) -> None:
    """One line per result. The progress bar is shown only if the lines do not go to a terminal."""
    try:
        for result in tqdm(results, total=total, unit=" texts", delay=1, disable=sys.stdout.isatty() or None):
            print(visible(result.line), flush=True)
    except BrokenPipeError:  # for example from `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout once more at exit
        sys.exit(128 + signal.SIGPIPE)


def main() -> None:
    text = take_argument("text")
    command("predict", "run", "file", "data.glove.path", "data.cache_dir")(lambda cfg: predict(cfg, text))()


if __name__ == "__main__":
    main()
