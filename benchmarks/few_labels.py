"""What a model is worth with few labels: accuracies and seconds with 500, 1,000, 5,000 and all
labeled reviews.

    python -m benchmarks.few_labels --out runs/labels

For each number of labels and each draw, a folder with train.csv, validation.csv and test.csv is
written: that many training reviews of the packaged split, drawn in equal parts from both classes,
with all of its validation and test reviews. Each model trains on it as it would on any data.path,
with its default settings, on one thread; the draw is also its seed. Validation has more reviews
than training there, but chooses only the epoch, or C of the baseline. Finished runs are kept, so
that the command can be interrupted.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np

from benchmarks.common import ROOT, table
from imdbattn.data.sources.imdb import packaged_source
from imdbattn.data.splits import Split, cut_reviews

MODELS = ("mean", "residual_pe", "log_counts")
BASELINE = "tfidf"
LABELS = ("neg", "pos")


class Result(NamedTuple):
    """One run. test: its accuracy, a share. seconds: of training or fitting."""

    test: float
    seconds: float


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("benchmarks.few_labels", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/labels"), help="folder of the runs")
    parser.add_argument(
        "--labels",
        type=int,
        nargs="+",
        default=[500, 1000, 5000, 0],
        help="numbers of labeled training reviews; 0 is all",
    )
    parser.add_argument("--draws", type=int, default=3, help="draws 1 to this number, at least 2")
    options = parser.parse_args(arguments)
    if options.draws < 2:
        parser.error("--draws must be at least 2: a spread needs two runs")
    splits = packaged_splits()
    rows = []
    for count in options.labels:
        results: dict[str, list[Result]] = {}
        for draw in range(1, options.draws + 1):
            folder = options.out / f"{count or 'all'}-{draw}"
            write_splits(folder / "data", splits, count, draw)
            for model in (BASELINE, *MODELS):
                result = run(model, folder, draw)
                results.setdefault(model, []).append(result)
                print(f"{folder.name} {model}: {result.test:.4f}, {result.seconds:.1f} s")
                sys.stdout.flush()
        size = count or len(splits["train"].labels)
        rows.append([f"{size:,}", *(cell(results[model]) for model in (BASELINE, *MODELS))])
    print(table(("labels", *(f"`{model}`" for model in (BASELINE, *MODELS))), rows))


def packaged_splits() -> dict[str, Split]:
    source = packaged_source()
    shares = {"validation": 0.1, "test": 0.2}
    return dict(cut_reviews(source.load(), source.name, shares).splits)


def write_splits(folder: Path, splits: dict[str, Split], count: int, draw: int) -> None:
    """Writes one csv file for each split, unless the folder has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in splits.items():
        path = folder / f"{name}.csv"
        if path.exists():
            continue
        chosen = drawn(split.labels, count, draw) if name == "train" and count else None
        kept = split if chosen is None else split.select(chosen)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            for text, label in zip(kept.texts, kept.labels, strict=True):
                writer.writerow((text, LABELS[label]))
        temporary.rename(path)


def drawn(labels_N: np.ndarray, count: int, draw: int) -> np.ndarray:
    """Indices of `count` reviews, the same number of each class, in ascending order."""
    rng = np.random.default_rng(draw)
    classes = np.unique(labels_N)
    parts = []
    for label in classes:
        of_class = np.flatnonzero(labels_N == label)
        parts.append(rng.choice(of_class, count // len(classes), replace=False))
    return np.sort(np.concatenate(parts))


def run(model: str, folder: Path, seed: int) -> Result:
    """Trains a rung, or fits the baseline, in a process of its own."""
    data = [f"data.path={folder / 'data'}", "data.label_names=[neg,pos]"]
    if model == BASELINE:
        out = folder / f"{BASELINE}-s1"
        named = ["--only", BASELINE, "--folder", str(folder)]
        command = ["-m", "benchmarks.baselines", *named, "data.source=path", *data]
    else:
        out = folder / model
        fixed = [f"seed={seed}", "threads=1", "logger=csv", "pictures=false"]
        where = f"hydra.run.dir={out}"
        command = ["-m", "imdbattn.train", f"model={model}", *fixed, *data, where]
    if not (out / "metrics.json").exists():
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(ROOT)
        arguments = [sys.executable, *command]
        subprocess.run(arguments, env=environment, check=True, stdout=subprocess.DEVNULL)
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return Result(metrics["test_accuracy"], metrics["train_seconds"])


def cell(results: Sequence[Result]) -> str:
    shares = [100 * result.test for result in results]
    seconds = median(result.seconds for result in results)
    return f"{mean(shares):.1f} ± {stdev(shares):.1f}, {seconds:.0f} s"


if __name__ == "__main__":
    main(sys.argv[1:])
