"""Several runs as one: the mean of their logits for each review, written as an ordinary run folder for comparisons.

    python -m benchmarks.ensemble --folder runs/ensemble-s1 --seed 1 runs/wide-s1 runs/baselines/nb_svm-s1

Nothing is fitted: each member counts the same, by the logarithm of its probabilities (a geometric mean of them).

Shape suffixes: M members, N reviews of a split, C classes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import baselines
from imdbattn.comparison.runs import REVIEWS, Run, display, read_run
from imdbattn.errors import UserError
from imdbattn.run_folder import FINGERPRINT, SPLIT_FILES
from imdbattn.runs.score import score_facts
from imdbattn.tasks.learner import Scores

SAME = ("labels", "test_set", "source_key", *FINGERPRINT.values())  # of metrics.json, in all members


def scores_of(runs: Sequence[Run], split: str) -> tuple[Scores, np.ndarray]:
    """The mean logits of the members, as scores, and the reviews' rows in their source. Raises UserError."""
    import pyarrow.parquet as pq

    tables = []
    for run in runs:
        file = run.folder / SPLIT_FILES[split][0]
        if not file.exists():
            raise UserError(f"{display(file)} is not there: the run has not scored {split}")
        tables.append(pq.read_table(file).sort_by("row"))
    rows_N = tables[0]["row"].to_numpy()
    if any(not np.array_equal(table["row"].to_numpy(), rows_N) for table in tables):
        raise UserError(f"the runs have scored different reviews of {split}: score the whole split with each")
    probabilities_MNC = np.array([table["probabilities"].to_pylist() for table in tables], dtype=np.float64)
    logits_NC = np.log(np.maximum(probabilities_MNC, 1e-12)).mean(0)
    labels_N, lengths_N = (torch.tensor(tables[0][name].to_numpy()) for name in ("label", "length"))
    return Scores(torch.arange(len(rows_N)), labels_N, lengths_N, torch.from_numpy(logits_NC)), rows_N


def ensemble(folders: Sequence[Path], out: Path, name: str, seed: int) -> dict[str, Any]:
    """Writes the run folder, metrics.json last, and returns that. Raises UserError for runs that don't fit together."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: choose another --folder")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run is named twice, and would count twice: name each once")
    runs = [read_run(folder) for folder in folders]
    if other := [run for run in runs if run.items != REVIEWS]:
        raise UserError(f"{display(other[0].folder)} is no classifier: it has no probabilities to average")
    for run in runs[1:]:
        for key in SAME:
            if run.metrics.get(key) != runs[0].metrics.get(key):
                raise UserError(
                    f"{display(run.folder)} has another {key} than {display(runs[0].folder)}: no common table"
                )
    found = {split: scores_of(runs, split) for split in ("validation", "test")}
    members = [f"{run.metrics['model']}-s{run.metrics['seed']}" for run in runs]
    seconds = sum(run.metrics.get("train_seconds", 0.0) for run in runs)
    metrics = {
        "model": name,
        "seed": seed,
        **{key: runs[0].metrics.get(key) for key in SAME},
        "members": members,
        "parameters": sum(run.metrics.get("parameters", 0) for run in runs),
        "train_reviews": runs[0].metrics.get("train_reviews"),
        "train_seconds": seconds,
        **score_facts("val", found["validation"][0]),
        **score_facts("test", found["test"][0]),
    }
    kinds = sorted({member.rpartition("-s")[0] for member in members})  # of its seeds, which are one row of a table
    cfg = {"seed": seed, "model": {"name": name, "after": None, "members": kinds}, "data": runs[0].settings["data"]}
    scored = {split: (*found[split], runs[0].folder / texts) for split, (_, texts) in SPLIT_FILES.items()}
    baselines.write(out, cfg, scored, metrics)
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the run folder that is written")
    parser.add_argument("--name", default="ensemble", help="its name in tables")
    parser.add_argument("--seed", type=int, default=1, help="which of several ensembles this is")
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of its members, at least two")
    chosen = parser.parse_args()
    try:
        if len(chosen.runs) < 2:
            raise UserError("an ensemble has two members at least: name more runs")
        metrics = ensemble(chosen.runs, chosen.folder, chosen.name, chosen.seed)
    except (UserError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    accuracies = f"{100 * metrics['val_accuracy']:.2f} % on validation, {100 * metrics['test_accuracy']:.2f} % on test"
    print(f"{metrics['model']} of {', '.join(metrics['members'])}: {accuracies}")


if __name__ == "__main__":
    main()
