"""Scores a trained module and writes the results of its run."""

from pathlib import Path
from typing import Any

import lightning as L

from imdbattn.run_folder import SPLIT_FILES, results_file, write_json, write_predictions
from imdbattn.runs.score import run_facts, score_facts
from imdbattn.settings.schema import Settings
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.task import task_of
from imdbattn.tracking.publish import publish_run


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
    cfg: Settings, folder: Path, trainer: L.Trainer, module: Learner, data: BatchData, facts: dict[str, Any]
) -> dict[str, Any]:
    """Scores the splits with the module's weights, and writes the results. Returns the content of metrics.json.

    facts: of `training_facts`.
    """
    task, corpus, settings = task_of(cfg), data.corpus, cfg.model_dump()
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
        publish_run(folder, metrics)
    return metrics
