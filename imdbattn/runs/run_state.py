"""How a run begins, what a signal does to it, and the state from which it resumes at any step, on a
CPU with the same bits as a run that was not interrupted.

checkpoints/last.ckpt contains the complete state of a run. Lightning's checkpoint has weights,
optimizer, schedule, loops and callbacks. This module adds, under STATE_KEY, the random state and
the epoch's sums of every process, the learning curve, and whether early stopping has ended
training. It saves states between two steps.
"""

import io
import time
from math import inf
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from imdbattn.data.corpus import Corpus
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.folders.run_folder import LAST, begin_folder, is_first_process
from imdbattn.io.files import Checkpoint, read_checkpoint, write_atomically
from imdbattn.runs.callbacks import LossMonitor
from imdbattn.runs.environment import environment
from imdbattn.runs.signals import NOTHING_SAVED, StopOnSignals
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.learner import from_all
from imdbattn.tracking.loggers import Tracker

STATE_KEY = "imdbattn_resume_state"  # the key of our state in Lightning's checkpoint
# Processes exchange a request: 0 (none), SAVE, or the number of a signal (all are above 1).
SAVE = 1
BEFORE = "before training"  # where a run is until its first step


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes complete checkpoints or none."""

    def save_checkpoint(
        self, checkpoint: Checkpoint, path: str | Path, storage_options: object = None
    ) -> None:
        """Raises UserError if the state of a callback could not be read again."""
        states, whole = io.BytesIO(), io.BytesIO()
        torch.save(checkpoint.get("callbacks"), states)
        states.seek(0)
        with wrapping_errors(
            "state_dict() of a callback must return only tensors and plain values"
        ):
            torch.load(states, weights_only=True)
        torch.save(checkpoint, whole)
        write_atomically(Path(path), whole.getvalue())

    def load_checkpoint(
        self, path: str | Path, map_location: object = "cpu", weights_only: bool | None = True
    ) -> Checkpoint:
        return read_checkpoint(Path(path))


class RunSignals(StopOnSignals):
    """The signals of a run. The line says where the run stopped, whether its state was saved, and
    how to resume.

    test: whether the run is scored on test. resume: whether it continues the run in the folder.
    """

    def __init__(self, folder: Path, test: bool, resume: bool):
        super().__init__("")
        self.folder, self.test, self.resume = folder, test, resume
        self.phase = BEFORE

    def describe(self) -> str:
        if not is_first_process():
            return ""
        saved = None
        if self.phase != BEFORE or self.resume:  # else the folder may have files of another run
            from imdbattn.runs.resume import what_is_saved

            saved = what_is_saved(self.folder, self.test)
        return f"stopped {self.phase}; {saved or NOTHING_SAVED}"


class RunState(L.Callback):
    """Begins a run or continues one, once Lightning has accepted the settings and the checkpoint.
    Until then, no file of the run is written or deleted.

    Saves the state before each epoch but the first, within an epoch every `save_minutes` unless
    that is None, at the end, and after a signal. Raises Stopped after a signal, and UserError
    instead of saving weights that are not finite.

    It must be the first callback, so that the others see a resumed epoch begin only after its state
    was restored.
    """

    def __init__(
        self,
        folder: Path,
        settings: TrainingSettings,
        corpus: Corpus,
        losses: LossMonitor,
        tracker: Tracker,
        signals: RunSignals,
    ):
        self.folder, self.settings, self.corpus = folder, settings, corpus
        self.losses, self.tracker, self.signals = losses, tracker, signals
        self.file, self.curve_file = folder / LAST, folder / "metrics.csv"
        self.saved_at = time.monotonic()
        self.steps_since_sync = 0  # steps since the processes exchanged requests
        self.has_begun = False
        self.loaded: dict[str, Any] = {}  # our part of the checkpoint from which the run continues

    def begin(self, trainer: L.Trainer) -> None:
        """Writes the first files of the run, and starts its loggers."""
        self.has_begun = True
        if trainer.is_global_zero:
            machine = environment() | {"source_key": self.corpus.source_key}
            begin_folder(self.folder, self.settings, machine, keep_training=bool(self.loaded))
        settings, resume = self.settings.dump(), self.signals.resume
        trainer.loggers = self.tracker.start(self.folder, settings, resume)
        if trainer.is_global_zero and self.loaded.get("curve"):
            from imdbattn.runs.resume import restore_curve

            restore_curve(trainer.loggers[0], self.curve_file, self.loaded["curve"])

    # --- when to save -----------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.begin(trainer)
        if self.loaded:
            from imdbattn.runs.resume import restore_at_start

            restore_at_start(self.loaded["ranks"][trainer.global_rank], trainer, module)
        self.signals.phase = "in training"
        self.signals.defer()  # training stops before its next step

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        request = max(from_all(trainer, self.signals.received))
        if request or trainer.current_epoch:
            # The loop itself does this next.
            trainer.fit_loop.epoch_loop.batch_progress.reset_on_run()
            self.save(trainer, module, trainer.fit_loop.epoch_progress)
        self.stop_if(request, trainer)

    def on_train_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        self.steps_since_sync += 1
        if not can_resume_before(trainer, batch_idx):
            return
        minutes = self.settings.save_minutes
        due = minutes is not None and time.monotonic() - self.saved_at > 60 * minutes
        request = self.signals.received or SAVE * due
        if trainer.world_size > 1:
            # An exchange takes time.
            if self.steps_since_sync < trainer.log_every_n_steps:  # type: ignore[attr-defined]
                return
            self.steps_since_sync, request = 0, max(from_all(trainer, request))
        if request:
            self.save(trainer, module, trainer.fit_loop.epoch_loop.batch_progress)
            self.stop_if(request, trainer)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.save(trainer, module)
        self.stop_if(max(from_all(trainer, self.signals.received)), trainer)

    def stop_if(self, request: int, trainer: L.Trainer) -> None:
        """Raises Stopped if the request is a signal."""
        if request <= SAVE:
            return
        if not trainer.is_global_zero:
            raise SystemExit(0)  # Lightning kills the other processes when one fails
        last = trainer.max_epochs or -1
        epoch = min(trainer.current_epoch + 1, last if last > 0 else inf)  # after the last one
        self.signals.phase = f"in epoch {epoch}, step {trainer.global_step}"
        raise self.signals.stop_exception(request)

    # --- what to save -----------------------------------------------------------------------------

    def save(self, trainer: L.Trainer, module: Any, started: Any = None) -> None:
        """Writes last.ckpt; must be called in all processes.

        started: Lightning's progress of the epoch or batch that it has counted as started before it
        calls the hook.
        """
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self.losses.check(trainer, module)
        counts = [started.current, started.total] if started else []
        for count in counts:
            count.ready -= 1
        trainer.save_checkpoint(self.file, weights_only=False)
        for count in counts:
            count.ready += 1
        self.saved_at = time.monotonic()

    def trained_with(self, trainer: L.Trainer, module: Any) -> dict[str, object]:
        """Returns what must be equal when the run resumes: the fingerprints of the splits, the
        vectors and the code of a custom tokenizer, and the number of processes.
        """
        return {
            **self.corpus.fingerprints,
            "vectors": module.hparams.get("vectors"),
            "tokenizer": self.corpus.facts.get("tokenizer"),
            "processes": trainer.world_size,
        }

    def on_save_checkpoint(self, trainer: L.Trainer, module: Any, checkpoint: Checkpoint) -> None:
        state = {
            "random": torch.get_rng_state(),
            "sums": [sums_3.cpu() for sums_3 in module.epoch_sums],
            "norms": [norm.cpu() for norm in module.gradient_norms],
        }
        if module.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(module.device)
        for logger in trainer.loggers[:1]:  # CSVLogger; there is none before `begin`
            logger.save()
        checkpoint[STATE_KEY] = {
            "ranks": from_all(trainer, state),
            "trained_with": self.trained_with(trainer, module),
            "stopped": trainer.should_stop,
            "curve": self.curve_file.read_text() if self.curve_file.exists() else "",
        }

    def on_load_checkpoint(self, trainer: L.Trainer, module: Any, checkpoint: Checkpoint) -> None:
        """Raises UserError for a checkpoint with other data or another number of processes, and in
        a new run: with OnExceptionCheckpoint, Lightning looks for a checkpoint itself.
        """
        if not self.signals.resume:
            raise UserError(
                "a callback has found a checkpoint of an earlier run: resume that run with"
                " resume=<its folder>, or remove the callback"
            )
        from imdbattn.runs.resume import check_unchanged

        self.loaded = checkpoint[STATE_KEY]
        now = self.trained_with(trainer, module)
        check_unchanged(now, self.loaded["trained_with"], self.folder)
        state = self.loaded["ranks"][trainer.global_rank]
        module.epoch_sums = [sums_3.to(module.device) for sums_3 in state["sums"]]
        module.gradient_norms = [norm.to(module.device) for norm in state["norms"]]
        trainer.should_stop = self.loaded["stopped"]


def can_resume_before(trainer: L.Trainer, batch_idx: int) -> bool:
    """Returns whether a state that is saved before this batch can be resumed there."""
    loop = trainer.fit_loop.epoch_loop
    if batch_idx == 0:  # a state was saved at the start of the epoch
        return False
    if batch_idx % trainer.accumulate_grad_batches:  # checkpoints do not contain gradients
        return False
    if trainer.overfit_batches:  # type: ignore[attr-defined] # a list, which is read from its start
        return False
    done = loop.total_batch_idx if trainer.check_val_every_n_epoch is None else batch_idx
    # After a validation, Lightning would repeat it.
    return done % (trainer.val_check_batch or inf) != 0
