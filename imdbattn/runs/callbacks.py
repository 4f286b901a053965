"""Lightning callbacks: progress, throughput, a check for losses that are not finite, and the
attention to some reviews, in evaluation mode.

Shape suffixes: B reviews of a batch, H heads, Q queries, N reviews that are measured.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from imdbattn.errors import UserError
from imdbattn.folders.run_folder import head_name
from imdbattn.tasks.data_module import BatchData, on_gpu
from imdbattn.tasks.learner import Learner, Step, from_all

log = logging.getLogger(__name__)
LOWER_RATES = "try a lower optim.lr and, with optim=muon, a lower optim.matrix_lr"
BAR = "{desc} |{bar:30}| {n_fmt}/{total_fmt} {remaining} {postfix}"


class Progress(L.Callback):
    """Logs a line per epoch. has_bar: whether a terminal shows a progress bar, too."""

    def __init__(self, has_bar: bool):
        self.has_bar = has_bar
        self.bar: tqdm | None = None
        self.scores: dict[str, float] | None = None  # from this epoch's validation

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        # Reading the loss waits for a GPU, so it is read more rarely there.
        every = 10 if module.device.type == "cpu" else trainer.log_every_n_steps
        done = trainer.fit_loop.epoch_loop.batch_idx + 1  # the last of several steps
        if done % every or not (self.has_bar and trainer.is_global_zero):
            return
        if self.bar is None:  # disable=None hides it without a terminal
            total = trainer.num_training_batches
            self.bar = tqdm(
                desc=epoch_name(trainer), total=total, bar_format=BAR, leave=False, disable=None
            )
        self.bar.update(done - self.bar.n)
        if module.epoch_sums:
            loss, _, answers = torch.stack(module.epoch_sums[-every:]).sum(0).tolist()
            self.bar.set_postfix_str(f"loss {loss / answers:.4f}")

    def on_validation_end(self, trainer, module) -> None:
        self.scores = module.scores.values

    def on_train_epoch_end(self, trainer, module) -> None:
        self.close_bar()
        line = epoch_name(trainer)
        if means := module.epoch_means():
            line += f"  train loss {means['train/loss'].item():.4f}"
        if scores := self.scores:
            line += f"  val loss {scores['loss']:.4f}, accuracy {100 * scores['accuracy']:.2f} %"
            others = scores.keys() - {"loss", "accuracy"}  # such as the metric of choose_by
            line += "".join(f", {name} {scores[name]:.4g}" for name in sorted(others))
        if trainer.is_global_zero:
            log.info(line)
        self.scores = None

    def on_exception(self, trainer, module, exception) -> None:
        self.close_bar()

    def close_bar(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar = None


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
            "tokens": self.tokens.cpu(),
        }

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)


class LastValidation(L.Callback):
    """Validates after the step that reaches trainer.max_steps, as Lightning does after max_time.
    The steps since the last validation could otherwise not give the best weights.
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


# --- the attention of the validation reviews ------------------------------------------------------

REVIEWS_PER_BATCH = 2  # reviews in a batch: all weights of all layers are in memory
REVIEWS_PER_GPU_BATCH = 12  # starting operations takes most of the time on a GPU


@dataclass(frozen=True)
class Measured:
    """What is measured of each head.

    values: what is logged, by name. An entropy is in nats; a share is an entropy divided by log K,
    the entropy of equal weights on K keys. query_shares: the share of each query of all reviews.
    """

    values: dict[str, float]
    query_shares: dict[str, np.ndarray]


class AttentionEntropy(L.Callback):
    """Logs `measure` of the same validation reviews at each validation, in the first process.

    reviews: their number. log_shares: the method of the run's Tracker.
    """

    def __init__(
        self, reviews: int, log_shares: Callable[[Mapping[str, np.ndarray], int, int], None]
    ):
        self.reviews, self.log_shares = reviews, log_shares
        self.batches: list[object] = []

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        self.batches = self.batches or fixed_batches(trainer.datamodule, self.reviews)
        measured = measure(module, self.batches)
        module.log_dict(measured.values, rank_zero_only=True)
        step = trainer.global_step - 1  # Lightning logs the scores with this number
        self.log_shares(measured.query_shares, trainer.current_epoch, step)


def fixed_batches(data: BatchData, count: int) -> list[object]:
    """Returns the batches of at most `count` validation reviews, evenly spaced in their split."""
    maker = data.batch_maker("validation")
    lengths_N = maker.batch_lengths()
    items_N = np.unique(np.linspace(0, len(lengths_N) - 1, count).round().astype(int))
    items_N = items_N[np.argsort(lengths_N[items_N], kind="stable")]  # needs less padding
    size = REVIEWS_PER_GPU_BATCH if on_gpu(maker) else REVIEWS_PER_BATCH
    starts = range(0, len(items_N), size)
    return [maker.of_items(items_N[start : start + size]) for start in starts]


@torch.no_grad()
def measure(module: Learner, batches: Sequence[object]) -> Measured:
    """Measures the attention of the net to these batches, in evaluation mode.

    The results are means over the queries of a review, then over the reviews; of shares also over
    the reviews that are classified right, and over the others. Reviews with one key are omitted:
    their entropy is always 0.
    """
    columns: dict[str, list[tuple[Tensor, ...]]] = {}
    queries: dict[str, list[np.ndarray]] = {}
    with evaluation_mode(module.net):
        for batch in batches:
            on_device = module.transfer_batch_to_device(batch, module.device, 0)
            attention, right_B = module.attention_and_answers(on_device)
            for name, attended in attention.items():
                several_B = attended.key_count_B > 1
                entropy_BHQ = attended.entropy()
                most_B = attended.key_count_B.float().log()  # rounding may exceed it
                share_BHQ = (entropy_BHQ / most_B[:, None, None]).clamp(max=1)
                largest_BHQ = attended.weights_BHQK.float().amax(-1)
                means = map(attended.over_queries, (entropy_BHQ, share_BHQ, largest_BHQ))
                kept = (part[several_B].cpu() for part in (*means, right_B))
                columns.setdefault(name, []).append(tuple(kept))
                shown_BQ = attended.is_query_BQ & several_B[:, None]
                for head, share_BQ in enumerate(share_BHQ.unbind(1), 1):
                    shares_N = share_BQ[shown_BQ].cpu().numpy()
                    queries.setdefault(head_name(name, head), []).append(shares_N)
    shares = {name: np.concatenate(parts) for name, parts in queries.items()}
    return Measured(means_by_head(columns), shares)


def means_by_head(columns: Mapping[str, Sequence[tuple[Tensor, ...]]]) -> dict[str, float]:
    """Returns the means over reviews of each head, by name.

    columns: for each attention and each batch, entropies, shares and largest weights (N, H), and
    which reviews are classified right (N,).
    """
    values: dict[str, float] = {}
    for name, parts in columns.items():
        entropy_NH, share_NH, largest_NH, right_N = map(torch.cat, zip(*parts, strict=True))
        kinds = {
            "entropy": entropy_NH,
            "share": share_NH,
            "largest": largest_NH,
            "share_right": share_NH[right_N],
            "share_wrong": share_NH[~right_N],
        }
        for measured, values_NH in kinds.items():
            if len(values_NH):
                for head, value in enumerate(values_NH.mean(0).tolist(), 1):
                    values[f"attention_{measured}/{head_name(name, head)}"] = value
    return values


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Sets evaluation mode, and afterwards restores the mode of each module."""
    before = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
