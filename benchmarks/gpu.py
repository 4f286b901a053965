"""Training on a GPU, measured in less than ten minutes, and the operations that a training step
starts.

python -m benchmarks.gpu                        recorded steps, their equality, a command, a sweep
python -m benchmarks.gpu --device cpu --reviews 200 --parts equality    a trial without a GPU
python -m benchmarks.gpu --parts operations     operations per step of each rung, counted on a CPU

Each part runs in its own process and within its own time, so that one that hangs costs no other.
A ratio is printed only if both of its sides were measured; the reason for a missing value is below
the table.
"""

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from unittest.mock import patch

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import LambdaCallback
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import common, training
from benchmarks.common import run, seconds, table
from benchmarks.training import fit, settings, small_corpus
from imdbattn.data.corpus import Corpus, ReviewCorpus
from imdbattn.data.plans import BatchPlan
from imdbattn.nn import fast
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.settings.keys import conf_dir
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.data_module import GPU_CHUNK, BatchData
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.recorded import StepRecorder
from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewData
from imdbattn.tasks.task import task_of

ALSO_BFLOAT16 = ("residual_pe", "wide", "seq2seq_attention")
EPOCHS = 4
ALL = 10**6  # more than the number of reviews
COLUMNS = {
    "epoch": "epoch, s",
    "tokens_per_s": "tokens/s",
    "memory": "memory, MB",
    "start": "start, s",
}
Result = TypeVar("Result")
Precision = Literal["32-true", "bf16-mixed"]
PRECISIONS: dict[Precision, torch.dtype | None] = {"32-true": None, "bf16-mixed": torch.bfloat16}
STEPS = 80  # whose losses are compared
COMPARED = {  # each model, with what its recorded steps might get wrong
    "residual_pe": ["model=residual_pe", "model.net.layer.dropout=0.1"],
    "residual_cls": ["model=residual_cls", "label_smoothing=0.1"],
    "tuned": ["model=tuned"],
    "log_counts": ["model=log_counts"],
    "wide": ["model=wide", "model.embedding.mixout=0.9"],
    "gru_query": ["model=gru_query", "decay=linear"],
    "seq2seq_attention": ["task=seq2seq", "model=seq2seq_attention", "data=reverse"],
    "masked words": ["task=masked_words", "model=pretrained"],
}
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
    cfg: TrainingSettings, module: L.LightningModule, data: L.LightningDataModule
) -> dict[str, float]:
    """Trains EPOCHS epochs. epoch: the median of all but the first; start: what the first took in
    addition.
    """
    times, rate = fit(cfg, module, data, EPOCHS)
    epoch = statistics.median(times[1:])
    return {"epoch": epoch, "tokens_per_s": rate, "start": times[0] - epoch}


def ours(corpus: ReviewCorpus, words: Sequence[str]) -> dict[str, float]:
    """Trains residual_pe, as `python -m imdbattn.train` trains it."""
    cfg = settings(*words)
    module = ReviewClassifier.new(cfg, corpus)
    return trained(cfg, module, ReviewData(cfg, corpus))


def theirs(reviews: int, device: str, dtype: torch.dtype | None) -> dict[str, float]:
    """Trains the textbook loop at batch 64, on the same reviews."""
    for count in (min(640, reviews), reviews):  # the first steps are not timed
        epoch = training.theirs("train", count, 512, 64, device=device, dtype=dtype)
    lengths = small_corpus(reviews).splits["train"].lengths
    return {"epoch": epoch, "tokens_per_s": int(lengths.clamp(max=512).sum()) / epoch}


def kind(device: str) -> str:
    """Returns the choice of `trainer`."""
    return "gpu" if device == "cuda" else "cpu"


def rung(device: str, precision: Precision, *words: str) -> list[str]:
    """Returns the overrides of residual_pe with the batches of a GPU."""
    trainer = [f"trainer={kind(device)}", f"trainer.precision={precision}"]
    return ["model=residual_pe", *trainer, "data.max_padded_lengths=6", *words]


def recorded(device: str, reviews: int) -> str:
    """Measures epochs of recorded and eager steps, and of the textbook loop."""
    corpus = small_corpus(reviews or ALL)
    results = Table(COLUMNS)
    ratios: list[tuple[str, str]] = []
    for precision, dtype in PRECISIONS.items():
        loop = f"textbook, {precision}, batch 64"
        results.measure(loop, partial(theirs, reviews or ALL, device, dtype))
        for tokens in (8192, 65536):
            for record in ("auto", "false"):
                name = f"{precision}, {tokens} tokens, record_steps={record}"
                more = (f"data.batch_tokens={tokens}", f"record_steps={record}")
                results.measure(name, partial(ours, corpus, rung(device, precision, *more)))
                ratios.append((name, loop))
    return results.report(ratios)


class LossMonitor(L.Callback):
    """Keeps the loss of each training step, and counts those that the Learner itself made."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.own = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        steps = outputs.get("recorded_steps", [])
        self.own += len(steps)
        self.losses += [step.loss for step in steps] or [outputs["loss"]]


def losses(words: Sequence[str], corpus: Corpus | None) -> tuple[Tensor, int, Corpus]:
    """Returns the losses of STEPS training steps, and how many shapes were recorded."""
    L.seed_everything(1, verbose=False)
    cfg = common.settings(*words)
    task, kept = task_of(cfg), LossMonitor()
    data_class = task.class_of("data", BatchData)
    data = data_class(cfg, corpus or data_class.read(cfg))
    module = task.class_of("module", Learner).new(cfg, data.corpus)
    shapes: list[int] = []
    ended = LambdaCallback(
        on_train_epoch_end=lambda *_: shapes.append(len(getattr(module.recorder, "recordings", ())))
    )
    limits: dict[str, Any] = {"limit_train_batches": STEPS, "limit_val_batches": 0}
    trainer = build_trainer(
        cfg.trainer, [kept, ended], enable_checkpointing=False, max_epochs=1, **limits
    )
    trainer.fit(module, data)
    return torch.stack(kept.losses).cpu(), shapes[-1], data.corpus


def equality(device: str, reviews: int) -> str:
    """Compares the losses of recorded steps with those of eager ones."""
    results = Table(
        {
            "steps": "steps",
            "shapes": "shapes recorded",
            "difference": "largest difference of losses",
        }
    )

    def compare(words: Sequence[str]) -> dict[str, float]:
        shared = ["logger=csv", "trainer.enable_progress_bar=false", *words]
        if "task=seq2seq" not in words:
            shared += ["data.source=packaged", *[f"data.limit={reviews}"] * bool(reviews)]
        with patch.object(StepRecorder, "can_record", False):
            eager, _, corpus = losses(shared, None)
        replayed, shapes, _ = losses(shared, corpus)
        difference = (eager - replayed).abs().max().item()
        return {"steps": len(eager), "shapes": shapes, "difference": difference}

    for precision in PRECISIONS:
        trainer = [f"trainer={kind(device)}", f"trainer.precision={precision}"]
        for name, words in COMPARED.items():
            if precision == "32-true" or name in ALSO_BFLOAT16:
                results.measure(f"{name}, {precision}", partial(compare, [*words, *trainer]))
    return results.report()


def command(device: str, reviews: int) -> str:
    """Measures the command of `make train`, the second time, by phase."""
    results = Table({"seconds": "seconds"})
    options = [f"trainer={kind(device)}", "logger=csv", "data.source=packaged"]
    options += [f"data.limit={reviews}"] * bool(reviews)
    imports = [sys.executable, "-c", "import torch, lightning, wandb"]

    def whole(folder: str) -> dict[str, float]:
        words = [sys.executable, "-m", "imdbattn.train", "model=residual_pe", *options]
        words.append(f"hydra.run.dir={folder}")
        return {"seconds": seconds(lambda: run(words, timeout=100))}

    with tempfile.TemporaryDirectory() as folder:
        results.measure("the command, first time", partial(whole, f"{folder}/first"))
        results.measure("the command", partial(whole, f"{folder}/second"))
        metrics = json.loads(Path(folder, "second", "metrics.json").read_text())
        results.rows["of it training, without validation"] = {"seconds": metrics["train_seconds"]}
        results.measure("imports", lambda: {"seconds": seconds(lambda: run(imports))})
    return results.report() + f"\n- test accuracy {100 * metrics['test_accuracy']:.2f} %"


def sweep(device: str, reviews: int) -> str:
    """Measures the ladder with two seeds, twelve jobs at a time on a GPU."""
    results = Table({"seconds": "seconds"})
    words = [f"trainer={kind(device)}", "experiment=ladder", "seed=1,2", "logger=csv"]
    words += ["pictures=false", "data.source=packaged", "hydra/launcher=local"]
    words.append(f"hydra.launcher.n_jobs={12 if device == 'cuda' else 2}")
    words += [f"data.limit={reviews}"] * bool(reviews)
    with tempfile.TemporaryDirectory() as folder:
        words.append(f"hydra.sweep.dir={folder}/sweep")
        train = [sys.executable, "-m", "imdbattn.train", *words]
        work = partial(run, train, timeout=LIMITS["sweep"])
        results.measure("the ladder, two seeds", lambda: {"seconds": seconds(work)})
    return results.report()


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


def operations(corpus: ReviewCorpus, rung: str, precision: Precision) -> dict[str, float]:
    """Returns the operations of a training step, by phase."""
    cfg = settings(f"model={rung}", "data.max_padded_lengths=6")
    module = ReviewClassifier.new(cfg, corpus)
    module.trainer = L.Trainer(
        precision=precision, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    maker = ReviewData(cfg, corpus).train_dataloader().maker
    all_reviews = np.arange(GPU_CHUNK)
    # of different shapes
    plans = [BatchPlan(number, np.roll(all_reviews, number)[:4]) for number in range(GPU_CHUNK)]
    counts = dict.fromkeys(PHASES, 0.0)

    with patch.object(fast, "use_blocks", lambda *_: False):  # attention as on a GPU
        made, count = counted(lambda: maker.make(plans))
        batch = made[0]

        def in_precision(work: Callable[..., Tensor]) -> Tensor:
            # casts each weight once
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                return work(batch, *[0] * (work == module.training_step))

        counts["batch"] = count / GPU_CHUNK
        loss, counts["forward"] = counted(lambda: in_precision(module.training_step))
        _, counts["backward"] = counted(loss.backward)
    optimizer = module.make_optimizer(module.optimizer_groups(), **module.fused_option())
    optimizer.step()  # creates its state
    _, clipping = counted(lambda: module.configure_gradient_clipping(optimizer, 1.0, "norm"))
    _, step = counted(optimizer.step)
    counts["update"] = clipping + step
    return counts | {"sum": sum(counts.values())}


def operation_table() -> str:
    """Returns the operations per step of each rung."""
    corpus = small_corpus(GPU_CHUNK)
    results = Table({name: name for name in (*PHASES, "sum")})
    precisions: tuple[Precision, ...] = ("32-true", "bf16-mixed")
    ladder = OmegaConf.load(conf_dir() / "experiment" / "ladder.yaml").hydra.sweeper.params
    for precision in precisions:
        for rung in ladder.model.split(","):
            results.measure(f"{rung}, {precision}", partial(operations, corpus, rung, precision))
    return results.report()


PARTS: dict[str, Callable[[str, int], str]] = {
    "recorded": recorded,
    "equality": equality,
    "command": command,
    "sweep": sweep,
    "operations": lambda device, reviews: operation_table(),
}
LIMITS = {"recorded": 160, "equality": 170, "command": 100, "sweep": 150}  # seconds
DEFAULT = tuple(LIMITS)
MOST = 280  # seconds of the other parts


def apart(part: str, options: argparse.Namespace) -> str:
    """Returns the text of a part that runs in its own process, or why there is none."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--here", "--device", options.device]
    command += ["--reviews", str(options.reviews), "--parts", part]
    limit = LIMITS.get(part, MOST)
    try:
        # Its own group: a sweep's jobs end with it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
        )
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"- not finished within {limit} s\n"
    return text if process.returncode == 0 else f"- failed with status {process.returncode}\n"


@quiet()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--reviews", type=int, default=0, help="training reviews; 0 is all")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=DEFAULT)
    parser.add_argument("--here", action="store_true", help="in this process, without a limit")
    parser.add_argument(
        "--out", type=Path, help="file for the tables; they are printed in any case"
    )
    options = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    needs_gpu = options.device == "cuda" and set(options.parts) != {"operations"}
    if needs_gpu and not has_gpu:
        parser.error("no GPU is available: give --device cpu --reviews 300, or --parts operations")
    if options.here:
        for part in options.parts:
            print(PARTS[part](options.device, options.reviews))
        return
    name = torch.cuda.get_device_name() if has_gpu else platform.processor() or "CPU"
    versions = f"torch {torch.__version__}, lightning {L.__version__}"
    text = f"{name}, Python {platform.python_version()}, {versions}\n"
    for part in options.parts:
        text += f"\n{part}\n\n{apart(part, options)}"
        if options.out:
            options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
