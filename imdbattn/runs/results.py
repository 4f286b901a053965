"""Scores a trained module, and writes and prints the results of its run."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from omegaconf import DictConfig

from imdbattn.run_folder import SPLIT_FILES, results_file, write_json, write_predictions
from imdbattn.runs.score import run_facts, score_facts
from imdbattn.settings.cli import SWEEP_PID
from imdbattn.settings.keys import PRETRAINING, as_dict
from imdbattn.settings.safety import trust_option
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.task import task_of
from imdbattn.tracking.wandb_run import upload_command


def training_facts(
    module: Learner, corpus: Any, seconds: float, rate: float, epochs: int, steps: int
) -> dict[str, Any]:
    """The part of metrics.json that describes training. seconds: of all epochs. rate: tokens per second."""
    start = {"start": module.hparams["start"]} if "start" in module.hparams else {}
    return {
        "parameters": sum(p.numel() for p in module.parameters() if p.requires_grad),
        "train_reviews": len(corpus.splits["train"]),
        "epochs": epochs,
        "steps": steps,
        "train_seconds": seconds,
        "epoch_seconds": seconds / max(epochs, 1),
        "tokens_per_s": rate,
        **start,
    }


def write_results(
    cfg: DictConfig, folder: Path, trainer: L.Trainer, module: Learner, data: BatchData, facts: dict[str, Any]
) -> dict[str, Any]:
    """Scores the splits with the module's weights, and writes the results. Returns the content of metrics.json.

    facts: of `training_facts`.
    """
    task, corpus, settings = task_of(cfg), data.corpus, as_dict(cfg)
    loggers, trainer.loggers = trainer.loggers, []  # these scores are not part of the learning curve
    trainer.validate(module, data, verbose=False)
    trainer.loggers = loggers
    scores = {"validation": module.scores}
    if cfg.test:
        trainer.test(module, data, verbose=False)
        scores["test"] = module.scores
    metrics = run_facts(cfg, corpus) | facts
    for split, split_scores in scores.items():
        metrics |= score_facts("val" if split == "validation" else split, split_scores)
    if trainer.is_global_zero:
        for split, split_scores in scores.items():
            predictions, texts = SPLIT_FILES[split]
            write_predictions(folder / predictions, split_scores, corpus.splits[split].rows)
            task.save_texts(corpus, split, folder / texts)
        if cfg.pictures:
            task.draw(module, corpus, cfg, folder)
        write_json(folder / results_file(settings), metrics)  # written last: it marks the run as finished
    return metrics


def summary(metrics: Mapping[str, Any], folder: Path) -> list[str]:
    """Results and next commands."""
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
    if model := PRETRAINING.get(str(metrics.get("items")).replace(" ", "_")):
        return [f"python -m imdbattn.train model={model} init={run}", *upload]
    runs = "runs" if Path("runs").resolve() in folder.resolve().parents else os.path.relpath(folder.parent)
    compare = f"python -m imdbattn.compare runs={shlex.quote(runs)}"
    return [f'python -m imdbattn.predict run={run} text="..."', compare, *upload]
