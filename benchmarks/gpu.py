"""The ladder on a GPU: an epoch of residual_pe, the textbook loop on the same GPU, all rungs with several seeds.

python -m benchmarks.gpu pack corpus.npz      on a machine with the reviews: ids and the vectors that they use, < 60 MB
python -m benchmarks.gpu run corpus.npz       on a machine with a GPU; needs no network and no other file
python -m benchmarks.gpu run corpus.npz --device cpu --reviews 200 --seeds 1 --rungs mean residual_pe    tries it
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
import torch

from benchmarks import textbook
from benchmarks.table import Row, markdown, row, write
from benchmarks.training import Ours, as_lists, part, settings, table_VD
from imdbattn.data.corpus import ReviewCorpus, prepare
from imdbattn.data.glove import Glove
from imdbattn.data.ragged import Ragged
from imdbattn.runs.callbacks import Throughput
from imdbattn.runs.trainer import compile_net, quiet
from imdbattn.settings.keys import RUNGS

TENSORS = ("ids", "offsets", "labels")
LIMIT_MB = 60
LARGE = ("data.batch_tokens=65536",)  # on a GPU a step of 8,192 tokens is mostly waiting


def pack(file: Path) -> None:
    """Writes the packaged corpus as ids from 0 to the number of words in use, with the vectors of these words alone."""
    corpus = prepare(settings()["data"])
    used = np.unique(np.concatenate([[0, 1, 2], *(split.ids.numpy() for split in corpus.splits.values())]))
    arrays = {"vectors": corpus.glove.vectors[used], "mean_D": corpus.glove.mean_D, "std_D": corpus.glove.std_D}
    for name, split in corpus.splits.items():
        arrays |= {f"{name}_{part}": getattr(split, part).numpy() for part in TENSORS}
        arrays[f"{name}_ids"] = np.searchsorted(used, split.ids.numpy()).astype(np.int32)
    np.savez_compressed(file, **arrays)
    megabytes = file.stat().st_size / 1e6
    print(f"{file}: {megabytes:.0f} MB, {len(used):,} words")
    if megabytes > LIMIT_MB:
        raise SystemExit(f"{file} is larger than {LIMIT_MB} MB")


def unpack(file: Path) -> ReviewCorpus:
    arrays = np.load(file)
    splits = {}
    for name in ("train", "validation", "test"):
        ids, offsets, labels = (torch.from_numpy(arrays[f"{name}_{part}"]) for part in TENSORS)
        splits[name] = Ragged(ids, offsets, labels, np.arange(len(labels)))
    glove = Glove(None, "packed", arrays["vectors"], arrays["mean_D"], arrays["std_D"])
    return ReviewCorpus(
        splits=splits,
        glove=glove,
        label_names=["neg", "pos"],
        source="packaged",
        source_key="",
        test_set="packed",
        fingerprints={},
        dropped=0,
        facts={},
        folder=file.parent,
    )


def joined(splits: Sequence[Ragged]) -> Ragged:
    """Several splits as one."""
    lengths = torch.cat([split.lengths for split in splits])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    ids, labels = (torch.cat([getattr(split, name) for split in splits]) for name in ("ids", "labels"))
    return Ragged(ids, offsets, labels, np.arange(len(labels)))


class Epochs(Throughput):
    """The seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[float] = []

    def on_train_epoch_end(self, trainer, module) -> None:
        super().on_train_epoch_end(trainer, module)
        self.each.append(self.epoch_seconds)


def epochs(ours: Ours, compiled: bool, count: int = 6) -> list[float]:
    """Seconds of each of `count` epochs; the first warms up and is left out."""
    times = Epochs()
    trainer, module, data = ours.build(times, max_epochs=count)
    if compiled:
        compile_net(module.net, "inductor")
    trainer.fit(module, train_dataloaders=in_trainer(data, trainer))
    return times.each[1:]


def in_trainer(data, trainer):
    """The training batches, cut out on the trainer's device."""
    data.trainer = trainer
    return data.train_dataloader()


def job(file: Path, reviews: int | None, overrides: Sequence[str]) -> tuple[str, float]:
    """Trains one rung with one seed, and returns its name and its accuracy on test at the last epoch."""
    quiet()
    ours = Ours(shortened(unpack(file), reviews), *overrides)
    trainer, module, data = ours.build()
    trainer.fit(module, train_dataloaders=in_trainer(data, trainer))
    trainer.test(module, data, verbose=False)
    return ours.cfg["model"]["name"], module.scores.accuracy


def shortened(corpus: ReviewCorpus, reviews: int | None) -> ReviewCorpus:
    """The corpus with so many reviews of each split, drawn at random."""
    if reviews is None:
        return corpus
    return replace(corpus, splits={name: part(split, reviews) for name, split in corpus.splits.items()})


def ladder(file: Path, options: argparse.Namespace, trainer: list[str]) -> float:
    """Minutes for all rungs and seeds, `options.side_by_side` jobs on the device at a time; prints their accuracies."""
    start, found = time.perf_counter(), {}
    with ProcessPoolExecutor(options.side_by_side, get_context("spawn")) as pool:
        jobs = []
        for rung in options.rungs:
            for seed in range(1, options.seeds + 1):
                epochs = [] if options.epochs is None else [f"trainer.max_epochs={options.epochs}"]
                overrides = [f"model={rung}", f"seed={seed}", *trainer, *epochs, *options.overrides]
                jobs.append(pool.submit(job, file, options.reviews, overrides))
        for done in jobs:
            rung, accuracy = done.result()
            found.setdefault(rung, []).append(100 * accuracy)
    minutes = (time.perf_counter() - start) / 60
    print("\n| rung | test % |\n|---|---|")
    for rung, values in found.items():
        print(f"| `{rung}` | {mean(values):.1f} ± {stdev(values) if len(values) > 1 else 0:.1f} |")
    return minutes


def run(file: Path, options: argparse.Namespace) -> list[Row]:
    quiet()
    gpu = options.device == "cuda"
    if gpu and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here: --device cpu --reviews 200 tries it without one")
    trainer = ["trainer=gpu" if gpu else "trainer=cpu", "logger=none", "trainer.enable_progress_bar=false"]
    print(f"{torch.cuda.get_device_name() if gpu else 'CPU'}, torch {torch.__version__}")
    corpus = shortened(unpack(file), options.reviews)
    corpus = replace(corpus, splits={**corpus.splits, "train": joined(list(corpus.splits.values()))})
    count = len(corpus.splits["train"])
    pairs, vectors_VD = as_lists(corpus.splits["train"]), table_VD(corpus)
    longest = max(len(ids) for ids, _ in pairs)

    def textbook_epoch(batch: int, reviews: list = pairs) -> float:
        net = textbook.TextbookNet(vectors_VD.shape[1], 2, 0.2, longest).to(options.device)
        return textbook.train(net, reviews, textbook.collate(vectors_VD, 512), batch, device=options.device)

    rows, best = [], float("inf")
    for name, compiled, overrides in (
        ("batches of 8,192 tokens", False, ()),
        ("batches of 65,536 tokens", False, LARGE),
        ("batches of 65,536 tokens, compiled", True, LARGE),
    ):
        if compiled and not gpu:
            continue
        times = epochs(Ours(corpus, *trainer, "data.word_dropout=0", *overrides, *options.overrides), compiled)
        best = min(best, median(times))
        rows.append(row(f"epoch of residual_pe, {count:,} reviews, {name}", "s", "< 1 s", [(t, 1.0) for t in times]))
    textbook_epoch(16, pairs[:64])  # both sides are warm
    for batch in (16, 64):
        name = f"the best of these; float32 textbook at batch {batch}"
        rows.append(row(name, "reviews/s", ">= 30", [(count / best, count / textbook_epoch(batch))]))
    minutes = ladder(file, options, trainer)  # in the batches of the CPU's table, for the same accuracy
    rows.append(row(f"{len(options.rungs)} rungs x {options.seeds} seeds", "min", "< 5 min", [(minutes, 5.0)]))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("pack", "run"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--reviews", type=int, help="so many of each split; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="instead of each rung's own number")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=RUNGS)
    parser.add_argument("--side-by-side", type=int, default=8, help="jobs of the ladder at a time")
    parser.add_argument("--overrides", nargs="*", default=[], help="settings for ours, such as optim.lr=0.006")
    parser.add_argument("--out", type=Path, help="folder for results.json and results.md")
    options = parser.parse_args(arguments)
    if options.do == "pack":
        return pack(options.file)
    rows = run(options.file, options)
    print("\n" + markdown(rows), end="")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        write(rows, options.out)
    return None


if __name__ == "__main__":
    main()
