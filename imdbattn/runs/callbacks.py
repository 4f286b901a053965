"""Lightning callbacks: a line per epoch, throughput, a last validation, and a check for losses that
are not finite.
"""

import logging
import time

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from imdbattn.errors import UserError
from imdbattn.folders.run_folder import is_first_process
from imdbattn.tasks.learner import Step, from_all

log = logging.getLogger(__name__)
LOWER_RATES = "try a lower optim.lr and, with optim=muon, a lower optim.matrix_lr"


class EpochLine(L.Callback):
    """Logs a line per epoch."""

    def __init__(self) -> None:
        self.scores: dict[str, float] | None = None  # from this epoch's validation

    def on_validation_end(self, trainer, module) -> None:
        self.scores = module.scores.metrics

    def on_train_epoch_end(self, trainer, module) -> None:
        line = epoch_name(trainer)
        if means := module.epoch_means():  # the module clears the sums after the callbacks
            line += f"  train loss {means['train/loss'].item():.4f}"
        if scores := self.scores:
            line += f"  val loss {scores['loss']:.4f}, accuracy {100 * scores['accuracy']:.2f} %"
            others = scores.keys() - {"loss", "accuracy"}  # such as the metric of choose_by
            line += "".join(f", {name} {scores[name]:.4g}" for name in sorted(others))
        if trainer.is_global_zero:
            log.info(line)
        self.scores = None


def epoch_name(trainer: L.Trainer) -> str:
    name, last = f"epoch {trainer.current_epoch + 1}", trainer.max_epochs or -1
    return f"{name}/{last}" if last > 0 else name


class Throughput(L.Callback):
    """Logs train/tokens_per_s (without padding) and train/epoch_seconds (without validation)."""

    def __init__(self) -> None:
        self.seconds = self.epoch_seconds = 0.0  # in all epochs; in this one before `since`
        self.all_tokens = 0  # in all epochs, of all processes
        self.since = 0.0
        self.tokens = torch.tensor(0)  # in this epoch, of this process

    def on_train_start(self, trainer, module) -> None:
        # Lightning does not call `on_train_epoch_start` if training resumes within an epoch.
        self.since = time.perf_counter()

    def on_train_epoch_start(self, trainer, module) -> None:
        self.epoch_seconds, self.tokens, self.since = 0.0, torch.tensor(0), time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        batches = [step.batch for step in outputs.get("recorded_steps", ())] or [batch]
        self.tokens = self.tokens + torch.cat([each.lengths_B for each in batches]).sum()

    def on_validation_start(self, trainer, module) -> None:
        self.tokens.item()  # this waits for the device, so that its pending work counts as training
        self.epoch_seconds += time.perf_counter() - self.since

    def on_validation_end(self, trainer, module) -> None:
        self.since = time.perf_counter()

    def on_train_epoch_end(self, trainer, module) -> None:
        tokens = trainer.strategy.reduce(self.tokens, reduce_op="sum").item()
        self.epoch_seconds += time.perf_counter() - self.since
        self.seconds += self.epoch_seconds
        self.all_tokens += tokens
        rate = tokens / self.epoch_seconds
        rates = {"train/tokens_per_s": rate, "train/epoch_seconds": self.epoch_seconds}
        module.log_dict(rates, rank_zero_only=False)

    def state_dict(self) -> dict:
        epoch_seconds = self.epoch_seconds + time.perf_counter() - self.since
        return {
            "seconds": self.seconds,
            "epoch_seconds": epoch_seconds,
            "all_tokens": self.all_tokens,
        }

    def on_save_checkpoint(self, trainer, module, checkpoint) -> None:
        # The checkpoint has the state of the first process only.
        tokens = sum(from_all(trainer, self.tokens.item()))
        checkpoint["callbacks"][self.state_key]["tokens"] = tokens

    def load_state_dict(self, state: dict) -> None:
        self.seconds, self.epoch_seconds = state["seconds"], state["epoch_seconds"]
        self.all_tokens = state["all_tokens"]
        # The first process counts the tokens that all processes have read before.
        self.tokens = torch.tensor(state["tokens"] if is_first_process() else 0)


class BestWeights(ModelCheckpoint):
    """Writes the weights of the best epoch into the run folder, even if that was moved: Lightning
    would delete the file that a loaded state names.
    """

    def load_state_dict(self, state_dict: dict) -> None:
        file = f"{self.dirpath}/{self.filename}.ckpt" if state_dict["best_model_path"] else ""
        own = {
            "dirpath": self.dirpath,
            "best_model_path": file,
            "best_k_models": {file: state_dict["best_model_score"]} if file else {},
            "kth_best_model_path": file,
            "last_model_path": "",
        }
        super().load_state_dict(state_dict | own)


class LastValidation(L.Callback):
    """Validates after the step that reaches trainer.max_steps, as Lightning does after max_time.
    Otherwise the steps since the last validation could never be selected as the best.
    """

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True  # Lightning then validates before training ends


class LossMonitor(L.Callback):
    """Every `log_every_n_steps` steps of an epoch, logs the mean loss of their batches, over all
    processes, and the current learning rate. Reading a loss waits for the device, so losses are
    read together.

    Raises UserError for the first batch whose loss is NaN or infinite, naming step, learning rate
    and reviews. Losses and weights are also checked before each checkpoint. rows_N: row numbers of
    the training reviews in their source.
    """

    def __init__(self, rows_N: np.ndarray):
        self.rows_N, self.lr, self.number = rows_N, 0.0, 0
        self.unchecked: list[Step] = []
        self.last: Step | None = None

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        groups = trainer.optimizers[0].param_groups  # empty if `configure_optimizers` returns None
        self.lr = groups[0]["lr"] if groups else 0.0
        self.number = trainer.global_step + 1  # several batches may belong to one step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        loss = outputs.get("loss")  # missing if `training_step` returns None
        if loss is not None:
            only = Step(batch, loss, self.number, trainer.current_epoch, self.lr)
            self.unchecked += outputs.get("recorded_steps", [only])
            self.last = self.unchecked[-1]
        every = trainer.log_every_n_steps * trainer.accumulate_grad_batches  # in batches
        if (trainer.fit_loop.epoch_loop.batch_idx + 1) % every == 0:
            self.check(trainer)
            if self.last and module.epoch_sums:
                sums_3 = torch.stack(module.epoch_sums[-every:]).sum(0)
                loss, _, answers = trainer.strategy.reduce(sums_3, reduce_op="sum").tolist()
                values = {"train/loss_step": loss / answers, "train/lr_step": float(self.last.lr)}
                for logger in trainer.loggers:
                    logger.log_metrics(values, step=self.last.number)

    def on_validation_start(self, trainer, module) -> None:
        if trainer.state.fn == "fit":  # the best weights are saved after validation
            self.check(trainer, module)

    def check(self, trainer: L.Trainer, module: L.LightningModule | None = None) -> None:
        """Raises UserError if a loss or weight is not finite. Must be called in all processes."""
        message = ""
        losses = [step.loss for step in self.unchecked]
        finite = torch.stack(losses).isfinite().tolist() if losses else []
        if not all(finite):
            step = self.unchecked[finite.index(False)]
            rows = np.sort(self.rows_N[step.batch.items_B.cpu().numpy()])
            more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
            message = (
                f"the loss is {step.loss.item()} in {step} for the reviews in rows"
                f" {', '.join(map(str, rows[:10]))}"
            )
            message += f"{more} of the source: {LOWER_RATES}, or check these reviews"
        elif module and not all(bool(weight.isfinite().all()) for weight in module.parameters()):
            message = f"weights are not finite after {self.last}: {LOWER_RATES}"
        if first := next(filter(None, from_all(trainer, message)), None):
            raise UserError(first)
        self.unchecked.clear()
