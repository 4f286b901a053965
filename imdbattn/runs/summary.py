"""The lines that are printed at the end of a run."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imdbattn.errors import UserError
from imdbattn.settings.cli import SWEEP_PID
from imdbattn.settings.safety import read_json, trust_option
from imdbattn.tracking.wandb_run import upload_command


def read_results(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Content of metrics.json, and its summary. Raises UserError for a file that is damaged."""
    metrics = read_json(file := folder / "metrics.json")
    try:
        metrics["val_accuracy"] + 0.0
        return metrics, summary(metrics, folder)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged ({error}): delete it, and resume= scores the run") from error


def summary(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """Results and next commands. Raises KeyError, TypeError or ValueError if `metrics` lack a number."""
    training = "{model}, seed {seed}: {epochs:d} epoch{s} in {train_seconds:.0f} s, {tokens_per_s:.0f} tokens/s"
    lines = ["", training.format(s="s" * (metrics["epochs"] != 1), **metrics)]
    items = metrics.get("items", "reviews")
    for split, name in (("val", "validation accuracy"), ("test", "test accuracy")):
        if f"{split}_accuracy" in metrics:
            accuracy, count = 100 * metrics[f"{split}_accuracy"], metrics[f"{split}_reviews"]
            bleu = f", BLEU {metrics[f'{split}_bleu']:.1f}" if f"{split}_bleu" in metrics else ""
            lines.append(f"{name:20} {accuracy:6.2f} %  of {count:d} {items}{bleu}")
    if "test_accuracy" in metrics:
        lines.append(f"test set             {metrics['test_set']} [{metrics['test_fingerprint']}]")
    lines.append(f"run folder           {os.path.relpath(folder)}")
    if not os.environ.get(SWEEP_PID):  # a sweep ends with its comparison
        lines += ["next:", *(f"  {line}" for line in next_commands(metrics, folder))]
    return lines


def next_commands(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """Commands that use a finished run."""
    run = shlex.quote(os.path.relpath(folder)) + trust_option(folder / "config.yaml")
    upload = [line] if (line := upload_command(folder)) else []
    if metrics.get("items") == "masked words":
        return [f"python -m imdbattn.train model=pretrained init={run}", *upload]
    runs = "runs" if Path("runs").resolve() in folder.resolve().parents else os.path.relpath(folder.parent)
    compare = f"python -m imdbattn.compare runs={shlex.quote(runs)}"
    return [f'python -m imdbattn.predict run={run} text="..."', compare, *upload]
