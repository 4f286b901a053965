"""An ensemble of several runs: the mean of their logits for each review, written as an ordinary run
folder.

    python -m benchmarks.ensemble --folder runs/ensemble-s1 --seed 1 \
        runs/wide-s1 runs/baselines/nb_svm-s1

Nothing is fitted: all members have the same weight. Logits are logarithms of probabilities, so this
is their geometric mean.

Shape suffixes: M members, N reviews of a split, C classes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from benchmarks import baselines
from imdbattn.errors import UserError
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.report.finished_runs import FinishedRun, read_run
from imdbattn.settings.keys import FINGERPRINT_KEYS
from imdbattn.tasks.reviews.module import ReviewScores

# keys of metrics.json, equal in all members
SAME = ("labels", "test_set", "source_key", *FINGERPRINT_KEYS.values())


def scores_of(runs: Sequence[FinishedRun], split: str) -> tuple[ReviewScores, np.ndarray]:
    """Returns the mean logits of the members, as scores, and the reviews' rows in their source."""
    import pyarrow.parquet as pq

    tables = [pq.read_table(run.folder / SPLIT_FILES[split][0]).sort_by("row") for run in runs]
    rows_N = tables[0]["row"].to_numpy()
    probabilities_MNC = np.array(
        [table["probabilities"].to_pylist() for table in tables], dtype=np.float64
    )
    logits_NC = np.log(np.maximum(probabilities_MNC, 1e-12)).mean(0)
    labels_N, lengths_N = (torch.tensor(tables[0][name].to_numpy()) for name in ("label", "length"))
    logits = torch.from_numpy(logits_NC)
    return ReviewScores(torch.arange(len(rows_N)), labels_N, lengths_N, logits), rows_N


def ensemble(folders: Sequence[Path], out: Path, name: str, seed: int) -> dict[str, Any]:
    """Writes the run folder and returns its metrics. Raises UserError for runs that cannot be
    combined.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: choose another --folder")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run is named twice: name each once")
    first, *others = runs = [read_run(folder) for folder in folders]
    for run in others:
        for key in SAME:
            if run.metrics.get(key) != first.metrics.get(key):
                raise UserError(f"{run.path} has another {key} than {first.path}")
    members = [run.metrics for run in runs]
    metrics = {
        "model": name,
        "seed": seed,
        **{key: first.metrics.get(key) for key in SAME},
        "members": [f"{member['model']}-s{member['seed']}" for member in members],
        "parameters": sum(member.get("parameters", 0) for member in members),
        "train_count": first.metrics.get("train_count"),
        "train_seconds": sum(member.get("train_seconds", 0.0) for member in members),
    }
    # without seeds: ensembles of several seeds are one variant
    models = sorted({member["model"] for member in members})
    model = {"name": name, "extends": None, "members": models}
    cfg = OmegaConf.create({"seed": seed, "model": model, "data": first.settings["data"]})
    texts = {split: first.folder / SPLIT_FILES[split][1] for split in ("validation", "test")}
    scored = {split: (*scores_of(runs, split), texts[split]) for split in texts}
    return baselines.write(out, cfg, scored, metrics)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="the run folder to write")
    parser.add_argument("--name", default="ensemble", help="name in tables")
    parser.add_argument("--seed", type=int, default=1, help="number of this ensemble among several")
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of at least two members")
    options = parser.parse_args()
    metrics = ensemble(options.runs, options.folder, options.name, options.seed)
    accuracies = " and ".join(
        f"{100 * metrics[f'{split}_accuracy']:.2f} % on {split}" for split in ("val", "test")
    )
    print(f"{metrics['model']} of {', '.join(metrics['members'])}: {accuracies}")


if __name__ == "__main__":
    main()
