"""Peak memory of preparing and of training, and what ten times as many reviews cost.

    python -m benchmarks.memory

Memory is the largest resident set of one process, in MB of 10^6 bytes. It counts pages of memory-mapped files too
(libraries, vectors, ids), which the system may drop at any time; the rest, the anonymous part, has rows of its own.

The many reviews are the 25,000 packaged ones ten times, each time with the words rotated to begin elsewhere: lengths
and words are real, no two reviews are equal, but no word is new. Training is cut short after STEPS batches; those and
the first of the evaluations, which come longest first, are as large as any later ones.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.preparation import OURS, REVIEWS
from benchmarks.table import ROOT, Row, markdown, row
from imdbattn.data.reviews import packaged_source

TIMES = 10
STEPS = 25
LIMIT = 1500  # MB
SHORT = [
    "model=residual_pe",
    "trainer.max_epochs=1",
    f"trainer.limit_train_batches={STEPS}",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "trainer.enable_progress_bar=false",
]

# What of a training step depends on the number of reviews: planning an epoch, and cutting batches out of the ids.
FEEDING = """
import json, sys, time
from hydra import compose, initialize_config_dir
from imdbattn.data.corpus import prepare
from imdbattn.settings.cli import conf_dir, plain_dict
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import build_data

def clock(work):
    start = time.process_time()
    result = work()
    return result, 1e6 * (time.process_time() - start)

loaders = []
with initialize_config_dir(str(conf_dir()), version_base="1.3"):
    for overrides in json.loads(sys.argv[1]):
        cfg = validate(plain_dict(compose("train", overrides=overrides))).model_dump()
        loaders.append(build_data(cfg, prepare(cfg["data"])).train_dataloader())
found = {"to plan a review's epoch": [], "to cut a review's batch": []}
for number in range(6):
    planned, cut = {}, {}
    for loader in loaders[:: 1 - 2 * (number % 2)]:
        batches, planning = clock(lambda: list(loader.sampler))
        planned[loader] = planning / sum(len(rows) for _, rows in batches)
        taken, cutting = clock(lambda: [loader.dataset[item] for item in batches[:100]])
        cut[loader] = cutting / sum(batch.reviews for batch in taken)
    if number:  # the first round warms up
        for values, one in zip(found.values(), (planned, cut)):
            values.append([one[loaders[1]], one[loaders[0]]])
print(json.dumps(found))
"""


class Process(NamedTuple):
    """What a finished process printed, and its peaks in MB."""

    printed: str
    peak: float
    anonymous: float


def run(*arguments: str) -> Process:
    """Runs the interpreter. Raises RuntimeError where it fails."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    anonymous = 0.0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env, stdout=output, stderr=output)
        ended = threading.Event()

        def watch() -> None:
            nonlocal anonymous
            while not ended.wait(0.02):
                anonymous = max(anonymous, status(process.pid, "RssAnon"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, code, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
        ended.set()
        watcher.join()
        output.seek(0)
        printed = output.read()
    if code:
        raise RuntimeError(f"{' '.join(arguments[-9:])} failed:\n{printed[-2000:]}")
    return Process(printed, usage.ru_maxrss * 1024 / 1e6, anonymous)


def status(pid: int, name: str) -> float:
    """A figure of /proc/<pid>/status in MB; 0 where the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{name}:")), 0.0)


def train(cache: Path, *overrides: str) -> tuple[Process, dict]:
    """A short training run; its process and metrics.json."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # W&B's service still writes for a moment
        settings = [f"hydra.run.dir={folder}", f"data.cache_dir={cache}", *SHORT, *overrides]
        process = run("-m", "imdbattn.train", *settings)
        return process, json.loads((Path(folder) / "metrics.json").read_text())


def prepare(cache: Path, reviews: Path) -> Process:
    """Preparation up to the first batch; it prints its seconds, of the processor and by the clock."""
    return run("-c", OURS, f"data.path={reviews}", f"data.cache_dir={cache}")


def write_reviews(folder: Path) -> list[Path]:
    """reviews.parquet, and the same TIMES times over with rotated words."""
    whole = packaged_source().load().splits[""]
    table = pa.table({"text": whole.texts, "label": whole.labels})
    files = [folder / "reviews.parquet", folder / "many.parquet"]
    pq.write_table(table, files[0])
    with pq.ParquetWriter(files[1], table.schema) as writer:
        words = [text.split() for text in whole.texts]
        for copy in range(TIMES):
            starts = [len(review) * copy // TIMES for review in words]
            texts = [" ".join(review[at:] + review[:at]) for review, at in zip(words, starts, strict=True)]
            writer.write_table(pa.table({"text": texts, "label": whole.labels}))
    return files


def ids_mb(cache: Path) -> float:
    """MB of the ids in a cache that holds one corpus."""
    found = 0
    for file in cache.glob("tokens/*/*.arrow"):
        found += pa.ipc.open_stream(pa.memory_map(str(file))).read_all()["ids"].nbytes
    return found / 1e6


def rows() -> list[Row]:
    found = []

    def add(name: str, unit: str, goal: str, ours: float, theirs: float) -> None:
        found.append(row(name, unit, goal, [(ours, theirs)]))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for state in ("an empty cache", "a warm cache"):
            process, _ = train(folder / "packaged", "data.source=packaged")
            add(f"`make train` from {state}: peak memory beside the limit", "MB", "< 1", process.peak, LIMIT)
            add(f"`make train` from {state}: its anonymous part", "MB", "< 1", process.anonymous, LIMIT)
        files = write_reviews(folder)
        caches = [folder / "once", folder / "often"]
        once, often = (prepare(cache, file) for cache, file in zip(caches, files, strict=True))
        # Of the processor: on a virtual machine new memory may take minutes to come.
        each = [float(p.printed.split()[-2]) / n * 1e6 for p, n in ((once, REVIEWS), (often, TIMES * REVIEWS))]
        add(f"preparing {TIMES}x: processor time for a review, beside 1x", "µs", "<= 1.1", each[1], each[0])
        extra_text = (TIMES - 1) * pq.read_table(files[0])["text"].nbytes / 1e6
        add(f"preparing {TIMES}x: extra peak beside the extra text", "MB", "", often.peak - once.peak, extra_text)
        plain = ("logger=csv", "pictures=false")
        runs = [train(cache, f"data.path={file}", *plain) for cache, file in zip(caches, files, strict=True)]
        (once, _), (often, _) = runs
        extra_ids = ids_mb(caches[1]) - ids_mb(caches[0])
        add(f"training on {TIMES}x: extra peak beside the extra ids", "MB", "< 1", often.peak - once.peak, extra_ids)
        extra = often.anonymous - once.anonymous
        add(f"training on {TIMES}x: its anonymous part", "MB", "< 1", extra, extra_ids)
        data = [(f"data.path={file}", f"data.cache_dir={cache}") for cache, file in zip(caches, files, strict=True)]
        measured = json.loads(run("-c", FEEDING, json.dumps(data)).printed.splitlines()[-1])
        for name, pairs in measured.items():
            found.append(row(f"training on {TIMES}x: processor time {name}, beside 1x", "µs", "<= 1.1", pairs))
    return found


if __name__ == "__main__":
    start = time.perf_counter()
    print(markdown(rows()), end="")
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
