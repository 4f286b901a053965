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
    for split, name in (("val", "validation"), ("test", "test")):
        if (accuracy := metrics.get(f"{split}_accuracy")) is not None:
            bleu = f", BLEU {metrics[f'{split}_bleu']:.1f}" if f"{split}_bleu" in metrics else ""
            count = metrics[f"{split}_reviews"]
            lines.append(f"{name + ' accuracy':20} {100 * accuracy:6.2f} %  of {count:d} {items}{bleu}")
    if "test_accuracy" in metrics:
        lines.append(f"test set             {metrics['test_set']} [{metrics['test_fingerprint']}]")
    lines.append(f"run folder           {os.path.relpath(folder)}")
    if not os.environ.get(SWEEP_PID):  # a sweep ends with its comparison
        lines += ["next:", *(f"  {line}" for line in next_commands(metrics, folder))]
    return lines


def next_commands(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """Commands to use a finished run with."""
    run = shlex.quote(os.path.relpath(folder)) + trust_option(folder / "config.yaml")
    if metrics.get("items") == "masked words":
        commands = [f"python -m imdbattn.train model=pretrained init={run}"]
    else:
        runs = "runs" if Path("runs").resolve() in folder.resolve().parents else os.path.relpath(folder.parent)
        commands = [
            f'python -m imdbattn.predict run={run} text="..."',
            f"python -m imdbattn.compare runs={shlex.quote(runs)}",
        ]
    return [*commands, *filter(None, [upload_command(folder)])]
