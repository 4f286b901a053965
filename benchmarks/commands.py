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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import load_file

from benchmarks.common import ROOT, Row, environment, in_turn, row
from imdbattn.data.sources.imdb import packaged_source

REVIEWS = 25_000
HYDRA = "import hydra, omegaconf"
IMPORTS = "import torch, lightning"
# without the clean-up of the process, like FIRST_STEP
TORCH = "import os, torch, lightning; os._exit(0)"
SIX_TIMES = f"""
import subprocess, sys
for _ in range(6):
    subprocess.run([sys.executable, "-c", {IMPORTS!r}])
"""
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
from imdbattn.tasks.reviews.module import ReviewData

cfg = settings(*sys.argv[1:])
start, busy = time.perf_counter(), time.process_time()
next(iter(ReviewData(cfg, ReviewData.read(cfg)).train_dataloader()))
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


class Process(NamedTuple):
    """A process that has ended, with its children.

    wall, cpu: in seconds. peak: the largest resident memory of one of them, in MB.
    """

    output: str
    wall: float
    cpu: float
    peak: float


def python(*arguments: str, status: int = 0) -> Process:
    """Runs Python and measures it. Raises RuntimeError for another exit status."""
    command = [sys.executable, *arguments]
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=output, stderr=output
        )
        _, ended, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(ended)
        output.seek(0)
        text = output.read()
    if process.returncode != status:
        raise RuntimeError(f"{' '.join(arguments[-9:])} failed:\n{text[-2000:]}")
    return Process(text, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def in_folder(key: str, *arguments: str, status: int = 0) -> Process:
    """Measures a command that writes to a temporary folder, which this setting names."""
    # W&B's process still writes for a moment
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return python(*arguments, f"{key}={folder}/run", status=status)


def first_step(*overrides: str) -> Process:
    """Measures a training until its first optimizer step."""
    return in_folder("hydra.run.dir", "-c", FIRST_STEP, *overrides, status=STEPPED)


Pairs = list[tuple[Process, Process]]


def against(code: str, ours: Callable[[], Process], rounds: int) -> Pairs:
    """Measures our side and a Python process that runs `code`, in turn."""
    return in_turn(ours, partial(python, "-c", code), rounds)


def wall_row(name: str, goal: str, pairs: Pairs) -> Row:
    return row(name, "s", goal, [(ours.wall, theirs.wall) for ours, theirs in pairs])


def cpu_row(name: str, goal: str, pairs: Pairs, unit: str = "s") -> Row:
    return row(name, unit, goal, [(ours.cpu, theirs.cpu) for ours, theirs in pairs])


def startup_rows() -> list[Row]:
    first_step()  # fills the caches, including those of compiled Python modules
    command = "-m", "imdbattn.train"
    help_, cfg = partial(python, *command, "--help"), partial(python, *command, "--cfg", "job")
    light, hydra = "<= 1.5 x + 0.5 s", "against importing Hydra"
    step = "train to its first step, against importing torch and Lightning"
    packaged = "data.source=packaged", "logger=csv"
    short = partial(first_step, *packaged)
    return [
        wall_row(f"train --help, {hydra}", light, against(HYDRA, help_, 7)),
        wall_row(f"train --cfg job, {hydra}", light, against(HYDRA, cfg, 7)),
        wall_row(step, "<= 2.5", against(TORCH, first_step, 3)),
        wall_row(f"the same, {' '.join(packaged)}", "<= 2.5", against(TORCH, short, 3)),
    ]


def sweep_rows() -> list[Row]:
    words = ["model=mean", "data.limit=500", "trainer.max_epochs=1", "seed=1,2,3,4,5,6"]
    words += ["data.source=packaged", "logger=csv"]
    jobs = partial(in_folder, "hydra.sweep.dir", "-m", "imdbattn.train", "-m", *words)
    jobs()  # fills the caches
    pairs = against(SIX_TIMES, jobs, 3)
    name = "six jobs of a sweep, against importing torch and Lightning six times"
    return [wall_row(name, "<= 0.55", pairs), cpu_row(f"{name}: CPU time", "<= 0.55", pairs)]


def prediction_rows() -> list[Row]:
    """Measures the CPU time of the first prediction in a new process, against importing torch."""
    train = ["-m", "imdbattn.train", "model=residual_pe", "data.source=packaged"]
    train += ["data.limit=1000", "logger=csv", "pictures=false", "trainer.max_epochs=1"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = f"{folder}/run"
        python(*train, f"hydra.run.dir={run}")
        code = f"import imdbattn; imdbattn.load({run!r}).predict('A fine film.')"
        load = partial(python, "-c", code)
        command = partial(python, "-m", "imdbattn.predict", f"run={run}", "text=A fine film.")
        rows = []
        for name, goal, ours in (
            ("imdbattn.load(run).predict(text)", "<= 1.6", load),
            ("imdbattn.predict text=", "<= 2", command),
        ):
            pairs = against("import torch", ours, 5)
            rows.append(cpu_row(f"{name}, against importing torch", goal, pairs, "s of CPU"))
    return rows


def prepared(cache: Path, *overrides: str) -> tuple[float, float, float]:
    """Returns the CPU time and the wall-clock time from raw reviews to the first batch, in seconds,
    and the largest resident memory in MB. cache: the folder of the caches.
    """
    process = python("-c", OURS, f"data.cache_dir={cache}", *overrides)
    cpu, wall = process.output.split()[-2:]
    return float(cpu), float(wall), process.peak


def preparation_rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as cache:
        first, *later = (prepared(Path(cache), "data.source=packaged")[1] for _ in range(4))
    name = "prepared and first batch, the second time, against the first"
    return [row(name, "s", "ours < 1", [(wall, first) for wall in later])]


def peak(cache: Path, *overrides: str) -> float:
    """Returns the largest resident memory of a short training run, in MB."""
    words = f"data.cache_dir={cache}", *SHORT, *overrides
    return in_folder("hydra.run.dir", "-m", "imdbattn.train", *words).peak


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
    splits = map(load_file, cache.glob("tokens/*/*.safetensors"))
    return sum(columns["ids"].nbytes for columns in splits) / 1e6


def memory_rows() -> list[Row]:
    results = []

    def add(name: str, unit: str, goal: str, ours: float, theirs: float) -> None:
        results.append(row(name, unit, goal, [(ours, theirs)]))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for state in ("an empty cache", "a warm cache"):
            whole = peak(folder / "packaged", "data.source=packaged")
            name = f"`make train` from {state}: peak memory against the limit"
            add(name, "MB", "< 1", whole, LIMIT)
        once, often = write_reviews(folder)
        few, many = folder / "once", folder / "often"  # caches
        few_cpu, _, few_peak = prepared(few, f"data.path={once}")
        many_cpu, _, many_peak = prepared(many, f"data.path={often}")
        # CPU time: on a virtual machine new memory can take minutes.
        name = f"preparing {TIMES}x: processor time per review, against 1x"
        add(name, "µs", "<= 1.1", 1e6 * many_cpu / (TIMES * REVIEWS), 1e6 * few_cpu / REVIEWS)
        name = f"preparing {TIMES}x: extra peak against the extra text"
        extra_text = (TIMES - 1) * pq.read_table(once)["text"].nbytes / 1e6
        add(name, "MB", "", many_peak - few_peak, extra_text)
        name = f"training on {TIMES}x: extra peak against the extra ids"
        short = "logger=csv", "pictures=false"
        extra = peak(many, f"data.path={often}", *short) - peak(few, f"data.path={once}", *short)
        add(name, "MB", "< 1", extra, ids_mb(many) - ids_mb(few))
    return results
