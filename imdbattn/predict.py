"""Labels reviews with a finished run: `python -m imdbattn.predict run=<run folder> text="..."`."""

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.safety import visible
from imdbattn.settings import YES_OR_NO, command, many_imports, obey, plain, take_argument


def predict(cfg: DictConfig, text: str | None) -> None:
    """Prints a line for each review: label, probability, the review. With explain=true also what was attended to."""
    settings = plain(cfg) | ({} if text is None else {"text": text})
    obey(settings, {"explain": YES_OR_NO})
    texts = read_texts(settings)
    with many_imports():
        from imdbattn.training.score import label_texts

    explanations, folder = label_texts(settings, texts)
    if settings["explain"]:
        from imdbattn.analysis.explain import digest, print_explanations, write_page
        from imdbattn.analysis.pictures import drawn

        print_explanations(explanations)
        path = folder / "explanations" / f"{digest(explanations)}.html"
        print(f"page: {write_page(explanations, [drawn(found) for found in explanations], path)}")
    else:
        for found in explanations:
            said = f"{found.label}  {100 * found.probability:5.1f} %  {' '.join(found.text.split())[:100]}"
            print(visible(said))


def read_texts(settings: dict[str, Any]) -> list[str]:
    """The reviews to label. Raises UserError when there are two sources, or no review."""
    if settings["text"] is not None and settings["file"] is not None:
        raise UserError("give text= or file=, not both")
    if settings["text"] is not None:
        return [str(settings["text"])]
    if settings["file"] is None and sys.stdin.isatty():
        print("One review a line, then Ctrl-D:", file=sys.stderr)
    try:
        file = settings["file"]
        content = sys.stdin.buffer.read() if file is None else Path(os.path.expanduser(file)).read_bytes()
        # Not splitlines: it also cuts at \x85 and its like, which stand inside reviews.
        texts = content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n") if content else []
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
