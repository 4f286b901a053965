"""Labels reviews with a finished run, or writes: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.safety import visible
from imdbattn.settings import YES_OR_NO, command, many_imports, number, obey, plain, take_argument, whole

RULES = {"explain": YES_OR_NO, "beams": whole(1, 100), "length_penalty": number(0, 10)}


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints a line for each text: of a review label and probability, of an encoder-decoder what it wrote.

    With explain=true also what was attended to.
    """
    settings = plain(cfg) | ({} if text is None else {"text": text})
    obey(settings, RULES)
    texts = read_texts(settings)
    with many_imports():
        from imdbattn.analysis import alignment, explain, pictures
        from imdbattn.training.score import label_texts

    found, folder = label_texts(settings, texts)
    if not settings["explain"]:
        for one in found:
            print(visible(in_one_line(one)))
    elif isinstance(found[0], alignment.Decoded):
        alignment.print_decoded(found)
        path = folder / "explanations" / f"{alignment.digest(found)}.html"
        print(f"page: {alignment.write_page(found, [alignment.drawn(one) for one in found], path)}")
    else:
        explain.print_explanations(found)
        path = folder / "explanations" / f"{explain.digest(found)}.html"
        print(f"page: {explain.write_page(found, [pictures.drawn(one) for one in found], path)}")


def in_one_line(found: Any) -> str:
    """What was said or written, its probability, and the beginning of the text."""
    source = found.text.split() if hasattr(found, "text") else found.source
    said = found.label if hasattr(found, "text") else found.joiner.join(found.output)
    return f"{said}  {100 * found.probability:5.1f} %  {getattr(found, 'joiner', ' ').join(source)[:100]}"


def read_texts(settings: dict[str, Any]) -> list[str]:
    """The reviews to label. Raises UserError when there are two sources, or no review."""
    if settings["text"] is not None and settings["file"] is not None:
        raise UserError("give text= or file=, not both")
    if settings["text"] is not None:
        return [str(settings["text"])]
    if settings["file"] is None and sys.stdin.isatty():
        print("One review (or source) a line, then Ctrl-D:", file=sys.stderr)
    try:
        file = settings["file"]
        content = sys.stdin.buffer.read() if file is None else Path(os.path.expanduser(file)).read_bytes()
        # Not splitlines: it also cuts at \x85 and its like, which stand inside reviews.
        texts = (
            content.decode().removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n").split("\n")
            if content
            else []
        )
    except OSError as error:
        raise UserError(
            f"file={file} cannot be read ({error.strerror}): give a text file, one review a line"
        ) from error
    except UnicodeDecodeError as error:
        name, line = "standard input" if file is None else f"file={file}", content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name} is not UTF-8 at byte {error.start} (line {line}): save it as UTF-8") from error
    if not texts:
        raise UserError("no review was given: use text=..., file=... or standard input, one review a line")
    return texts


def main() -> None:
    text = take_argument("text")
    command("predict", "run", "file", "data.glove.path", "data.cache_dir")(lambda cfg: predict(cfg, text))()


if __name__ == "__main__":
    main()
