"""Trains one model from its settings and writes a run folder."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint

from imdbattn.io.checkpoint import read_checkpoint
from imdbattn.io.files import make_folder, writing_into
from imdbattn.runs.attention import AttentionEntropy
from imdbattn.runs.callbacks import StopOnNaN, Throughput, Tracker
from imdbattn.runs.outputs import (
    OTHER_RUN_DIR,
    begin_folder,
    copy_training,
    locked,
    refuse_finished,
    summary,
    write_results,
)
from imdbattn.runs.resume import ResumeCheckpoint, Stopped
from imdbattn.runs.run_folder import check_folder, finished, is_debug
from imdbattn.runs.signals import exiting_on_signals
from imdbattn.runs.trainer import build_trainer, check_hardware, compile_net, quiet, try_step
from imdbattn.settings.keys import as_dict, explicit
from imdbattn.settings.safety import read_json
from imdbattn.settings.schema import LoggerPart, Training
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.per_class import short_name
from imdbattn.tasks.task import task_of, validate

log = logging.getLogger(__name__)


def fit(
    cfg: Training, folder: Path, resume: bool = False, start: Path | None = None
) -> dict[str, Any]:
    """Trains the model that `cfg` describes, scores its best checkpoint once, and fills the run
    folder.

    resume: continues the run in the folder; otherwise an unfinished run in it is replaced, and a
    finished one is refused.
    start: the folder of a finished run, whose training this new run continues.
    Returns the content of metrics.json. Raises UserError for wrong input, before anything in the
    folder is changed, and SystemExit after a signal.
    """
    quiet()
    check_folder(folder)
    make_folder(folder, OTHER_RUN_DIR)
    with writing_into(folder, OTHER_RUN_DIR), locked(folder), exiting_on_signals():
        if not resume:
            refuse_finished(folder)
        if not (resume and finished(folder, cfg.test)):
            return train(cfg, folder, resume, start)
    metrics = read_json(folder / "metrics.json")
    for line in ("This run is already finished:", *summary(metrics, folder)):
        log.info(line)
    return metrics


def train(cfg: Training, folder: Path, resume: bool, start: Path | None) -> dict[str, Any]:
    """Does what `fit` does, in a folder that no other process uses."""
    tracker = tracker_of(cfg.logger)
    check_hardware(cfg.trainer)
    L.seed_everything(cfg.seed, workers=True, verbose=False)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)

    # Data, and the settings with absolute paths and without `auto`
    task = task_of(cfg)
    data: BatchData = task.part("data", BatchData)(cfg)
    corpus = data.corpus
    cfg = validate(explicit(as_dict(cfg), corpus.source, data.batch_tokens))

    # Model
    checkpoints = folder / "checkpoints"
    saved = (start or folder) / "checkpoints" / "last.ckpt"
    state = read_checkpoint(saved) if start or (resume and saved.exists()) else None
    module: Learner = task.part("module", Learner).new(cfg, corpus, state)

    # Trainer
    def begin(trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            keep = state is not None and start is None
            begin_folder(folder, as_dict(cfg), corpus.source_key, keep_training=keep)
            if start:
                copy_training(start, folder)
        trainer.loggers = tracker.start(folder, as_dict(cfg), resume)

    throughput, stop_on_nan = Throughput(), StopOnNaN(corpus.splits["train"].rows)
    fingerprints = {**corpus.fingerprints, "vectors": module.hparams.get("vectors")}
    resume_checkpoint = ResumeCheckpoint(folder, fingerprints, stop_on_nan, cfg.save_minutes, begin)
    monitor = f"val/{short_name(cfg.choose_by)}"
    mode = "min" if cfg.choose_by == "loss" else "max"
    best = ModelCheckpoint(
        checkpoints,
        "best",
        monitor=monitor,
        mode=mode,
        save_weights_only=True,
        enable_version_counter=False,
    )
    callbacks: list[L.Callback] = [
        resume_checkpoint,
        stop_on_nan,
        throughput,
        best,
        LearningRateMonitor("epoch"),
    ]
    if cfg.attention_reviews:
        callbacks.append(AttentionEntropy(cfg.attention_reviews, tracker.log_shares))
    callbacks += tracker.callbacks()
    if cfg.patience:
        early = EarlyStopping(monitor, patience=cfg.patience, mode=mode, strict=False)
        callbacks.append(early)
    trainer = build_trainer(cfg.trainer, callbacks, default_root_dir=folder)
    try_step(module, data, trainer)
    if cfg.compile:
        compile_net(module.net, cfg.compile)

    failed = True
    try:
        # Train
        # Lightning converts after loading a checkpoint, which rounds
        trainer.precision_plugin.convert_module(module)
        trainer.fit(module, data, ckpt_path=saved if state else None)
        resume_checkpoint.end(trainer)
        facts = {
            "parameters": sum(p.numel() for p in module.parameters() if p.requires_grad),
            "train_reviews": len(corpus.splits["train"]),
            "train_fingerprint": corpus.fingerprints["train"],
            "vectors": fingerprints["vectors"],
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "train_seconds": throughput.seconds,
            "epoch_seconds": throughput.seconds / max(trainer.current_epoch, 1),
            "tokens_per_s": throughput.rate,
            **{key: value for key, value in module.hparams.items() if key == "start"},
        }

        # Score the best weights, or the last ones if training stopped before the first validation
        if best.best_model_path:
            module.load_state_dict(read_checkpoint(Path(best.best_model_path))["state_dict"])
        elif not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(checkpoints / "best.ckpt", weights_only=True)
        # scores are those of the net as `evaluate` calls it, without compile
        module.net._compiled_call_impl = None
        metrics = write_results(folder, trainer, module, data, facts)
        tracker.publish(folder, metrics, cfg.choose_by)
        failed = False
    except Stopped as stopped:
        for line in stopped.lines:
            log.warning(line)
        raise
    finally:
        tracker.finish(failed)
    if trainer.is_global_zero:
        debug_line = (
            f"Debug run: {metrics['steps']} training steps and an evaluation ran; the numbers are"
            " not results"
        )
        for line in [debug_line] if is_debug(cfg) else summary(metrics, folder):
            log.info(line)
    return metrics


def tracker_of(loggers: Mapping[str, LoggerPart]) -> Tracker:
    """Returns the tracker of a run with these loggers in addition to metrics.csv.

    Raises UserError for a logger that cannot be used.
    """
    if not loggers:
        return Tracker()
    from imdbattn.tracking.tracker import LoggersTracker

    return LoggersTracker(loggers)
