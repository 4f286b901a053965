"""Applies a finished run to new texts: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from imdbattn.data.text_lines import Texts, read_texts
from imdbattn.errors import UserError
from imdbattn.settings import YES_OR_NO, command, many_imports, number, obey, plain, take_argument, whole
from imdbattn.settings.safety import visible

RULES = {"explain": YES_OR_NO, "beams": whole(1, 100), "length_penalty": number(0, 10)}


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints one line per text as soon as it is known; with explain=true all results and the path of a page."""
    settings = plain(cfg) | ({} if text is None else {"text": text})
    obey(settings, RULES)
    text, file = settings["text"], settings["file"]
    if text is not None and file is not None:
        raise UserError("give text= or file=, not both")
    texts = read_texts(file) if text is None else Texts(iter([str(text)]), 1)
    with many_imports():
        from imdbattn.explain.show import digest, print_readings, write_page
        from imdbattn.runs.score import label_each, load_reader
        from imdbattn.tasks.seq2seq import Writer, refuse_empty

    reader, folder = load_reader(settings)
    if texts.blank and isinstance(reader, Writer):
        refuse_empty(texts.blank)
    results = label_each(reader, settings, texts.lines)
    if not settings["explain"]:
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
