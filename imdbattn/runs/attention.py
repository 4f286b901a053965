"""Measures attention during training: its entropy, and the share of the largest weight.

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

from imdbattn.runs.run_folder import head_name
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData

REVIEWS_PER_BATCH = 2  # reviews in a batch: all weights of all layers are in memory


@dataclass(frozen=True)
class Measured:
    """What is measured of each head.

    values: for the log, by name; entropies are in nats, shares are those of the entropy of equal
    weights (log K with K keys). query_shares: the share of each query of all reviews.
    """

    values: dict[str, float]
    query_shares: dict[str, np.ndarray]


class AttentionEntropy(L.Callback):
    """Logs `measure` of the same validation reviews at each validation, in the first process.

    reviews: their number. log_shares: that of the run's Tracker.
    """

    def __init__(
        self, reviews: int, log_shares: Callable[[Mapping[str, np.ndarray], int, int], None]
    ):
        self.reviews, self.log_shares = reviews, log_shares
        self.batches: list[object] = []

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero:
            return
        self.batches = self.batches or fixed_batches(trainer.datamodule, self.reviews)
        measured = measure(module, self.batches)
        module.log_dict(measured.values, rank_zero_only=True)
        self.log_shares(measured.query_shares, trainer.current_epoch, trainer.global_step)


def fixed_batches(data: BatchData, count: int) -> list[object]:
    """Returns the batches of at most `count` validation reviews, evenly spaced in their split."""
    batches = data.batches("validation")
    lengths_N = batches.lengths_N()
    rows_N = np.unique(np.linspace(0, len(lengths_N) - 1, count).round().astype(int))
    rows_N = rows_N[np.argsort(lengths_N[rows_N], kind="stable")]  # less padding
    starts = range(0, len(rows_N), REVIEWS_PER_BATCH)
    return [batches[0, rows_N[start : start + REVIEWS_PER_BATCH]] for start in starts]


@torch.no_grad()
def measure(module: Learner, batches: Sequence[object]) -> Measured:
    """Measures the attention of the net to these batches, in evaluation mode.

    Means over the queries of each review, then over reviews, also over those that the net
    classifies right, and wrong. Reviews of a single key, whose entropy is always 0, are omitted.
    """
    columns: dict[str, list[tuple[Tensor, ...]]] = {}
    queries: dict[str, list[np.ndarray]] = {}
    with evaluation_mode(module.net):
        for batch in batches:
            on_device = module.transfer_batch_to_device(batch, module.device, 0)
            attention, right_B = module.attention(on_device)
            for name, attended in attention.items():
                several_B = attended.keys_B > 1
                entropy_BHQ = attended.entropy()
                most_B = attended.keys_B.float().log()  # rounding may exceed it
                share_BHQ = (entropy_BHQ / most_B[:, None, None]).clamp(max=1)
                largest_BHQ = attended.weights_BHQK.float().amax(-1)
                means = map(attended.over_queries, (entropy_BHQ, share_BHQ, largest_BHQ))
                kept = (part[several_B].cpu() for part in (*means, right_B))
                columns.setdefault(name, []).append(tuple(kept))
                shown_BQ = attended.queries_BQ & several_B[:, None]
                for head, share_BQ in enumerate(share_BHQ.unbind(1), 1):
                    shares_N = share_BQ[shown_BQ].cpu().numpy()
                    queries.setdefault(head_name(name, head), []).append(shares_N)
    shares = {name: np.concatenate(parts) for name, parts in queries.items()}
    return Measured(values_of(columns), shares)


def values_of(columns: Mapping[str, Sequence[tuple[Tensor, ...]]]) -> dict[str, float]:
    """Returns the means over reviews of each head, by name.

    columns: of each attention, for each batch entropies, shares and largest weights (N, H), and
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
    """Sets evaluation mode, and afterwards the mode of each module as before."""
    before = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
