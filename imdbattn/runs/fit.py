"""Trains one model from its settings and writes a run folder."""

import logging
from math import inf
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from imdbattn.files import make_folder, writing_into
from imdbattn.run_folder import CONTINUED, check_folder, finished, is_debug, run_of
from imdbattn.runs.callbacks import StopOnNaN, Throughput
from imdbattn.runs.checkpoint import RESTART, AtomicCheckpointIO, ResumeCheckpoint, Stopped
from imdbattn.runs.results import summary, training_facts, write_results
from imdbattn.runs.signals import exiting_on_signals
from imdbattn.runs.start import REMEDY, begin_folder, end_continuation, locked
from imdbattn.runs.trainer import build_trainer, compile_net, quiet
from imdbattn.settings.keys import as_dict, explicit
from imdbattn.settings.safety import read_json, read_settings
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import read_checkpoint
from imdbattn.tasks.first_step import try_step
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.task import task_of
from imdbattn.tracking.loggers import build_loggers, check_logger, finish_loggers, wandb_run_of
from imdbattn.tracking.publish import publish_run

log = logging.getLogger(__name__)


def fit(cfg: DictConfig, folder: Path, resume: bool = False) -> dict[str, Any]:
    """Trains the model that `cfg` describes, scores its best checkpoint once, and fills the run folder.

    resume: continue the run in the folder; otherwise that run is overwritten.
    Returns the content of metrics.json. Raises UserError for wrong input, before anything in the folder is deleted or
    overwritten, and SystemExit after a signal.
    """
    quiet()
    check_folder(folder)
    make_folder(folder, REMEDY)
    with writing_into(folder, REMEDY), locked(folder), exiting_on_signals():
        recorded = read_settings(folder / "config.yaml") if resume and finished(folder) else None
        if recorded and (cfg.trainer.max_epochs or 0) > (recorded["trainer"].get("max_epochs") or inf):
            return train(cfg, folder / CONTINUED, resume)  # the results stay until it has ended
        if not (resume and finished(folder, cfg.test)):
            return train(cfg, folder, resume)
    metrics = read_json(folder / "metrics.json")
    for line in ("This run is already finished:", *summary(metrics, folder)):
        log.info(line)
    return metrics


def train(cfg: DictConfig, folder: Path, resume: bool) -> dict[str, Any]:
    """`fit` in a folder that no other process uses."""
    L.seed_everything(cfg.seed, workers=True, verbose=False)
    data, cfg = prepare_data(cfg)
    task, corpus, settings = task_of(cfg), data.corpus, as_dict(cfg)

    # Model
    run, last = run_of(folder), folder / "checkpoints" / "last.ckpt"
    saved = last if last.exists() else run / "checkpoints" / "last.ckpt"
    checkpoint_io = AtomicCheckpointIO(read_checkpoint(saved, RESTART) if resume and saved.exists() else None)
    resumes = checkpoint_io.content is not None
    module = task.new(cfg, corpus, checkpoint_io.content)

    # Trainer
    loggers: list[Logger] = []

    def begin(trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            begin_folder(folder, settings, corpus.source_key, keep_training=resumes)
        loggers.extend(build_loggers(cfg.logger, folder, settings, resume))
        trainer.loggers = loggers

    throughput, stop_on_nan = Throughput(), StopOnNaN(corpus.splits["train"].rows)
    resume_checkpoint = ResumeCheckpoint(folder, corpus.fingerprints, stop_on_nan, cfg.save_minutes, begin)
    score_to_watch: Any = {"monitor": f"val/{cfg.choose_by}", "mode": "min" if cfg.choose_by == "loss" else "max"}
    best = ModelCheckpoint(last.parent, "best", **score_to_watch, save_weights_only=True, enable_version_counter=False)
    callbacks = [resume_checkpoint, stop_on_nan, throughput, best, LearningRateMonitor("epoch")]
    if cfg.patience:
        callbacks.append(EarlyStopping(**score_to_watch, patience=cfg.patience, strict=False))
    trainer = build_trainer(cfg.trainer, callbacks, checkpoint_io, default_root_dir=folder)
    try_step(module, data, trainer)
    if cfg.compile:
        compile_net(module.net, cfg.compile)

    failed = True
    try:
        run_trainer(trainer, module, data, resume_checkpoint)
        progress = {"epochs": trainer.current_epoch, "steps": trainer.global_step}
        facts = training_facts(module, corpus, throughput.seconds, throughput.rate, **progress)

        # Score the best weights, or the last ones if training stopped before the first validation
        if best.best_model_path:
            file = Path(best.best_model_path)
            module = task.load(cfg, file if file.exists() else run / "checkpoints" / file.name, corpus)
        elif not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(folder / "checkpoints" / "best.ckpt", weights_only=True)
        metrics = write_results(cfg, folder, trainer, module, data, facts)
        publish_run(wandb_run_of(loggers), folder, metrics)
        if run != folder and trainer.is_global_zero:
            end_continuation(folder, settings, corpus.source_key)
        failed = False
    except Stopped as stopped:
        for line in stopped.lines:
            log.warning(line)
        raise
    finally:
        finish_loggers(loggers, failed)
    if trainer.is_global_zero:
        debug_line = f"Debug run: {metrics['steps']} training steps and an evaluation ran; the numbers are not results"
        for line in [debug_line] if is_debug(settings) else summary(metrics, run):
            log.info(line)
    return metrics


def prepare_data(cfg: DictConfig) -> tuple[BatchData, DictConfig]:
    """The batches of a run, and its settings with absolute paths and without `auto`."""
    check_logger(cfg.logger)
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    task = task_of(cfg)
    corpus = task.prepare(cfg)
    data = task.loaders(cfg, corpus)
    return data, validate(explicit(as_dict(cfg), corpus.source, data.batch_tokens))


def run_trainer(trainer: L.Trainer, module: Learner, data: BatchData, checkpoint: ResumeCheckpoint) -> None:
    """Trains, or resumes from the content of the trainer's AtomicCheckpointIO."""
    checkpoint_io: Any = trainer.strategy.checkpoint_io
    trainer.precision_plugin.convert_module(module)  # Lightning converts after loading a checkpoint, which rounds
    if checkpoint_io.content is not None:
        checkpoint.check(checkpoint_io.content, trainer)
    trainer.fit(module, data, ckpt_path=None if checkpoint_io.content is None else checkpoint.file)
    checkpoint.start(trainer)  # if all steps were done before
    if trainer.is_global_zero:
        checkpoint.stop_if(checkpoint.signal, trainer)  # received after the last step
