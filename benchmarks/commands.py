"""Commands in new processes: seconds to start and to prepare data, peak memory, and the cost of ten
times the reviews.

Startup: seconds until `--help`, the settings, and the first optimizer step of a training run, with
warm caches. The other side only imports what such a command needs at least.

Sweep: six jobs of a second each and their comparison, against importing torch and Lightning six
times; seconds, and CPU time, which other programs disturb less.

Prediction: CPU time of a process that loads a run and labels one text.

Preparation: from the 25,000 packaged reviews to the first training batch, after the imports, with
caches and without.

Memory is the largest resident set of one process, in MB of 10^6 bytes. It includes pages of
memory-mapped files (libraries, vectors, ids), which the system can drop at any time. The larger
data set has ten copies of each packaged review, with different numbers before the first word.
Training ends after STEPS batches. These, and the first evaluation batches, which are the longest,
are as large as any later ones.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import ROOT, Row, environment, in_turn, row, run, seconds
from imdbattn.data.sources.imdb import packaged_source

REVIEWS = 25_000
HYDRA = "import hydra, omegaconf"
# without the clean-up of the process, like FIRST_STEP
TORCH = "import os, torch, lightning; os._exit(0)"
STEPPED = 42  # exit status
# Ends imdbattn.train after its first optimizer step. The hook is set when imdbattn.runs.fit is
# imported: importing torch any earlier would change the order of the command's imports.
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
from imdbattn.tasks.reviews.classifier import ReviewData

cfg = settings(*sys.argv[1:])
start, busy = time.perf_counter(), time.process_time()
next(iter(ReviewData(cfg).train_dataloader()))
print(time.process_time() - busy, time.perf_counter() - start)
"""
TIMES = 10
STEPS = 25
LIMIT = 1500  # MB
SHORT = ["model=residual_pe", "trainer.max_epochs=1", f"trainer.limit_train_batches={STEPS}"]
SHORT += [
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "trainer.enable_progress_bar=false",
]


def first_step(*overrides: str) -> None:
    """Runs a training until its first optimizer step."""
    # W&B's process still writes for a moment
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run([sys.executable, "-c", FIRST_STEP, f"hydra.run.dir={folder}", *overrides], STEPPED)


def startup_rows() -> list[Row]:
    first_step()  # fills the caches, including those of compiled Python modules
    command = [sys.executable, "-m", "imdbattn.train"]
    help_ = partial(run, [*command, "--help"])
    cfg = partial(run, [*command, "--cfg", "job"])
    light = "<= 1.5 x + 0.5 s"
    packaged = ["data.source=packaged", "logger=csv"]
    rows = []
    for name, goal, ours, imports, rounds in (
        ("train --help, against importing Hydra", light, help_, HYDRA, 7),
        ("train --cfg job, against importing Hydra", light, cfg, HYDRA, 7),
        (
            "train to its first step, against importing torch and Lightning",
            "<= 2.5",
            first_step,
            TORCH,
            3,
        ),
        (f"the same, {' '.join(packaged)}", "<= 2.5", partial(first_step, *packaged), TORCH, 3),
    ):
        theirs = partial(run, [sys.executable, "-c", imports])
        pairs = in_turn(partial(seconds, ours), partial(seconds, theirs), rounds)
        rows.append(row(name, "s", goal, pairs))
    return rows


def cpu_seconds(*arguments: str) -> float:
    """Returns the CPU time of a new Python process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run([sys.executable, *arguments])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Cost(NamedTuple):
    """In seconds."""

    wall: float
    cpu: float


def cost(*arguments: str, times: int = 1) -> Cost:
    """Measures a new Python process and its children, which is run so many times."""
    start = time.perf_counter()
    cpu = sum(cpu_seconds(*arguments) for _ in range(times))
    return Cost(time.perf_counter() - start, cpu)


def six_jobs() -> Cost:
    """Measures a sweep of six jobs."""
    words = ["model=mean", "data.limit=500", "trainer.max_epochs=1", "seed=1,2,3,4,5,6"]
    with tempfile.TemporaryDirectory() as folder:
        words += ["data.source=packaged", "logger=csv", f"hydra.sweep.dir={folder}/sweep"]
        return cost("-m", "imdbattn.train", "-m", *words)


def sweep_rows() -> list[Row]:
    six_jobs()  # fills the caches
    pairs = in_turn(six_jobs, partial(cost, "-c", "import torch, lightning", times=6), 3)
    name = "six jobs of a sweep, against importing torch and Lightning six times"
    walls = [(ours.wall, theirs.wall) for ours, theirs in pairs]
    cpus = [(ours.cpu, theirs.cpu) for ours, theirs in pairs]
    return [row(name, "s", "<= 0.55", walls), row(f"{name}: CPU time", "s", "<= 0.55", cpus)]


def prediction_rows() -> list[Row]:
    """Measures the CPU time of the first prediction in a new process, against importing torch."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run_folder = f"{folder}/run"
        rows = []
        short = [
            "data.source=packaged",
            "data.limit=1000",
            "logger=none",
            "pictures=false",
            "trainer.max_epochs=1",
        ]
        train_command = [sys.executable, "-m", "imdbattn.train", "model=residual_pe"]
        run([*train_command, f"hydra.run.dir={run_folder}", *short])
        load = f"import imdbattn; imdbattn.load({run_folder!r}).predict('A fine film.')"
        command = ["-m", "imdbattn.predict", f"run={run_folder}", "text=A fine film."]
        for name, goal, words in (
            ("imdbattn.load(run).predict(text), against importing torch", "<= 1.6", ["-c", load]),
            ("imdbattn.predict text=, against importing torch", "<= 2", command),
        ):
            ours = partial(cpu_seconds, *words)
            theirs = partial(cpu_seconds, "-c", "import torch")
            rows.append(row(name, "s of CPU", goal, in_turn(ours, theirs, 5)))
    return rows


def prepare(cache: str) -> float:
    """Returns the seconds from raw reviews to the first batch, with the caches in `cache`."""
    words = ["data.source=packaged", f"data.cache_dir={cache}"]
    return float(run([sys.executable, "-c", OURS, *words]).split()[-1])


def preparation_rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as cache:
        first = prepare(cache)
        pairs = [(prepare(cache), first) for _ in range(3)]
    return [
        row("prepared and first batch, the second time, against the first", "s", "ours < 1", pairs)
    ]


def observed(*arguments: str) -> tuple[str, float]:
    """Runs Python. Returns its output and its largest resident memory in MB. Raises RuntimeError if
    it fails.
    """
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if status:
        raise RuntimeError(f"{' '.join(arguments[-9:])} failed:\n{text[-2000:]}")
    return text, usage.ru_maxrss * 1024 / 1e6


def train(cache: Path, *overrides: str) -> float:
    """Returns the largest resident memory of a short training run."""
    # W&B's process still writes for a moment
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folders = f"hydra.run.dir={folder}", f"data.cache_dir={cache}"
        return observed("-m", "imdbattn.train", *folders, *SHORT, *overrides)[1]


def write_reviews(folder: Path) -> list[Path]:
    """Writes reviews.parquet, and many.parquet with TIMES copies of each review."""
    whole = packaged_source().load().splits[""]
    labels = pa.array(whole.labels)
    files = [folder / "reviews.parquet", folder / "many.parquet"]
    pq.write_table(pa.table({"text": whole.texts, "label": labels}), files[0])
    copies = []
    for number in range(TIMES):
        texts = [f"{number} {text}" for text in whole.texts]
        copies.append(pa.table({"text": texts, "label": labels}))
    pq.write_table(pa.concat_tables(copies), files[1])
    return files


def ids_mb(cache: Path) -> float:
    """Returns the MB of the ids in the cache of one corpus."""
    tables = (
        pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
        for file in cache.glob("tokens/*/*.arrow")
    )
    return sum(table["ids"].nbytes for table in tables) / 1e6


def memory_rows() -> list[Row]:
    results = []

    def add(name: str, unit: str, goal: str, ours: float, theirs: float) -> None:
        results.append(row(name, unit, goal, [(ours, theirs)]))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for state in ("an empty cache", "a warm cache"):
            peak = train(folder / "packaged", "data.source=packaged")
            name = f"`make train` from {state}: peak memory against the limit"
            add(name, "MB", "< 1", peak, LIMIT)
        files = write_reviews(folder)
        caches = [folder / "once", folder / "often"]
        few, many = (preparation_of(cache, file) for cache, file in zip(caches, files, strict=True))
        # Processor time: on a virtual machine new memory can take minutes.
        name = f"preparing {TIMES}x: processor time per review, against 1x"
        each = 1e6 * many.busy / (TIMES * REVIEWS)
        add(name, "µs", "<= 1.1", each, 1e6 * few.busy / REVIEWS)
        name = f"preparing {TIMES}x: extra peak against the extra text"
        extra_text = (TIMES - 1) * pq.read_table(files[0])["text"].nbytes / 1e6
        add(name, "MB", "", many.peak - few.peak, extra_text)
        name = f"training on {TIMES}x: extra peak against the extra ids"
        short = ["logger=csv", "pictures=false"]
        once = train(caches[0], f"data.path={files[0]}", *short)
        often = train(caches[1], f"data.path={files[1]}", *short)
        add(name, "MB", "< 1", often - once, ids_mb(caches[1]) - ids_mb(caches[0]))
    return results


class Prepared(NamedTuple):
    """Processor time in seconds, and the largest resident memory in MB."""

    busy: float
    peak: float


def preparation_of(cache: Path, file: Path) -> Prepared:
    """Measures the preparation of a file of reviews."""
    output, peak = observed("-c", OURS, f"data.path={file}", f"data.cache_dir={cache}")
    return Prepared(float(output.split()[-2]), peak)
