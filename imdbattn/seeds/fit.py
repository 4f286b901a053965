"""Trains several seeds of a model together, and writes the run folder of each."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback, LearningRateMonitor
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from imdbattn.data.ragged import Batch
from imdbattn.data.sampling import Batches, TrainBatches
from imdbattn.errors import UserError
from imdbattn.files import make_folder, writing_into
from imdbattn.run_folder import check_folder
from imdbattn.runs.callbacks import Throughput
from imdbattn.runs.fit import prepare_data
from imdbattn.runs.results import summary, training_facts, write_results
from imdbattn.runs.signals import exiting_on_signals
from imdbattn.runs.start import REMEDY, begin_folder, locked
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.seeds.stack import Course, SeedStack
from imdbattn.tasks.build import reason
from imdbattn.tasks.loaders import BatchData, Loader
from imdbattn.tasks.task import task_of
from imdbattn.tasks.trial import try_forward
from imdbattn.tracking.loggers import build_loggers, finish_loggers, wandb_run_of
from imdbattn.tracking.publish import publish_run

log = logging.getLogger(__name__)

Row = tuple[dict[str, float], int | None]  # metrics, and the step at which they were logged


class Rows(Logger):
    """Stores the logged metrics and their steps for the loggers of each run."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    name, version = "seeds", ""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing: each run has its own."""

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append((dict(metrics), step))

    def of(self, course: Course, seeds: int) -> list[Row]:
        """The rows of one of `seeds` seeds as its own run would log them, up to the epoch in which it stopped."""
        rows = []
        for metrics, step in self.rows:
            own = {name.removeprefix(f"{course.seed}/"): value for name, value in metrics.items()}
            own = {name: value for name, value in own.items() if not name.partition("/")[0].isdigit()}
            if "train/tokens_per_s" in own:
                own["train/tokens_per_s"] /= seeds
            if own.keys() - {"epoch"} and (step or 0) < course.steps:
                rows.append((own, step))
        return rows


def fit_seeds(cfgs: Sequence[DictConfig], folders: Sequence[Path]) -> None:
    """Trains runs that differ only in their seed, and fills their run folders.

    Raises UserError for wrong input before anything is deleted or overwritten; after training, for seeds whose loss is
    not finite, when the other folders are complete. A run that is stopped starts from the beginning.
    """
    quiet()
    warnings.filterwarnings("ignore", ".*There is a performance drop.*")  # of attention on a CPU, under vmap
    with ExitStack() as stack:
        for folder in folders:
            check_folder(folder)
            make_folder(folder, REMEDY)
            stack.enter_context(writing_into(folder, REMEDY))
            stack.enter_context(locked(folder))
        stack.enter_context(exiting_on_signals())
        train(cfgs, folders)


def train(cfgs: Sequence[DictConfig], folders: Sequence[Path]) -> None:
    """`fit_seeds` in folders that no other process uses."""
    data, cfgs = prepare_data(*cfgs)
    first, corpus, seeds = cfgs[0], data.corpus, [cfg.seed for cfg in cfgs]

    members: list[Any] = []
    for cfg in cfgs:
        L.seed_everything(cfg.seed, workers=True, verbose=False)
        members.append(task_of(cfg).new(cfg, corpus))
    module = SeedStack(members, seeds, first.choose_by, first.patience)

    def begin(*_: Any) -> None:
        for cfg, folder in zip(cfgs, folders, strict=True):
            begin_folder(folder, cfg.model_dump(), corpus.source_key, keep_training=False)

    throughput, rows = Throughput(), Rows()
    # Lightning has accepted all settings when training starts
    callbacks = [LambdaCallback(on_train_start=begin), throughput, LearningRateMonitor("epoch")]
    trainer = build_trainer(first.trainer, callbacks, default_root_dir=folders[0], enable_checkpointing=False)
    if not data.widths and trainer.strategy.root_device.type == "cpu":
        raise UserError(f"seeds_per_process={first.seeds_per_process} needs data.padded_lengths=6 on a CPU")
    try_forward(members[0], data, first.model.name)
    try:
        try_forward(module, data, first.model.name)
    except UserError as error:
        raise UserError(f"{error}; seeds_per_process=1 trains each seed alone") from error
    module.try_optimizer(trainer.strategy.root_device)

    trainer.loggers = [rows]
    try:
        trainer.fit(module, SeedData(data, seeds))
    except Exception as error:
        if trainer.global_step:
            raise
        raise UserError(f"trainer: {reason(error)}") from error
    if not trainer.global_step:  # with trainer.max_time=00:00:00:00
        begin()
    module.end()
    for number, (cfg, folder, course) in enumerate(zip(cfgs, folders, module.courses, strict=True)):
        if course.failure:
            continue
        share = course.epochs / max(trainer.current_epoch, 1)
        speed = share * throughput.seconds, throughput.rate / len(seeds)
        finish(cfg, folder, members[number], data, course, speed, rows.of(course, len(seeds)))
    if failures := [f"seed {course.seed}: {course.failure}" for course in module.courses if course.failure]:
        raise UserError("; ".join(failures))


def write_rows(loggers: Sequence[Logger], rows: Sequence[Row]) -> None:
    for logger in loggers:
        for metrics, step in rows:
            logger.log_metrics(metrics, step)
        logger.save()


def finish(
    cfg: DictConfig,
    folder: Path,
    module: Any,
    data: BatchData,
    course: Course,
    speed: tuple[float, float],
    rows: Sequence[Row],
) -> None:
    """Writes the results of one seed. speed: seconds of training, and its tokens per second. rows: for its loggers."""
    module.net.load_state_dict(course.weights, strict=False)
    failed, loggers = True, build_loggers(cfg.logger, folder, cfg.model_dump())
    try:
        write_rows(loggers, rows)
        trainer = build_trainer(cfg.trainer, default_root_dir=folder, enable_checkpointing=False)
        trainer.strategy.connect(module)
        trainer.save_checkpoint(folder / "checkpoints" / "best.ckpt", weights_only=True)
        facts = training_facts(module, data.corpus, *speed, epochs=course.epochs, steps=course.steps)
        metrics = write_results(cfg, folder, trainer, module, data, facts)
        if cfg.test:
            test = {f"test/{name}": value for name, value in module.scores.values().items()}
            write_rows(loggers, [({"epoch": course.epochs, **test}, course.steps)])
        publish_run(wandb_run_of(loggers), folder, metrics)
        failed = False
    finally:
        finish_loggers(loggers, failed)
    for line in summary(metrics, folder):
        log.info(line)


# --- batches: at each step those of all seeds have the same shape -----------------------------------------------------


class SeedSampler(Sampler[tuple[Any, ...]]):
    """The items of the samplers of all seeds, step by step."""

    def __init__(self, samplers: Sequence[TrainBatches]):
        self.samplers = samplers

    def set_epoch(self, epoch: int) -> None:
        for sampler in self.samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.samplers[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.samplers, strict=True)


class StackedBatches(Dataset[Batch]):
    """A batch for each seed as one, with a first dimension for the seeds."""

    def __init__(self, batches: Batches):
        self.batches = batches

    def __getitem__(self, items: Sequence[Any]) -> Batch:
        columns = zip(*self.batches.several(items), strict=True)
        return Batch(*(torch.stack(c) if isinstance(c[0], Tensor) else c[0] for c in columns))  # type: ignore[arg-type]


class SeedData(L.LightningDataModule):
    """The batches of `data` for several seeds, which must have few padded lengths; validation is the same for all."""

    def __init__(self, data: BatchData, seeds: Sequence[int]):
        super().__init__()
        self.data, self.seeds = data, seeds

    def setup(self, stage: str) -> None:
        self.data.trainer = self.trainer

    def train_dataloader(self) -> Loader:
        batches = self.data.train_batches()
        samplers = [self.data.train_sampler(batches, seed) for seed in self.seeds]
        return self.data.loader(StackedBatches(batches), SeedSampler(samplers))

    def val_dataloader(self) -> Loader:
        return self.data.val_dataloader()
