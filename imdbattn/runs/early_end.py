"""Why training ended before trainer.max_epochs."""

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, Timer


def reason_of_early_end(trainer: L.Trainer) -> str:
    """Returns why training ended before its last epoch."""
    reason = "a callback, or the module, has set trainer.should_stop"
    if 0 <= trainer.max_steps <= trainer.global_step:
        reason = f"trainer.max_steps={trainer.max_steps} is reached"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        remaining = callback.time_remaining() if isinstance(callback, Timer) else None
        if remaining is not None and remaining <= 0:
            reason = "trainer.max_time is over"
        if isinstance(callback, EarlyStopping):
            if callback.wait_count >= callback.patience:
                s = "s" * (callback.patience != 1)
                reason = f"{callback.monitor} did not improve in {callback.patience} validation{s}"
            elif stopped := callback.stopped_epoch:  # decided before trainer.min_epochs
                reason = f"early stopping by {callback.monitor}, decided in epoch {stopped + 1}"
    return reason
