"""Callbacks: a progress bar, and throughput."""

import time

import lightning as L
import torch
from lightning.pytorch.callbacks import RichProgressBar


class Progress(RichProgressBar):
    """Lightning's bar, drawn every ten batches, without the logger's version number."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)

    def get_metrics(self, trainer, pl_module):
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}


class Throughput(L.Callback):
    """Logs train/tokens_per_s (words, not padding) and train/epoch_seconds: training alone, without validation."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of all epochs
        self.epoch_seconds = 0.0
        self.tokens: list[torch.Tensor] = []
        self.since = 0.0

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
        rates = {"train/tokens_per_s": tokens / self.epoch_seconds, "train/epoch_seconds": self.epoch_seconds}
        module.log_dict(rates, rank_zero_only=False)

    def state_dict(self) -> dict:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict) -> None:
        self.seconds = state["seconds"]
