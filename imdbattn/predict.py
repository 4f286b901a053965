"""Labels reviews with a finished run, or writes: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

from omegaconf import DictConfig
from tqdm import tqdm

from imdbattn.errors import UserError
from imdbattn.settings.cli import command, plain_dict, take_argument, without_gc
from imdbattn.settings.safety import visible


class Texts(NamedTuple):
    """The reviews to label. Of a stream neither their number nor the first blank line is known beforehand."""

    lines: Iterator[str]
    total: int | None = None
    blank: int | None = None  # number of the first blank line, counted from 1


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints a line for each text, as soon as it is known: of a review label and probability, or what was written.

    With explain=true also what was attended to.
    """
    from imdbattn.settings.schema import Predict, validate_as  # pydantic: `--help` does not wait for it

    settings = validate_as(Predict, plain_dict(cfg) | ({} if text is None else {"text": text})).model_dump()
    texts = read_texts(settings)
    with without_gc():
        from imdbattn.explain import alignment
        from imdbattn.explain import figures as pictures
        from imdbattn.explain import show as explain
        from imdbattn.runs.score import label_each, load_reader
        from imdbattn.tasks.seq2seq import Writer, refuse_empty

    reader, folder = load_reader(settings)
    if texts.blank and isinstance(reader, Writer):
        refuse_empty(texts.blank)
    results = label_each(reader, settings, texts.lines)
    if not settings["explain"]:
        return print_lines(results, texts.total)
    found: list[Any] = list(results)
    if isinstance(found[0], alignment.Decoded):
        alignment.print_decoded(found)
        path = folder / "explanations" / f"{alignment.digest(found)}.html"
        print(f"page: {alignment.write_page(found, [alignment.drawn(one) for one in found], path)}")
    else:
        explain.print_explanations(found)
        path = folder / "explanations" / f"{explain.digest(found)}.html"
        print(f"page: {explain.write_page(found, [pictures.drawn(one) for one in found], path)}")


def print_lines(results: Iterator[Any], total: int | None) -> None:
    """A line for each result. A progress bar stands in the terminal where the lines go elsewhere."""
    try:
        for one in tqdm(results, total=total, unit=" texts", delay=1, disable=sys.stdout.isatty() or None):
            print(visible(in_one_line(one)), flush=True)
    except BrokenPipeError:  # such as of `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        sys.exit(128 + signal.SIGPIPE)


def in_one_line(found: Any) -> str:
    """What was said or written, its probability, and the beginning of the text."""
    source = found.text.split() if hasattr(found, "text") else found.source
    said = found.label if hasattr(found, "text") else found.joiner.join(found.output)
    return f"{said}  {100 * found.probability:5.1f} %  {getattr(found, 'joiner', ' ').join(source)[:100]}"


def read_texts(settings: dict[str, Any]) -> Texts:
    """The reviews to label. A file is read to its end first, so that nothing is printed where a line of it is wrong.

    Raises UserError when there are two sources, no review, or what cannot be read.
    """
    if settings["text"] is not None:
        return Texts(iter([str(settings["text"])]), 1)
    file, count, blank = settings["file"], None, None
    if file is None and sys.stdin.isatty():
        print("One review (or source) a line, then Ctrl-D:", file=sys.stderr)
    if file is not None and os.path.isfile(os.path.expanduser(file)):
        count = 0
        for count, line in enumerate(read_lines(file), 1):
            blank = blank or (None if line.strip() else count)
    lines = read_lines(file)
    first = next(lines, None)
    if first is None:
        raise UserError("no review was given: use text=..., file=... or standard input, one review a line")
    return Texts(chain([first], lines), count, blank)


def read_lines(file: str | None) -> Iterator[str]:
    """The lines of a file or pipe, None standard input, as they come; without a byte order mark in front of them all.

    They end at newlines alone: \\x85 and its like stand inside reviews. Raises UserError for what cannot be read.
    """
    name, at = "standard input" if file is None else f"file={file}", 0
    try:
        with nullcontext(sys.stdin.buffer) if file is None else open(os.path.expanduser(file), "rb") as stream:
            if file is not None and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                raise UserError(f"{name} is a device: give a text file, one review a line")
            for number, line in enumerate(stream, 1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    where = f"byte {at + error.start} (line {number})"
                    raise UserError(f"{name} is not UTF-8 at {where}: save it as UTF-8") from error
                if number > 1 or (text := text.removeprefix("\ufeff")):
                    yield text.replace("\r\n", "\n").removesuffix("\n")
                at += len(line)
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}): give a text file, one review a line") from error


def main() -> None:
    text = take_argument("text")
    command("predict", "run", "file", "data.glove.path", "data.cache_dir")(lambda cfg: predict(cfg, text))()


if __name__ == "__main__":
    main()
