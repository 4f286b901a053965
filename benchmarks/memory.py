"""Peak memory of preparing and training, and the cost of ten times as many reviews.

Memory is the largest resident set of one process, in MB of 10^6 bytes. It includes pages of memory-mapped files
(libraries, vectors, ids), which the system can drop at any time; the rest, the anonymous part, has its own rows.

The many reviews are the 25,000 packaged ones ten times, each copy with its words rotated by a different amount: no two
are equal, but no word is new. Training ends after STEPS batches; those and the first evaluation batches (the longest)
are as large as any later ones.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import ROOT, Row, environment, row
from benchmarks.preparation import OURS, REVIEWS
from imdbattn.data.reviews import packaged_source

TIMES = 10
STEPS = 25
LIMIT = 1500  # MB
SHORT = ["model=residual_pe", "trainer.max_epochs=1", f"trainer.limit_train_batches={STEPS}"]
SHORT += ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1", "trainer.enable_progress_bar=false"]

# The parts of a training step that depend on the number of reviews: planning an epoch, and slicing batches from ids.
FEEDING = """
import json, sys, time
from benchmarks.common import settings
from imdbattn.tasks.reviews import TASK

def clock(work):
    start = time.process_time()
    result = work()
    return result, 1e6 * (time.process_time() - start)

loaders = []
for overrides in json.loads(sys.argv[1]):
    cfg = settings(*overrides)
    loaders.append(TASK.loaders(cfg, TASK.prepare(cfg.data)).train_dataloader())
results = {"to plan a review's epoch": [], "to cut a review's batch": []}
for number in range(6):
    planned, cut = {}, {}
    for loader in loaders[:: 1 - 2 * (number % 2)]:
        batches, planning = clock(lambda: list(loader.sampler))
        planned[loader] = planning / sum(len(rows) for _, rows in batches)
        taken, cutting = clock(lambda: [loader.dataset[item] for item in batches[:100]])
        cut[loader] = cutting / sum(batch.reviews for batch in taken)
    if number:  # the first round warms up
        for values, one in zip(results.values(), (planned, cut)):
            values.append([one[loaders[1]], one[loaders[0]]])
print(json.dumps(results))
"""


class Process(NamedTuple):
    """Output of a finished process, and its peaks in MB."""

    output: str
    peak: float
    anonymous: float


def run(*arguments: str) -> Process:
    """Runs Python. Raises RuntimeError if it fails."""
    anonymous = ended = 0.0
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=output, stderr=output)
        while not ended:
            anonymous = max(anonymous, anonymous_mb(process.pid))
            time.sleep(0.02)
            ended, code, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(code)
        output.seek(0)
        text = output.read()
    if code:
        raise RuntimeError(f"{' '.join(arguments[-9:])} failed:\n{text[-2000:]}")
    return Process(text, usage.ru_maxrss * 1024 / 1e6, anonymous)


def anonymous_mb(pid: int) -> float:
    """Anonymous resident memory of a process in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon:")), 0.0)


def train(cache: Path, *overrides: str) -> Process:
    """A short training run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # W&B's process still writes for a moment
        return run("-m", "imdbattn.train", f"hydra.run.dir={folder}", f"data.cache_dir={cache}", *SHORT, *overrides)


def write_reviews(folder: Path) -> list[Path]:
    """Writes reviews.parquet, and many.parquet with TIMES rotated copies of each review."""
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
    """MB of the ids in a cache of one corpus."""
    tables = (pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in cache.glob("tokens/*/*.arrow"))
    return sum(table["ids"].nbytes for table in tables) / 1e6


def rows() -> list[Row]:
    results = []

    def add(name: str, unit: str, goal: str, ours: float, theirs: float) -> None:
        results.append(row(name, unit, goal, [(ours, theirs)]))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for state in ("an empty cache", "a warm cache"):
            process = train(folder / "packaged", "data.source=packaged")
            add(f"`make train` from {state}: peak memory beside the limit", "MB", "< 1", process.peak, LIMIT)
            add(f"`make train` from {state}: its anonymous part", "MB", "< 1", process.anonymous, LIMIT)
        files = write_reviews(folder)
        caches = [folder / "once", folder / "often"]
        data = [(f"data.path={file}", f"data.cache_dir={cache}") for cache, file in zip(caches, files, strict=True)]
        once, often = (run("-c", OURS, *words) for words in data)
        # Processor time: on a virtual machine new memory can take minutes.
        each = [float(p.output.split()[-2]) / n * 1e6 for p, n in ((once, REVIEWS), (often, TIMES * REVIEWS))]
        add(f"preparing {TIMES}x: processor time for a review, beside 1x", "µs", "<= 1.1", each[1], each[0])
        extra_text = (TIMES - 1) * pq.read_table(files[0])["text"].nbytes / 1e6
        add(f"preparing {TIMES}x: extra peak beside the extra text", "MB", "", often.peak - once.peak, extra_text)
        runs = zip(caches, files, strict=True)
        once, often = (train(cache, f"data.path={file}", "logger=csv", "pictures=false") for cache, file in runs)
        extra_ids = ids_mb(caches[1]) - ids_mb(caches[0])
        add(f"training on {TIMES}x: extra peak beside the extra ids", "MB", "< 1", often.peak - once.peak, extra_ids)
        extra = often.anonymous - once.anonymous
        add(f"training on {TIMES}x: its anonymous part", "MB", "< 1", extra, extra_ids)
        measured = json.loads(run("-c", FEEDING, json.dumps(data)).output.splitlines()[-1])
        for name, pairs in measured.items():
            results.append(row(f"training on {TIMES}x: processor time {name}, beside 1x", "µs", "<= 1.1", pairs))
    return results
