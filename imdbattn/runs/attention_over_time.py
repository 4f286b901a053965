"""The attention of a network to some validation reviews, measured at each validation.

Shape suffixes: B reviews of a batch, H heads, Q queries, N reviews that are measured.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from imdbattn.folders.run_folder import head_name
from imdbattn.nn.watch import BatchAttention
from imdbattn.tasks.data_module import BatchData, is_on_gpu
from imdbattn.tasks.learner import Learner

REVIEWS_PER_BATCH = 2  # reviews in a batch: all weights of all layers are in memory
REVIEWS_PER_GPU_BATCH = 12  # starting operations takes most of the time on a GPU
QUERY_SHARE = "query_share"  # the quantity that a picture shows as a histogram


class AttentionEntropy(L.Callback):
    """Logs the values of `measure` for the same validation reviews at each validation, in the first
    process: for each head the mean over its queries in a review, then over the reviews. Shares are
    also averaged over the reviews that are classified correctly, and over the others.

    reviews: number of reviews.
    """

    def __init__(self, reviews: int):
        self.reviews = reviews
        self.batches: list[object] = []

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        self.batches = self.batches or fixed_batches(trainer.datamodule, self.reviews)
        with trainer.precision_plugin.val_step_context():
            measured = measure(module, self.batches)
        means = {}
        for (name, quantity), values_NH in measured.items():
            if quantity != QUERY_SHARE and len(values_NH):
                for head, mean in enumerate(values_NH.mean(0).tolist(), 1):
                    means[f"attention_{quantity}/{head_name(name, head)}"] = mean
        module.log_dict(means, rank_zero_only=True)


def fixed_batches(data: BatchData, count: int, size: int | None = None) -> list[object]:
    """Returns the batches of at most `count` validation reviews, evenly spaced in their split.

    size: number of reviews of a batch; None is the number that suits the device.
    """
    maker = data.batch_maker("validation")
    lengths_N = maker.batch_lengths()
    items_N = np.unique(np.linspace(0, len(lengths_N) - 1, count).round().astype(int))
    items_N = items_N[np.argsort(lengths_N[items_N], kind="stable")]  # needs less padding
    size = size or (REVIEWS_PER_GPU_BATCH if is_on_gpu(maker.items) else REVIEWS_PER_BATCH)
    starts = range(0, len(items_N), size)
    return [maker.of_items(items_N[start : start + size]) for start in starts]


@torch.no_grad()
def measure(module: Learner, batches: Sequence[object]) -> dict[tuple[str, str], Tensor]:
    """Returns the `measurements` of the net's attention to these batches, by attention and
    quantity. The net must be in evaluation mode.
    """
    parts: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for batch in batches:
        on_device = module.transfer_batch_to_device(batch, module.device, 0)
        attentions, right_B = module.attention_and_answers(on_device)
        for name, attention in attentions.items():
            for quantity, values_NH in measurements(attention, right_B).items():
                parts[name, quantity].append(values_NH.cpu())
    return {key: torch.cat(parts_NH) for key, parts_NH in parts.items()}


def measurements(attention: BatchAttention, right_B: Tensor) -> dict[str, Tensor]:
    """Returns the measured quantities of an attention by name: (N, H) for the N reviews that have
    several keys, or for those of them that are classified correctly or wrongly; QUERY_SHARE has a
    row for each query. Reviews with one key are omitted: their entropy is always 0.

    An entropy is in nats; a share is an entropy divided by log K, the entropy of equal weights on K
    keys.

    right_B: which reviews are classified correctly.
    """
    several_B = attention.key_count_B > 1
    entropy_BHQ = attention.entropy()
    most_B = attention.key_count_B.float().log()  # rounding may exceed it
    share_BHQ = (entropy_BHQ / most_B[:, None, None]).clamp(max=1)
    largest_BHQ = attention.weights_BHQK.float().amax(-1)
    share_BH = attention.over_queries(share_BHQ)
    return {
        "entropy": attention.over_queries(entropy_BHQ)[several_B],
        "share": share_BH[several_B],
        "largest": attention.over_queries(largest_BHQ)[several_B],
        "share_right": share_BH[several_B & right_B],
        "share_wrong": share_BH[several_B & ~right_B],
        QUERY_SHARE: share_BHQ.transpose(1, 2)[attention.is_query_BQ & several_B[:, None]],
    }
