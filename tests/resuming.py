"""How a run is stopped, and in what two run folders differ."""

import csv
import json
import os
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import torch

TIMES = {"train_seconds", "epoch_seconds", "tokens_per_s"}
TIMES |= {"train/epoch_seconds", "train/tokens_per_s"}


def saved(folder: Path, name: str = "last") -> dict:
    """The content of a checkpoint of a run."""
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def timeless(values: dict) -> dict:
    return {name: value for name, value in values.items() if name not in TIMES}


def curve(folder: Path) -> list[dict]:
    """The lines of metrics.csv, without times."""
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [timeless(line) for line in csv.DictReader(lines)]


def differences(one: Path, other: Path) -> list:
    """Where the results of two runs differ: numbers, weights, learning curve, predictions."""
    found = []
    results = "metrics.json" if (one / "metrics.json").exists() else "debug.json"
    first, second = (timeless(json.loads((run / results).read_text())) for run in (one, other))
    found += [
        (name, first[name], second.get(name)) for name in first if first[name] != second.get(name)
    ]
    for name in ("best", "last"):
        first, second = (saved(run, name)["state_dict"] for run in (one, other))
        found += [f"{name}: {key}" for key in first if not torch.equal(first[key], second[key])]
    first, second = (saved(run)["callbacks"]["Throughput"]["all_tokens"] for run in (one, other))
    found += [f"tokens: {first}, {second}"] if first != second else []
    first, second = (curve(run) for run in (one, other))
    found += [(a, b) for a, b in zip_longest(first, second) if a != b]
    found += [
        file.name
        for file in one.glob("*.parquet")
        if file.read_bytes() != (other / file.name).read_bytes()
    ]
    return found


def stops(monkeypatch, kind):
    """stopping(step, how): a signal in that step, or a crash (how=None); stopping(None): never."""
    plan = SimpleNamespace(step=None, how=None)
    train = kind.training_step

    def training_step(self, batch, batch_idx):
        trainer, first = self.trainer, batch_idx % self.trainer.accumulate_grad_batches == 0
        if trainer.training and trainer.global_step == plan.step and first:
            if plan.how is None:
                raise RuntimeError("the machine is gone")
            os.kill(os.getpid(), plan.how)
        return train(self, batch, batch_idx)

    def stop(step, how=None):
        plan.step, plan.how = step, how

    monkeypatch.setattr(kind, "training_step", training_step)
    return stop


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }
