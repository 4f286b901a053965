"""The progress bar in a terminal. Runs without a terminal do not load this file."""

import lightning as L
import torch
from tqdm import tqdm

from imdbattn.runs.callbacks import epoch_name

BAR = "{desc} |{bar:30}| {n_fmt}/{total_fmt} {remaining} {postfix}"


class EpochBar(L.Callback):
    """Shows how many batches of the epoch are trained, and the loss of the last ones."""

    def __init__(self) -> None:
        self.bar: tqdm | None = None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        # Reading the loss waits for a GPU, so it is read more rarely there.
        every = 10 if module.device.type == "cpu" else trainer.log_every_n_steps
        done = trainer.fit_loop.epoch_loop.batch_idx + 1  # the last of several steps
        if done % every or not trainer.is_global_zero:
            return
        if self.bar is None:
            total = trainer.num_training_batches
            self.bar = tqdm(desc=epoch_name(trainer), total=total, bar_format=BAR, leave=False)
        self.bar.update(done - self.bar.n)
        if module.epoch_sums:
            loss, _, answers = torch.stack(module.epoch_sums[-every:]).sum(0).tolist()
            self.bar.set_postfix_str(f"loss {loss / answers:.4f}")

    def on_train_epoch_end(self, trainer, module) -> None:
        self.close()

    def on_exception(self, trainer, module, exception) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar = None
