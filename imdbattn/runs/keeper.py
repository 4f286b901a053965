"""Keeps the whole state of a run in checkpoints/last.ckpt, so that it goes on after whatever stopped it.

On a CPU it ends with the same bits as if it had not been stopped. Lightning's checkpoint has weights, optimiser,
schedule, loops and callbacks. Added here: random numbers and the sums of the epoch, of every process; the learning
curve's file; whether early stopping has ended the training; and moments to save at, between two steps.
"""

import csv
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from imdbattn.errors import UserError
from imdbattn.files import write_atomically
from imdbattn.runs.callbacks import Finite
from imdbattn.runs.checkpoint import check_like, place_checkpoints
from imdbattn.settings.safety import trust_option
from imdbattn.tasks.learner import from_all

log = logging.getLogger(__name__)

SAVE = 1  # what processes tell each other: 0 for nothing, SAVE, or the number of a signal to stop for (all are above 1)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)  # the last two are sbatch's and submitit's


class Keeper(L.Callback):
    """Saves before each epoch, every `minutes` within one, at the end, and when a signal asks to stop.

    It has to come first of all callbacks: what the others do when an epoch begins is done again after a resumption.
    Raises SystemExit after a signal; UserError when it should save weights that are not finite, or go on with other
    reviews or another number of processes.

    Args:
        folder: the run's.
        fingerprints: of the splits.
        finite: looks at the losses that no one has looked at yet.
        minutes: between two saves within an epoch; None saves at its beginning only.
        begin: writes the run's first files and sets the trainer's loggers. It is called once, when everything that
            Lightning may refuse has been accepted: nothing is written or deleted before.
    """

    def __init__(
        self,
        folder: Path,
        fingerprints: Mapping[str, str],
        finite: Finite,
        minutes: float | None,
        begin: Callable[[L.Trainer], None],
    ):
        self.folder, self.fingerprints, self.finite, self.minutes = folder, dict(fingerprints), finite, minutes
        self.begin, self.begun = begin, False
        self.file = folder / "checkpoints" / "last.ckpt"
        self.asked = 0  # number of the signal that asked this process to stop
        self.said: list[str] = []  # after it has: where, and how to go on; for when the progress bar is gone
        self.saved = time.monotonic()
        self.unasked = 0  # steps since the processes asked each other
        self.ranks: list[dict[str, Any]] = []  # of each process: random numbers, and the sums of this epoch's steps
        self.loaded: dict[str, Any] = {}  # this process's part of them in the checkpoint
        self.curve = ""  # metrics.csv in the checkpoint

    def start(self, trainer: L.Trainer) -> None:
        """Calls `begin`, unless that is done, and writes the learning curve of the checkpoint."""
        if self.begun:
            return
        self.begun = True
        self.begin(trainer)
        for logger in csv_loggers(trainer) if self.curve else ():
            writer = logger.experiment  # which removes the file
            write_atomically(Path(writer.metrics_file_path), self.curve)
            writer.metrics_keys = self.curve.splitlines()[0].split(",")

    # --- when to save ------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.start(trainer)
        if self.loaded:
            loop = trainer.fit_loop.epoch_loop
            if loop.batch_progress.current.completed == 0:
                loop.restarting = False  # with max_steps Lightning takes an epoch that begins for a half one
            # As late as possible: others draw random numbers while they get ready.
            torch.set_rng_state(self.loaded["random"])
            if "cuda" in self.loaded and module.device.type == "cuda":
                torch.cuda.set_rng_state(self.loaded["cuda"], module.device)
        handle(self.ask)  # Lightning puts the former handlers back

    def ask(self, number: int, frame: Any) -> None:
        """Training stops before its next step; the same signal a second time ends the process."""
        self.asked = number
        signal.signal(number, end)

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.state.fn != "fit":  # nothing is to be saved; and Lightning would end with exit status 0
            handle(end)

    def on_test_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.on_validation_start(trainer, module)

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        wish = agreed(trainer, self.asked)
        if wish or trainer.current_epoch:
            trainer.fit_loop.epoch_loop.batch_progress.reset_on_run()  # as the loop itself does next
            with not_begun(trainer.fit_loop.epoch_progress):
                self.save(trainer, module)
        self.obey(wish, trainer)

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.unasked += 1
        loop = trainer.fit_loop.epoch_loop
        validated = loop.total_batch_idx if trainer.check_val_every_n_epoch is None else batch_idx
        # Just saved; gradients are in no checkpoint; Lightning would take a validation that is done for one to come.
        if (
            not batch_idx
            or batch_idx % trainer.accumulate_grad_batches
            or validated % (trainer.val_check_batch or inf) == 0
            or trainer.overfit_batches  # type: ignore[attr-defined] # a list, which is read from its start
        ):
            return
        due = self.minutes is not None and time.monotonic() - self.saved > 60 * self.minutes
        wish = self.asked or SAVE * due
        if trainer.world_size > 1:  # asking each other costs, so they do it now and then
            if self.unasked < trainer.log_every_n_steps:  # type: ignore[attr-defined]
                return
            self.unasked, wish = 0, agreed(trainer, wish)
        if wish:
            with not_begun(loop.batch_progress):
                self.save(trainer, module)
            self.obey(wish, trainer)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.save(trainer, module)
        self.obey(agreed(trainer, self.asked), trainer)

    def obey(self, wish: int, trainer: L.Trainer) -> None:
        """Stops where the wish is a signal's; for SIGUSR1 a SLURM job is put into the queue again."""
        if wish <= SAVE:
            return
        if trainer.is_global_zero:
            name, epoch = signal.Signals(wish).name, trainer.current_epoch + 1
            if trainer.max_epochs is not None and trainer.max_epochs > 0:
                epoch = min(epoch, trainer.max_epochs)  # after the last one
            kept = "all" if self.file.exists() else "nothing"  # as with debug=fast
            where = shlex.quote(os.path.relpath(self.folder)) + trust_option(self.folder / "config.yaml")
            self.said = [
                f"{name}: stopped in epoch {epoch}, step {trainer.global_step}; {kept} is kept",
                f"resume it with:  python -m imdbattn.train resume={where}",
            ]
            if wish == signal.SIGUSR1:
                requeue()
        sys.exit(128 + wish if trainer.is_global_zero else 0)  # a process that fails makes Lightning kill the others

    # --- what to save ------------------------------------------------------------------------------------------------

    def save(self, trainer: L.Trainer, module: Any) -> None:
        """Writes last.ckpt; to be called in all processes."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self.finite.check(trainer)
        self.finite.check_weights(trainer, module)
        mine = {"random": torch.get_rng_state(), "sums": [sums_3.cpu() for sums_3 in module.trained]}
        if module.device.type == "cuda":
            mine["cuda"] = torch.cuda.get_rng_state(module.device)
        self.ranks = from_all(trainer, mine)
        trainer.save_checkpoint(self.file, weights_only=False)
        self.saved = time.monotonic()

    def on_save_checkpoint(self, trainer: L.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        kept: dict[str, Any] = {"ranks": self.ranks, "fingerprints": self.fingerprints, "stopped": trainer.should_stop}
        for logger in csv_loggers(trainer):
            logger.save()
            file = Path(logger.experiment.metrics_file_path)
            kept["curve"] = file.read_text() if file.exists() else ""
        checkpoint["keeper"] = kept

    def on_load_checkpoint(self, trainer: L.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        kept = checkpoint.get("keeper")
        if kept is None:
            raise UserError(f"{self.file} is of an earlier version, which kept too little to go on: start the run anew")
        if kept["fingerprints"] != self.fingerprints:
            raise UserError(
                f"the reviews are no longer those that {os.path.relpath(self.folder)} was trained on: bring them back, "
                "or start a new run"
            )
        if (before := len(kept["ranks"])) != trainer.world_size:
            now = trainer.world_size
            raise UserError(
                f"the run was on {before} processes, and now there are {now}: give it as many devices again, or start "
                "a new run"
            )
        self.loaded, self.curve = kept["ranks"][trainer.global_rank], kept.get("curve", "")
        check_like([self.loaded["random"], kept["stopped"], self.curve], [torch.get_rng_state(), False, ""], "keeper")
        torch.Generator().set_state(self.loaded["random"])  # raises for what is not a state
        if len({len(cells) for cells in csv.reader(self.curve.splitlines())}) > 1:
            raise ValueError("the lines of its learning curve differ in length")
        for sums_3 in self.loaded["sums"]:
            check_like(sums_3, torch.zeros(3), "keeper.sums")
        module.trained = [sums_3.to(module.device) for sums_3 in self.loaded["sums"]]
        trainer.should_stop = kept["stopped"]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, ModelCheckpoint):
                place_checkpoints(callback, checkpoint["callbacks"][callback.state_key])


def handle(handler: Any) -> None:
    """Lets `handler` answer all SIGNALS; only a main thread may say so."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, handler)


def end(number: int, frame: Any) -> None:
    """Answers a signal where there is nothing to save; a second one ends the process without a word."""
    signal.signal(number, signal.SIG_DFL)
    if number == signal.SIGUSR1 and os.environ.get("SLURM_PROCID", "0") == "0":
        requeue()
    sys.exit(128 + number)


@contextmanager
def signals_end_it() -> Iterator[None]:
    """Where training does not answer them itself, signals end the process; SIGUSR1 queues its SLURM job again."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handle(end)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def not_begun(progress: Any) -> Iterator[None]:
    """For what Lightning has counted as begun before it calls the hook that saves."""
    for count in (progress.current, progress.total):
        count.ready -= 1
    try:
        yield
    finally:
        for count in (progress.current, progress.total):
            count.ready += 1


def agreed(trainer: L.Trainer, wish: int) -> int:
    """The strongest wish of all processes, which must do the same."""
    if trainer.world_size == 1:
        return wish
    strongest = torch.tensor(wish, device=trainer.strategy.root_device)
    torch.distributed.all_reduce(strongest, torch.distributed.ReduceOp.MAX)
    return int(strongest)


def csv_loggers(trainer: L.Trainer) -> list[CSVLogger]:
    return [each for each in trainer.loggers if isinstance(each, CSVLogger)] if trainer.is_global_zero else []


def requeue() -> None:
    """Puts the SLURM job that this process belongs to into the queue again; says so where that fails."""
    job = os.environ.get("SLURM_JOB_ID")
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    if job is None:
        return
    if shutil.which("scontrol") is None:
        log.warning("SLURM job %s is not put into the queue again: there is no scontrol here", job)
        return
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
    log.warning("SLURM job %s is in the queue again" if not done.returncode else "scontrol requeue %s: " + said, job)
