"""Trains one model from its settings, scores it, and writes its results into a run folder."""

import logging
import math
import os
from collections.abc import Mapping, Sized
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor

from imdbattn.data.corpus import Corpus
from imdbattn.errors import only_warning
from imdbattn.folders.run_folder import (
    BEST,
    LAST,
    SPLIT_FILES,
    check_folder,
    locked,
    refuse_finished,
    results_file,
    write_json,
)
from imdbattn.io.files import Checkpoint, read_checkpoint, write_table, writing_into
from imdbattn.runs.callbacks import BestWeights, LastValidation, LossMonitor, Throughput
from imdbattn.runs.environment import speed_up_cpu
from imdbattn.runs.run_state import RunSignals, RunState
from imdbattn.runs.trainer import build_trainer, check_hardware, quiet
from imdbattn.settings.keys import FINGERPRINT_KEYS, NestedDict
from imdbattn.settings.objects import check_arguments
from imdbattn.settings.schema import TrainingSettings
from imdbattn.settings.trust import custom_classes
from imdbattn.tasks.data_module import BatchData
from imdbattn.tasks.learner import Learner, SplitScores
from imdbattn.tasks.metrics import short_name
from imdbattn.tasks.task import Task, task_of
from imdbattn.tracking.loggers import Tracker

log = logging.getLogger(__name__)


@quiet()
def fit(settings: TrainingSettings, folder: Path, resume: bool = False) -> NestedDict:
    """Trains the model that `settings` describes, scores its best checkpoint, and fills the folder.

    resume: whether to continue the run in the folder; otherwise an unfinished run in it is
    replaced, and a finished one is refused.
    Returns the content of metrics.json. Raises UserError for wrong settings or data, before a file
    of a run in the folder is changed, and for a loss that is not finite; SystemExit after a signal.
    """
    check_folder(folder)
    signals = RunSignals(folder, settings.test, resume)
    with writing_into(folder), locked(folder), signals:
        state = None
        if resume:
            from imdbattn.runs.resume import read_state, results_of

            if (metrics := results_of(folder, settings.test)) is not None:
                return metrics
            state = read_state(folder)
        else:
            refuse_finished(folder)
            warn_of_state(folder)
        return train_and_score(settings, folder, state, signals)


def train_and_score(
    settings: TrainingSettings, folder: Path, state: Checkpoint | None, signals: RunSignals
) -> NestedDict:
    """Trains, scores and fills the locked folder. state: from which the run continues, if any."""
    tracker = Tracker(settings.logger)
    check_settings(settings)
    prepare_process(settings)

    task = task_of(settings)
    data_class = task.class_of("data", BatchData)
    data = data_class(settings, data_class.read(settings))
    settings, corpus = data.settings_to_record(), data.corpus
    module = new_module(task, settings, corpus, state)

    losses, throughput = LossMonitor(corpus.splits["train"].rows), Throughput()
    run_state = RunState(folder, settings, corpus, losses, tracker, signals)
    best = best_weights_callback(settings, folder)
    # Lightning moves `best` to the end, and calls the others in this order: a state is saved before
    # any other callback acts.
    callbacks = [run_state, losses, throughput, best, *other_callbacks(settings, best)]
    reloads = {"reload_dataloaders_every_n_epochs": 1} if data.curriculum() else {}
    # A user's ModelCheckpoint must not replace the files in checkpoints/.
    root = folder / "lightning"
    trainer = build_trainer(settings.trainer, callbacks, default_root_dir=root, **reloads)

    with tracker:
        # Lightning would convert after loading a checkpoint, which rounds the weights.
        trainer.precision_plugin.convert_module(module)
        trainer.fit(module, data, ckpt_path=folder / LAST if state else None)
        if not run_state.has_begun:  # all steps had been made, so training did not begin
            run_state.begin(trainer)
        signals.phase = "after training"
        signals.stop_at_once()
        facts = training_facts(trainer, module, corpus, throughput)
        # The best weights are scored, or the last ones of a run without a validation.
        if best.best_model_path:
            module.load_state_dict(read_checkpoint(folder / BEST)["state_dict"])
        elif not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(folder / BEST, weights_only=True)
        metrics = score_and_write(folder, trainer, module, data, facts)
        tracker.publish(folder, metrics)
    return metrics


# --- results --------------------------------------------------------------------------------------


def score_and_write(
    folder: Path, trainer: L.Trainer, module: Learner, data: BatchData, facts: dict[str, object]
) -> NestedDict:
    """Scores the splits, and writes the results. Returns the content of metrics.json.

    facts: the part of metrics.json about the training.
    """
    settings, task, corpus = module.settings, task_of(module.settings), data.corpus
    splits = ("validation", "test") if settings.test else ("validation",)
    scores = {split: score_split(trainer, module, data, split) for split in splits}
    if not settings.is_debug:
        check_complete(scores, corpus.splits)
    metrics = run_facts(settings.model.name, settings.seed, corpus) | facts
    if task.next_model:
        metrics["next_model"] = task.next_model
    for split, split_scores in scores.items():
        metrics |= score_facts("val" if split == "validation" else split, split_scores)
    if trainer.is_global_zero:
        for split, split_scores in scores.items():
            predictions, texts = SPLIT_FILES[split]
            write_predictions(folder / predictions, split_scores, corpus.splits[split].rows)
            data.save_texts(split, folder / texts)
        if settings.pictures:
            from imdbattn.runs.pictures import draw_pictures  # imports matplotlib

            with only_warning(log, "Some pictures could not be drawn"):
                draw_pictures(module, data, folder)
        # This file is written last: it marks the run as finished.
        write_json(folder / results_file(settings), metrics)
    return metrics


def score_split(trainer: L.Trainer, module: Learner, data: BatchData, split: str) -> SplitScores:
    """Scores a split with the module's weights."""
    # Given the loader instead, Lightning would not call the hooks of a data module.
    data.scored_split = split
    trainer.test(module, data, verbose=False)
    return module.scores


def check_complete(scores: Mapping[str, SplitScores], splits: Mapping[str, Sized]) -> None:
    """Raises RuntimeError unless every item of the scored splits has a score."""
    for split, split_scores in scores.items():
        scored, all_items = len(split_scores.items_N), len(splits[split])
        if scored < all_items:
            raise RuntimeError(f"{scored} of {all_items} items of the {split} split were scored")


def write_predictions(path: Path, scores: SplitScores, rows: np.ndarray) -> None:
    """Writes the row in the source and `scores.columns()` for each item of a split. rows: the rows
    of all items in the split.
    """
    write_table(path, {"row": rows[scores.items_N.numpy()], **scores.columns()})


def run_facts(model: str, seed: int, corpus: Corpus) -> dict[str, object]:
    """Returns the part of metrics.json that identifies model and data."""
    return {
        "model": model,
        "seed": seed,
        "test_set": corpus.test_set,
        **{key: corpus.fingerprints.get(split) for split, key in FINGERPRINT_KEYS.items()},
        "source_key": corpus.source_key,
        "items": corpus.items_name,
        **corpus.facts,
    }


def score_facts(name: str, scores: SplitScores) -> dict[str, object]:
    """Returns the scores of a split, and of the classes, by their names in metrics.json."""
    prefix = f"{name}_" if name else ""
    values = {**scores.metrics, "count": scores.count, **scores.details()}
    return {prefix + key: value for key, value in values.items()}


# --- what training needs --------------------------------------------------------------------------


def prepare_process(settings: TrainingSettings) -> None:
    """Seeds this process, and changes what torch does in it."""
    L.seed_everything(settings.seed, workers=True, verbose=False)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    speed_up_cpu()
    # `deterministic` makes torch fill new memory with NaN; nothing here reads uninitialized memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def warn_of_state(folder: Path) -> None:
    """Warns if a new run replaces the state of a stopped one."""
    if (folder / LAST).exists():
        log.warning(
            "%(run)s has the state of a stopped run, which this run replaces; to continue the"
            " stopped run instead, use resume=%(run)s",
            {"run": os.path.relpath(folder)},
        )


def new_module(
    task: type[Task], settings: TrainingSettings, corpus: Corpus, state: Checkpoint | None
) -> Learner:
    """Returns the module that is trained, with the weights of the run `init` if that is set.

    state: the state from which the run continues; Lightning loads it.
    """
    module_class = task.class_of("module", Learner)
    if not settings.init:
        return module_class.new(settings, corpus)
    from imdbattn.tasks.weights import from_initial

    return from_initial(module_class, settings, corpus, state)


def check_settings(settings: TrainingSettings) -> None:
    """Raises UserError for missing hardware, and for arguments that classes do not accept, before
    data are read.
    """
    check_hardware(settings)
    check_arguments(settings.trainer, "trainer", L.Trainer)
    check_arguments(settings.optim, "optim", torch.optim.Optimizer)
    check_arguments(settings.model.net, "model.net", torch.nn.Module, torch.nn.Module)


def best_weights_callback(settings: TrainingSettings, folder: Path) -> BestWeights:
    """Returns the callback that writes the weights of the best epoch."""
    file = folder / BEST
    return BestWeights(
        file.parent,
        file.stem,
        monitor=f"val/{short_name(settings.choose_by)}",
        mode="min" if settings.choose_by == "loss" else "max",
        # Only in a whole checkpoint may a callback replace the weights, as WeightAveraging does.
        save_weights_only=not settings.trainer.dump().get("callbacks"),
        # After an epoch, a callback may change the weights that were validated: ModelPruning does.
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )


def other_callbacks(settings: TrainingSettings, best: BestWeights) -> list[L.Callback]:
    """Returns early stopping, the last validation, and the callbacks that only watch or check."""
    callbacks: list[L.Callback] = [LearningRateMonitor("epoch"), LastValidation()]
    if custom_classes(settings):
        from imdbattn.runs.try_parts import TryParts  # the package's own parts are tested

        callbacks.append(TryParts())
    if settings.attention_reviews:
        from imdbattn.runs.attention_over_time import AttentionEntropy

        callbacks.append(AttentionEntropy(settings.attention_reviews))
    if settings.patience:
        monitor, mode = str(best.monitor), best.mode
        callbacks.append(
            EarlyStopping(monitor, patience=settings.patience, mode=mode, strict=False)
        )
    return callbacks


def training_facts(
    trainer: L.Trainer, module: Learner, corpus: Corpus, throughput: Throughput
) -> NestedDict:
    """Returns the part of metrics.json that describes the training."""
    epochs = trained_epochs(trainer)
    facts = {
        "parameters": sum(p.numel() for p in module.parameters() if p.requires_grad),
        "train_count": len(corpus.splits["train"]),
        "train_fingerprint": corpus.fingerprints["train"],
        "vectors": module.hparams.get("vectors"),
        "epochs": round(epochs, 2),
        "steps": trainer.global_step,
        "train_seconds": throughput.seconds,
        "epoch_seconds": throughput.seconds / (epochs or 1),
        "tokens_per_s": throughput.all_tokens / (throughput.seconds or 1),
    }
    last = trainer.max_epochs or -1
    if epochs < last and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        from imdbattn.runs.early_end import reason_of_early_end

        reason = reason_of_early_end(trainer)
        facts["ended_early"] = {"epochs": facts["epochs"], "of": last, "reason": reason}
    if init := module.hparams.get("init_digest"):
        facts["init_digest"] = init
    return facts


def trained_epochs(trainer: L.Trainer) -> float:
    """Returns the number of epochs, with the share of the last one, in which a run has trained."""
    batches = trainer.num_training_batches
    done = trainer.fit_loop.epoch_loop.batch_progress.current.completed
    share = done / batches if 0 < batches < math.inf else 1.0
    return max(trainer.current_epoch - 1 + min(share, 1.0), 0.0)
