"""The attention of a network to some validation reviews, measured at each validation.

Shape suffixes: B reviews of a batch, H heads, Q queries, N reviews that are measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from imdbattn.folders.run_folder import head_name
from imdbattn.tasks.data_module import BatchData, on_gpu
from imdbattn.tasks.learner import Learner

REVIEWS_PER_BATCH = 2  # reviews in a batch: all weights of all layers are in memory
REVIEWS_PER_GPU_BATCH = 12  # starting operations takes most of the time on a GPU


@dataclass(frozen=True)
class Measured:
    """The measurements of each head. values: the logged numbers by name. An entropy is in nats; a
    share is an entropy divided by log K, the entropy of equal weights on K keys. query_shares: the
    shares of all queries of all reviews.
    """

    values: dict[str, float]
    query_shares: dict[str, np.ndarray]


class AttentionEntropy(L.Callback):
    """Logs `measure` of the same validation reviews at each validation, in the first process.

    reviews: number of reviews. log_histograms: the method of the run's Tracker.
    """

    def __init__(
        self, reviews: int, log_histograms: Callable[[Mapping[str, np.ndarray], int, int], None]
    ):
        self.reviews, self.log_histograms = reviews, log_histograms
        self.batches: list[object] = []

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        self.batches = self.batches or fixed_batches(trainer.datamodule, self.reviews)
        with trainer.precision_plugin.val_step_context():
            measured = measure(module, self.batches)
        module.log_dict(measured.values, rank_zero_only=True)
        step = trainer.global_step - 1  # Lightning logs the scores with this number
        self.log_histograms(measured.query_shares, trainer.current_epoch, step)


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
    """Measures the net's attention to these batches, in evaluation mode.

    The results are means over the queries of a review, then over the reviews; shares are also
    averaged over the reviews that are classified correctly, and over the others. Reviews with one
    key are omitted: their entropy is always 0.
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
    """Returns each head's means over reviews, by name.

    columns: for each attention and each batch, entropies, shares and largest weights (N, H), and
    which reviews are classified correctly (N,).
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
