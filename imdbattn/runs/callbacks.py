"""Callbacks for progress and throughput, and to stop training when the loss is not finite."""

import logging
import time

import lightning as L
import numpy as np
import torch
from tqdm import tqdm

from imdbattn.errors import UserError
from imdbattn.tasks.learner import from_all

log = logging.getLogger(__name__)


class Progress(L.Callback):
    """Shows a progress bar for each epoch, in a terminal only, and logs a line per epoch."""

    def __init__(self) -> None:
        self.bar: tqdm | None = None
        self.val_scores: dict[str, float] = {}  # of this epoch; empty before its validation

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        every = 10 if module.device.type == "cpu" else trainer.log_every_n_steps  # reading the loss waits for a GPU
        if batch_idx % every or not trainer.is_global_zero:
            return
        if self.bar is None:  # disable=None: without a terminal
            layout = "{desc} |{bar:30}| {n_fmt}/{total_fmt} {remaining} {postfix}"
            total = trainer.num_training_batches
            self.bar = tqdm(desc=epoch_name(trainer), total=total, bar_format=layout, leave=False, disable=None)
        loss, _, answers = torch.stack(module.epoch_sums[-every:]).sum(0).tolist()
        self.bar.update(batch_idx + 1 - self.bar.n)
        self.bar.set_postfix_str(f"loss {loss / answers:.4f}")

    def on_validation_end(self, trainer, module) -> None:
        if not trainer.sanity_checking:
            self.val_scores = module.scores.values()

    def on_train_epoch_end(self, trainer, module) -> None:
        self.close()
        line = f"{epoch_name(trainer)}  train loss {module.epoch_means()[0].item():.4f}"
        if scores := self.val_scores:
            line += f"  val loss {scores['loss']:.4f}, accuracy {100 * scores['accuracy']:.2f} %"
            line += f", BLEU {scores['bleu']:.1f}" if "bleu" in scores else ""
        if trainer.is_global_zero:
            log.info(line)
        self.val_scores = {}

    def on_exception(self, trainer, module, exception) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar = None


def epoch_name(trainer: L.Trainer) -> str:
    name, last = f"epoch {trainer.current_epoch + 1}", trainer.max_epochs or -1
    return f"{name}/{last}" if last > 0 else name


class Throughput(L.Callback):
    """Logs train/tokens_per_s (words, not padding) and train/epoch_seconds, without the time of validation."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of all epochs
        self.epoch_seconds = 0.0
        self.rate = 0.0  # tokens/s of the last epoch
        self.tokens = torch.tensor(0)  # of this epoch, in this process
        self.since = 0.0

    def on_train_start(self, trainer, module) -> None:
        self.since = time.perf_counter()  # when training resumes within an epoch, `on_train_epoch_start` is not called

    def on_train_epoch_start(self, trainer, module) -> None:
        self.epoch_seconds, self.tokens, self.since = 0.0, torch.tensor(0), time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.tokens = self.tokens + batch.lengths_B.sum()

    def on_validation_start(self, trainer, module) -> None:
        self.tokens.item()  # waits for the device, so that its pending work counts as training
        self.epoch_seconds += time.perf_counter() - self.since

    def on_validation_end(self, trainer, module) -> None:
        self.since = time.perf_counter()

    def on_train_epoch_end(self, trainer, module) -> None:
        tokens = self.tokens.item() * trainer.world_size
        self.epoch_seconds += time.perf_counter() - self.since
        self.seconds += self.epoch_seconds
        self.rate = tokens / self.epoch_seconds
        rates = {"train/tokens_per_s": self.rate, "train/epoch_seconds": self.epoch_seconds}
        module.log_dict(rates, rank_zero_only=False)

    def state_dict(self) -> dict:
        tokens = [self.tokens.item()] if self.tokens else []
        epoch_seconds = self.epoch_seconds + time.perf_counter() - self.since
        return {"seconds": self.seconds, "epoch_seconds": epoch_seconds, "rate": self.rate, "tokens": tokens}

    def load_state_dict(self, state: dict) -> None:
        self.seconds, self.epoch_seconds, self.rate = (state[name] for name in ("seconds", "epoch_seconds", "rate"))
        self.tokens = torch.tensor(sum(state["tokens"]))


class StopOnNaN(L.Callback):
    """Raises UserError for the first batch whose loss is NaN or infinite, naming step, learning rate and reviews.

    Losses are checked every `log_every_n_steps`, because reading one synchronizes with the device, and before each
    checkpoint.
    rows_N: row numbers of the training reviews in their source.
    """

    def __init__(self, rows_N: np.ndarray):
        self.rows_N = rows_N
        self.lr = 0.0
        self.unchecked: list[tuple[int, int, float, torch.Tensor, torch.Tensor]] = []  # step, epoch, lr, loss, rows_B

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        self.lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        epoch = trainer.current_epoch + 1
        self.unchecked.append((trainer.global_step, epoch, self.lr, outputs["loss"], batch.rows_B))
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            self.check_losses(trainer)

    def on_validation_start(self, trainer, module) -> None:
        if trainer.state.fn == "fit":  # the best weights are saved after it
            self.check(trainer, module)

    def check(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Raises UserError if a loss or a weight is not finite; must be called in all processes."""
        self.check_losses(trainer)
        if not all(bool(weight.isfinite().all()) for weight in module.parameters()):  # after such a gradient
            raise UserError(
                f"weights are not finite after step {trainer.global_step} (epoch {trainer.current_epoch + 1}, "
                f"learning rate {self.lr:.3g}): try a lower optim.lr"
            )

    def check_losses(self, trainer: L.Trainer) -> None:
        finite = torch.stack([loss for *_, loss, _ in self.unchecked]).isfinite().tolist() if self.unchecked else []
        own = None if all(finite) else self.message(*self.unchecked[finite.index(False)])
        if message := next(filter(None, from_all(trainer, own)), None):
            raise UserError(message)
        self.unchecked.clear()

    def message(self, step: int, epoch: int, lr: float, loss: torch.Tensor, rows_B: torch.Tensor) -> str:
        rows = np.sort(self.rows_N[rows_B.cpu().numpy()])
        more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
        return (
            f"the loss is {loss.item()} in step {step} (epoch {epoch}, learning rate {lr:.3g}) for the reviews in "
            f"rows {', '.join(map(str, rows[:10]))}{more} of the source: try a lower optim.lr, or check these reviews"
        )
