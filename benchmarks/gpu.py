"""Training on a GPU, measured in less than ten minutes, and the operations that a training step
starts.

python -m benchmarks.gpu                        epochs of residual_pe, compiled, textbook, ladder
python -m benchmarks.gpu --device cpu --reviews 200 --parts epochs textbook    a trial without a GPU
python -m benchmarks.gpu --parts operations     operations per step of each rung, counted on a CPU

A ratio is printed only if both of its sides were measured; the reason for a missing value is below
the table.
"""

import argparse
import platform
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from unittest.mock import patch

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import training
from benchmarks.common import run, seconds, table
from benchmarks.training import fit, settings, small_corpus
from imdbattn.data.corpus import ReviewCorpus
from imdbattn.nn import fast
from imdbattn.runs.trainer import compile_net, quiet
from imdbattn.settings.models import RUNGS
from imdbattn.settings.schema import Training
from imdbattn.tasks.loaders import GPU_CHUNK
from imdbattn.tasks.reviews.classifier import ReviewClassifier, ReviewData

EPOCHS = 4
SEEDS = 5
ALL = 10**6  # more than the number of reviews
COLUMNS = {
    "epoch": "epoch, s",
    "tokens_per_s": "tokens/s",
    "memory": "memory, MB",
    "start": "start, s",
}
Result = TypeVar("Result")
Precision = Literal["32-true", "bf16-mixed"]
PHASES = ("batch", "forward", "backward", "update")
NO_KERNEL = "empty|detach|lift_fresh|_local_scalar|profiler"  # names of operations that start none


class Table:
    """Measured values by name, or the reasons why there are none."""

    def __init__(self, columns: dict[str, str]):
        self.columns = columns
        self.rows: dict[str, dict[str, float]] = {}
        self.failures: list[str] = []

    def measure(self, name: str, work: Callable[[], dict[str, float]]) -> None:
        """Adds a row. work: returns the values of its columns."""
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            self.rows[name] = work()
            if cuda:
                self.rows[name]["memory"] = torch.cuda.max_memory_allocated() / 1e6
        except Exception as error:  # any: the other rows are measured
            self.rows[name] = {}
            reason = " ".join(str(error).split())[:300]
            self.failures.append(f"{name} failed: {type(error).__name__}: {reason}")
        print(f"{name}: {self.rows[name] or self.failures[-1]}", file=sys.stderr)

    def times_as_fast(self, name: str, other: str) -> str:
        """Returns a line with the ratio of the seconds of two rows, if both were measured."""
        epoch = self.rows[name].get("epoch")
        other_epoch = self.rows[other].get("epoch")
        if not epoch or not other_epoch:
            return f"{name}: no ratio with {other}"
        return f"{name}: {other_epoch / epoch:.1f} times as fast as {other}"

    def markdown(self) -> str:
        """Returns the table."""
        lines = []
        for name, row in self.rows.items():
            cells = [f"{row[key]:,.4g}" if key in row else "–" for key in self.columns]
            lines.append([name, *cells])
        return table(["", *self.columns.values()], lines)

    def report(self, ratios: Sequence[tuple[str, str]] = ()) -> str:
        """Returns the table, followed by the ratios of these pairs of rows and the failures."""
        lines = [self.times_as_fast(*pair) for pair in ratios if set(pair) <= self.rows.keys()]
        return "\n".join([self.markdown(), *(f"- {line}" for line in (*lines, *self.failures))])


def trained(
    cfg: Training, module: L.LightningModule, data: L.LightningDataModule
) -> dict[str, float]:
    """Trains EPOCHS epochs. epoch: the median of all but the first; start: what the first took in
    addition.
    """
    times, rate = fit(cfg, module, data, EPOCHS)
    epoch = statistics.median(times[1:])
    return {"epoch": epoch, "tokens_per_s": rate, "start": times[0] - epoch}


def ours(
    corpus: ReviewCorpus, words: Sequence[str], backend: str | None = None
) -> dict[str, float]:
    """Trains residual_pe, as `python -m imdbattn.train` trains it."""
    cfg = settings(*words)
    module = ReviewClassifier.new(cfg, corpus)
    if backend:
        compile_net(module.net, backend)
    return trained(cfg, module, ReviewData(cfg, corpus))


def theirs(reviews: int, device: str, dtype: torch.dtype | None) -> dict[str, float]:
    """Trains the textbook loop at batch 64, on the same reviews."""
    for count in (min(640, reviews), reviews):  # the first steps are not timed
        epoch = training.theirs("train", count, 512, 64, device=device, dtype=dtype)
    lengths = small_corpus(reviews).splits["train"].lengths
    return {"epoch": epoch, "tokens_per_s": int(lengths.clamp(max=512).sum()) / epoch}


def ladder(words: Sequence[str], reviews: int) -> dict[str, float]:
    """Runs the sweep of the ladder with SEEDS seeds, as a user starts it. epoch: seconds of the
    whole command.
    """
    seeds = ",".join(map(str, range(1, SEEDS + 1)))
    options = [f"seed={seeds}", "data.source=packaged", "pictures=false", "logger=csv"]
    options += [f"data.limit={reviews}"] * bool(reviews)
    with tempfile.TemporaryDirectory() as folder:  # the second experiment has the models
        command = [
            sys.executable,
            "-m",
            "imdbattn.train",
            "experiment=[large_batches,ladder]",
            *words,
            *options,
        ]
        command.append(f"hydra.sweep.dir={folder}/sweep")
        return {"epoch": seconds(lambda: run(command, timeout=3600))}


def times(device: str, reviews: int, parts: Sequence[str]) -> str:
    """Returns the table of seconds."""
    corpus = small_corpus(reviews or ALL)
    results = Table(COLUMNS)
    ratios: list[tuple[str, str]] = []
    kind = "gpu" if device == "cuda" else "cpu"
    for name, precision, dtype in (
        ("float32", "32-true", None),
        ("bfloat16", "bf16-mixed", torch.bfloat16),
    ):
        small = [
            "model=residual_pe",
            f"trainer={kind}",
            f"trainer.precision={precision}",
            "data.padded_lengths=6",
        ]
        large = [*small, "data.batch_tokens=65536"]
        best = f"{name}, 65,536 tokens"
        if "epochs" in parts:
            results.measure(f"{name}, 8,192 tokens", partial(ours, corpus, small))
            results.measure(best, partial(ours, corpus, large))
        if "compile" in parts:
            for backend in ("inductor", "reduce-overhead"):
                results.measure(f"{best}, compile={backend}", partial(ours, corpus, large, backend))
        if "textbook" in parts:
            loop = f"textbook, {name}, batch 64"
            results.measure(loop, partial(theirs, reviews or ALL, device, dtype))
            ratios += [(row, loop) for row in results.rows if row.startswith(name)]
    if "ladder" in parts:
        name = f"the ladder, {SEEDS} seeds, whole command"
        results.measure(name, partial(ladder, [f"trainer={kind}"], reviews))
    return results.report(ratios) + "\n"


class Operations(TorchDispatchMode):
    """Counts the operations that start a kernel: all but views and allocations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aliases = [returned.alias_info for returned in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        self.count += not is_view and not re.search(NO_KERNEL, func._schema.name)
        return func(*args, **(kwargs or {}))


def counted(work: Callable[[], Result]) -> tuple[Result, int]:
    """Returns the result of a call, and how many operations it started."""
    with Operations() as operations:
        return work(), operations.count


def generated(work: Callable[[], object]) -> list[int]:
    """Returns the kernels that the compiled forward and backward pass of a call start, counted in
    inductor's code.
    """
    _, codes = run_and_get_code(work)
    kernel = re.compile(
        r"^    .*\b(cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.aten\.\w+\.default)\(",
        re.MULTILINE,
    )
    return [len(kernel.findall(code[code.index("def call(") :])) for code in codes]


def operations(
    corpus: ReviewCorpus, rung: str, precision: Precision, compiled: bool = False
) -> dict[str, float]:
    """Returns the operations of a training step, by phase."""
    cfg = settings(f"model={rung}", "data.padded_lengths=6")
    module = ReviewClassifier.new(cfg, corpus)
    module.trainer = L.Trainer(
        precision=precision, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    batches = ReviewData(cfg, corpus).train_batches()
    all_reviews = np.arange(GPU_CHUNK)
    # of different shapes
    items = [(number, np.roll(all_reviews, number)[:4]) for number in range(GPU_CHUNK)]
    counts = dict.fromkeys(PHASES, 0.0)

    with patch.object(fast, "use_blocks", lambda *_: False):  # attention as on a GPU
        made, count = counted(lambda: batches.several(items))
        batch = made[0]

        def in_precision(work: Callable[..., Tensor]) -> Tensor:
            # casts each weight once
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                return work(batch, *[0] * (work == module.training_step))

        counts["batch"] = count / GPU_CHUNK
        loss, counts["forward"] = counted(lambda: in_precision(module.training_step))
        _, counts["backward"] = counted(loss.backward)
        if compiled:
            module.zero_grad()  # adding to gradients would be counted
            logits_BC, forward = counted(lambda: in_precision(module.net))
            _, backward = counted(lambda: logits_BC.backward(torch.ones_like(logits_BC)))
            compile_net(module.net, "inductor")
            inside = generated(lambda: in_precision(module.training_step).backward())
            counts["forward"] += inside[0] - forward
            counts["backward"] += inside[1] - backward
    optimizer = module.make_optimizer(module.parameter_groups(), **module.fused())
    optimizer.step()  # creates its state
    _, clipping = counted(lambda: module.configure_gradient_clipping(optimizer, 1.0, "norm"))
    _, step = counted(optimizer.step)
    counts["update"] = clipping + step
    return counts | {"sum": sum(counts.values())}


def operation_table() -> str:
    """Returns the operations per step of each rung, and of residual_pe compiled."""
    corpus = small_corpus(GPU_CHUNK)
    results = Table({name: name for name in (*PHASES, "sum")})
    precisions: tuple[Precision, ...] = ("32-true", "bf16-mixed")
    for precision in precisions:
        for rung in RUNGS:
            results.measure(f"{rung}, {precision}", partial(operations, corpus, rung, precision))
        more = partial(operations, corpus, "residual_pe", precision)
        results.measure(f"residual_pe, {precision}, compile=inductor", partial(more, compiled=True))
    return results.report()


PARTS = ("epochs", "compile", "textbook", "ladder", "operations")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--reviews", type=int, default=0, help="training reviews; 0 is all")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--out", type=Path, help="file for the tables; they are printed in any case"
    )
    options = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    needs_gpu = options.device == "cuda" and set(options.parts) != {"operations"}
    if needs_gpu and not has_gpu:
        parser.error("no GPU is available: give --device cpu --reviews 300, or --parts operations")
    quiet()
    name = torch.cuda.get_device_name() if has_gpu else platform.processor() or "CPU"
    versions = f"torch {torch.__version__}, lightning {L.__version__}"
    text = f"{name}, Python {platform.python_version()}, {versions}\n"
    if set(options.parts) - {"operations"}:
        text += "\n" + times(options.device, options.reviews, options.parts)
    if "operations" in options.parts:
        text += "\n" + operation_table()
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
