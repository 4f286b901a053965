"""Callbacks: a progress bar, throughput, and an end for losses that are no numbers."""

import logging
import time
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ProgressBar
from rich import get_console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from imdbattn.errors import UserError
from imdbattn.tasks.learner import from_all

log = logging.getLogger(__name__)


class Progress(ProgressBar):
    """A bar for the batches, and a line about each epoch that stays. Without a terminal only the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.visible = True
        self.bar: Bar | None = None
        self.ended = 0  # the epoch that no line was written about yet, counted from 1
        self.scores: dict[str, float] = {}  # of its validation

    def enable(self) -> None:
        self.visible = True

    def disable(self) -> None:  # called in all processes but the first
        self.visible = False

    def advance(self, description: str, batches: float, batch_idx: int, loss: str = "") -> None:
        if self.bar is None and self.visible and get_console().is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Bar(*columns, TextColumn("{task.fields[loss]}"), transient=True)
            self.bar.add_task(description, total=batches, loss=loss)
            self.bar.start()
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=batch_idx + 1, loss=loss)

    def stop(self) -> None:
        if self.bar:
            self.bar.stop()
        self.bar = None

    def epoch(self, number: int) -> str:
        most = self.trainer.max_epochs or -1
        return f"epoch {number}/{most}" if most > 0 else f"epoch {number}"

    def write_line(self) -> None:
        if not (self.ended and self.visible):
            return
        line = f"{self.epoch(self.ended)}  train loss {self.trainer.callback_metrics['train/loss']:.4f}"
        if self.scores:
            loss, accuracy = self.scores["loss"], 100 * self.scores["accuracy"]
            line += f"  val loss {loss:.4f}, accuracy {accuracy:.2f} %"
            line += f", BLEU {self.scores['bleu']:.1f}" if "bleu" in self.scores else ""
        log.info(line)
        self.ended, self.scores = 0, {}

    def on_train_epoch_start(self, trainer, module) -> None:
        self.write_line()  # the training loss of an epoch is logged after `on_train_epoch_end`

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        every = 10 if module.device.type == "cpu" else trainer.log_every_n_steps  # to read the loss waits for a GPU
        if self.visible and batch_idx % every == 0:
            loss, _, answers = torch.stack(module.trained[-every:]).sum(0).tolist()
            epoch = self.epoch(trainer.current_epoch + 1)
            self.advance(epoch, self.total_train_batches, batch_idx, f"loss {loss / answers:.4f}")

    def on_train_epoch_end(self, trainer, module) -> None:
        self.stop()
        self.ended = trainer.current_epoch + 1

    def on_train_end(self, trainer, module) -> None:
        self.write_line()

    def on_validation_start(self, trainer, module) -> None:
        self.stop()

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self.advance("validation", self.total_val_batches, batch_idx)

    def on_validation_end(self, trainer, module) -> None:
        self.stop()
        self.scores = module.scores.values()

    def on_test_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self.advance("test", sum(trainer.num_test_batches), batch_idx)

    def on_test_end(self, trainer, module) -> None:
        self.stop()

    def on_exception(self, trainer, module, exception) -> None:
        self.stop()


class Throughput(L.Callback):
    """Logs train/tokens_per_s (words, not padding) and train/epoch_seconds: training alone, without validation."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of all epochs
        self.epoch_seconds = 0.0
        self.rate = 0.0  # tokens/s of the last epoch
        self.tokens: list[torch.Tensor] = []
        self.since = 0.0

    def on_train_start(self, trainer, module) -> None:
        self.since = time.perf_counter()  # an epoch that is taken up in its middle has no start

    def on_train_epoch_start(self, trainer, module) -> None:
        self.epoch_seconds, self.tokens, self.since = 0.0, [], time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.tokens.append(batch.lengths_B.sum())

    def words(self) -> float:
        """Words of this epoch so far, in this process. Waits for the device, so it comes before the clock is read."""
        self.tokens = [torch.stack(self.tokens).sum()]
        return self.tokens[0].item()

    def on_validation_start(self, trainer, module) -> None:
        if self.tokens:
            self.words()  # what the device still has to do is training
        self.epoch_seconds += time.perf_counter() - self.since

    def on_validation_end(self, trainer, module) -> None:
        self.since = time.perf_counter()

    def on_train_epoch_end(self, trainer, module) -> None:
        tokens = self.words() * trainer.world_size
        self.epoch_seconds += time.perf_counter() - self.since
        self.seconds += self.epoch_seconds
        self.rate = tokens / self.epoch_seconds
        rates = {"train/tokens_per_s": self.rate, "train/epoch_seconds": self.epoch_seconds}
        module.log_dict(rates, rank_zero_only=False)

    def state_dict(self) -> dict:
        tokens = [self.words()] if self.tokens else []
        epoch_seconds = self.epoch_seconds + time.perf_counter() - self.since
        return {"seconds": self.seconds, "epoch_seconds": epoch_seconds, "rate": self.rate, "tokens": tokens}

    def load_state_dict(self, state: dict) -> None:
        self.seconds, self.epoch_seconds, self.rate = (state[name] for name in ("seconds", "epoch_seconds", "rate"))
        self.tokens = [torch.tensor(int(tokens)) for tokens in state["tokens"]]


class Finite(L.Callback):
    """Ends training with the step, the learning rate and the reviews of the first batch whose loss is NaN or infinite.

    On one CPU it looks at every loss, elsewhere, where looking means waiting, every `log_every_n_steps` and before each
    checkpoint. rows_N: where the reviews of the training split stand in their source.
    """

    def __init__(self, rows_N: np.ndarray):
        self.rows_N = rows_N
        self.lr = 0.0
        self.unseen: list[tuple[int, int, float, torch.Tensor, torch.Tensor]] = []  # step, epoch, lr, loss, rows_B

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        self.lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.unseen.append((trainer.global_step, trainer.current_epoch, self.lr, outputs["loss"], batch.rows_B))
        waits = module.device.type != "cpu" or trainer.world_size > 1
        if not waits or (batch_idx + 1) % trainer.log_every_n_steps == 0:
            self.check(trainer)

    def on_validation_start(self, trainer, module) -> None:
        if trainer.state.fn == "fit":  # before the best weights are kept
            self.check(trainer)
            self.check_weights(trainer, module)

    def check(self, trainer) -> None:
        """Raises UserError for the first loss not seen yet that is not finite; to be called in all processes."""
        fine_S = torch.tensor([], dtype=torch.bool)
        if self.unseen:
            fine_S = torch.stack([loss for *_, loss, _ in self.unseen]).isfinite()
        if not trainer.strategy.reduce_boolean_decision(bool(fine_S.all()), all=True):
            mine = None if fine_S.all() else self.found(*self.unseen[int(fine_S.int().argmin())])
            raise UserError(next(filter(None, from_all(trainer, mine))) + before(trainer))
        self.unseen.clear()

    def found(self, step: int, epoch: int, lr: float, loss: torch.Tensor, rows_B: torch.Tensor) -> str:
        rows = np.sort(self.rows_N[rows_B.cpu().numpy()])
        more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
        return (
            f"the loss is {loss.item()} in step {step} (epoch {epoch + 1}, learning rate {lr:.3g}), of what stands in "
            f"rows {', '.join(map(str, rows[:10]))}{more} of the source: try a lower optim.lr, or look at these reviews"
        )

    def check_weights(self, trainer, module) -> None:
        """Raises UserError when a weight is not finite, as after a gradient that was not."""
        if not all(bool(weight.isfinite().all()) for weight in module.parameters()):
            raise UserError(
                f"weights are not finite after step {trainer.global_step} (epoch {trainer.current_epoch + 1}, "
                f"learning rate {self.lr:.3g}): try a lower optim.lr{before(trainer)}"
            )


def before(trainer: L.Trainer) -> str:
    """What is left of a run that ends: the state before, if one was saved."""
    saved = Path(trainer.default_root_dir, "checkpoints", "last.ckpt").exists()
    return "; checkpoints/last.ckpt is from before" if saved else ""
