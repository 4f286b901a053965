"""Attributions: how much each word of a review contributes to a label, by different methods.

Each function takes a Classifier, a batch and the label of each review, and returns attributions
(B, T), 0 on padding. Attributions by attention weights have no sign. Those by gradients and by
leave one out are negative for words that count against the label. Gradients compare a word with a
zero vector. If vectors are standardized, the zero vector is the mean of all words.

Shape suffixes: B reviews, T positions, E width of the word vectors, D width; H heads, Q queries, K
keys: the T positions, after <cls> with ClsPooling; V width of the values; R changed reviews.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.data.ragged import Batch
from imdbattn.nn.beyond.attention import LabelQueryPooling, ProjectedAttention
from imdbattn.nn.ladder import Attention, Classifier, MeanPooling, WordPositions
from imdbattn.nn.rollout import collect_attention_of_parts, rollout
from imdbattn.tools.faithfulness.erasure import (
    in_chunks,
    keep_words,
    log_odds,
    take,
    words_of,
)

Attribution = Callable[[Classifier, Batch, Tensor], Tensor]
SUM_TOLERANCE = 0.02  # error of the sum of integrated gradients, relative to the log-odds' change
STEPS = [2**power for power in range(6, 18)]  # steps on the path of integrated gradients
# product of steps and positions from which steps are not doubled: 8,192 steps for 256 positions
MAX_POSITIONS = 2**21
OWN_PARTS = ("imdbattn.nn.", "torch.nn.")  # of the layers and poolings whose values are known
LEAST_DISTANCE = 1e-10  # cosine distance of float32 vectors that is not counted as 0


class Observed(NamedTuple):
    """Input, weights and weighed values of a layer or of the pooling, in one forward pass."""

    part: nn.Module
    x_BKD: Tensor
    words: WordPositions
    weights_BHQK: Tensor  # Q is 1 in the pooling
    value_BHKV: Tensor


def attentions(part: nn.Module) -> list[Any]:
    """Returns the attentions in a part."""
    return [module for module in part.modules() if isinstance(module, Attention)]


def observe(net: Classifier, batch: Batch) -> list[Observed]:
    """Returns input, weights and values of each layer, then of the pooling.

    Raises ValueError for a custom part without `attention_weights`.
    """
    parts = [*net.layers, net.pooling]
    inputs: dict[nn.Module, dict[str, Any]] = {}  # of each part and of the attention in it

    def note(module: nn.Module, positional: tuple[object, ...], named: dict[str, object]) -> None:
        inputs[module] = arguments_of(module, positional, named)

    with ExitStack() as stack:
        for part in parts:
            for module in (part, *attentions(part)):
                stack.enter_context(module.register_forward_pre_hook(note, with_kwargs=True))
        _, weights, _ = collect_attention_of_parts(net, lambda: net(batch))
    observed = []
    for part, weights_BHQK in zip(parts, weights, strict=True):
        x_BKD, words = inputs[part].values()
        values = [inputs[module]["value"] for module in attentions(part) if module in inputs]
        observed.append(
            Observed(part, x_BKD, words, weights_BHQK, values[0] if values else x_BKD[:, None])
        )
    return observed


def arguments_of(
    module: nn.Module, positional: Sequence[object], named: Mapping[str, object]
) -> dict[str, Any]:
    """Returns the arguments of a call of a module by their names in its `forward`."""
    return inspect.signature(module.forward).bind(*positional, **named).arguments


def weight_rows(observed: Observed, skips: bool = False) -> Tensor:
    """Returns the mean over heads of the attention weights A.

    skips: whether layers with a skip connection have (A + I) / 2 instead.
    """
    row_BQK = observed.weights_BHQK.mean(1)
    if skips and getattr(observed.part, "skip", False):
        return (row_BQK + torch.eye(row_BQK.shape[-1])) / 2
    return row_BQK


def norm_rows(observed: Observed, skips: bool = False) -> Tensor:
    """Returns the norm of each weighed value (Kobayashi et al. 2020), normalized for each query.

    Values are projected by W_O where a layer has it, and added over heads.

    skips: whether, in layers with a skip connection, x is added to the weighed value of its own
        position (Kobayashi et al. 2021).
    """
    weights_BHQK, value_BHKD = observed.weights_BHQK, projected_values(observed)
    # The square of a norm has a term for each pair of heads.
    products_BKHH = torch.einsum("bhkd,bgkd->bkhg", value_BHKD, value_BHKD)
    other_BHQK = torch.einsum("bkhg,bgqk->bhqk", products_BKHH, weights_BHQK)
    row_BQK = (weights_BHQK * other_BHQK).sum(1).clamp(min=0).sqrt()
    if skips and getattr(observed.part, "skip", False):
        own_BHK1 = weights_BHQK.diagonal(dim1=-2, dim2=-1)[..., None]
        own_BK = ((own_BHK1 * value_BHKD).sum(1) + observed.x_BKD).norm(dim=-1)
        row_BQK.diagonal(dim1=-2, dim2=-1).copy_(own_BK)
    return normalized(row_BQK)


def projected_values(observed: Observed) -> Tensor:
    """Returns (B, H, K, D): what each value adds to the output of its attention at a weight of 1,
    without the bias of W_O.
    """
    heads, size = observed.value_BHKV.shape[1], observed.value_BHKV.shape[3]
    outputs = [
        module.output.weight
        for module in observed.part.modules()
        if isinstance(module, ProjectedAttention)
    ]
    weight_DD = outputs[0] if outputs else torch.eye(heads * size)
    return torch.einsum("bhkv,dhv->bhkd", observed.value_BHKV, weight_DD.unflatten(1, (heads, -1)))


def zeroed_rows(observed: Observed) -> Tensor:
    """Returns value zeroing (Mohebbi et al. 2023): the cosine distance by which each output moves
    if the value of a key is zero.

    The weights do not change. Distances are divided by their sum for each query.
    """
    whole_BHQV = observed.weights_BHQK @ observed.value_BHKV
    output_BQD = output_of(observed, torch.arange(len(whole_BHQV)), whole_BHQV)
    moved_BKQ = torch.zeros(observed.weights_BHQK.transpose(-2, -1)[:, 0].shape)
    review_R, key_R = observed.words.mask_BT.nonzero(as_tuple=True)
    for r, k in in_chunks(observed.x_BKD.shape[1], review_R, key_R):
        own_RHQV = (
            observed.weights_BHQK[r, :, :, k][..., None] * observed.value_BHKV[r, :, k][:, :, None]
        )
        changed_RQD = output_of(observed, r, whole_BHQV[r] - own_RHQV)
        distance_RQ = 1 - F.cosine_similarity(changed_RQD.double(), output_BQD[r].double(), dim=-1)
        # Smaller distances are rounding. Two zero vectors, as after ReLU, have no angle.
        is_moved_RQ = (distance_RQ > LEAST_DISTANCE) & (changed_RQD != output_BQD[r]).any(-1)
        moved_BKQ[r, k] = (distance_RQ * is_moved_RQ).float()
    return normalized(moved_BKQ.transpose(1, 2))


def output_of(observed: Observed, review_R: Tensor, attended_RHQV: Tensor) -> Tensor:
    """Returns (R, Q, D): the output of a part whose attention returns `attended_RHQV`."""
    if not attentions(observed.part):
        return attended_RHQV[:, 0]  # a pooling that weighs x itself
    with ExitStack() as stack:
        for attention in attentions(observed.part):
            # With a hook, the attention would still be computed.
            attention.forward = lambda *_: attended_RHQV
            stack.callback(delattr, attention, "forward")
        words = WordPositions(*(column[review_R] for column in observed.words))
        output = observed.part(observed.x_BKD[review_R], words)
    return output if output.ndim == 3 else output[:, None]


def normalized(row_BQK: Tensor) -> Tensor:
    """Returns the rows, divided by their sums."""
    return row_BQK / row_BQK.sum(-1, keepdim=True).clamp(min=torch.finfo(row_BQK.dtype).tiny)


def rolled_out(rows: Sequence[Tensor], batch: Batch) -> Tensor:
    """Returns (B, T): the share of each word in the pooled vector (Abnar & Zuidema 2020)."""
    share_BK = rollout([row_BQK[:, None] for row_BQK in rows], [False] * (len(rows) - 1))
    # <cls> and padding are omitted.
    return share_BK[:, share_BK.shape[1] - batch.tokens_BT.shape[1] :] * words_of(batch)


def averaged(rows: Sequence[Tensor], batch: Batch) -> Tensor:
    """Returns (B, T): the share of each word in one layer and the pooling, mean over layers."""
    return torch.stack([rolled_out([row_BQK, rows[-1]], batch) for row_BQK in rows[:-1]]).mean(0)


def of_last_layer(rows: Sequence[Tensor], batch: Batch) -> Tensor:
    """Returns (B, T): the share of each word in the last layer and the pooling."""
    return rolled_out(rows[-2:], batch)


def from_attention(
    shares: Callable[[Sequence[Tensor], Batch], Tensor], rows_of: Callable[[Observed], Tensor]
) -> Attribution:
    """Returns an attribution by attention, the share of each word in the pooled vector.

    shares: `rolled_out`, `averaged` or `of_last_layer`. rows_of: `weight_rows`, `norm_rows`
    or `zeroed_rows`, which return (B, Q, K) for a layer or the pooling.
    """

    def attribute(net: Classifier, batch: Batch, label_B: Tensor) -> Tensor:
        return shares([rows_of(observed) for observed in observe(net, batch)], batch)

    return attribute


def predicted_labels(net: Classifier, batch: Batch) -> Tensor:
    """Returns (B,): the predicted labels."""
    return net(batch).argmax(1)


def from_vectors(net: Classifier, x_BTE: Tensor, batch: Batch, label_B: Tensor) -> Tensor:
    """Returns (B,): the log-odds of the labels for these vectors of the words."""
    return log_odds(net.head(net.dropout(net.pooling(*net.encode(x_BTE, batch)))), label_B)


def gradient_at(net: Classifier, x_BTE: Tensor, batch: Batch, label_B: Tensor) -> Tensor:
    """Returns (B, T, E): the gradient of the log-odds of the labels."""
    with torch.enable_grad():
        x_BTE = x_BTE.detach().requires_grad_()
        return torch.autograd.grad(from_vectors(net, x_BTE, batch, label_B).sum(), x_BTE)[0]


def gradient(net: Classifier, batch: Batch, label_B: Tensor) -> Tensor:
    """Returns gradient x input of the log-odds, summed over the dimensions of each vector."""
    x_BTE = net.embedding(batch.tokens_BT).detach()
    return (gradient_at(net, x_BTE, batch, label_B) * x_BTE).sum(2)


def integrated_gradients(net: Classifier, batch: Batch, label_B: Tensor) -> Tensor:
    """Returns integrated gradients (Sundararajan et al. 2017, equation 1), which sum to the change
    of the log-odds.

    The path from zero vectors is integrated by the trapezoidal rule, with short steps near zero,
    where the output of LayerNorm changes fast. Their number is doubled, as in STEPS, until the sum
    of a review is within SUM_TOLERANCE.
    """
    x_BTE = net.embedding(batch.tokens_BT).detach()
    change_B = change_from_zero(net, batch, label_B)
    attributions_BT = torch.zeros(batch.tokens_BT.shape)
    for review, x_TE in enumerate(x_BTE):
        for steps in STEPS:
            at_S = torch.linspace(0, 1, steps + 1) ** 8
            slopes = []
            for (at_R,) in in_chunks(len(x_TE), at_S):
                review_R = torch.full(at_R.shape, review)
                x_RTE = at_R[:, None, None] * x_TE
                gradient_RTE = gradient_at(net, x_RTE, take(batch, review_R), label_B[review_R])
                slopes.append((gradient_RTE * x_TE).sum(2))
            attributions_BT[review] = torch.trapezoid(torch.cat(slopes), at_S[:, None], dim=0)
            missed = (attributions_BT[review].sum() - change_B[review]).abs()
            if (
                missed <= SUM_TOLERANCE * change_B[review].abs()
                or steps * len(x_TE) >= MAX_POSITIONS
            ):
                break
    return attributions_BT


def change_from_zero(net: Classifier, batch: Batch, label_B: Tensor) -> Tensor:
    """Returns (B,): the log-odds of the labels, minus their log-odds for zero vectors."""
    x_BTE = net.embedding(batch.tokens_BT)
    return from_vectors(net, x_BTE, batch, label_B) - from_vectors(net, 0 * x_BTE, batch, label_B)


def leave_one_out(net: Classifier, batch: Batch, label_B: Tensor) -> Tensor:
    """Returns the decrease of the log-odds when a word is removed, as word dropout removes it."""
    attributions_BT = torch.zeros(batch.tokens_BT.shape)
    position_T = torch.arange(batch.tokens_BT.shape[1])
    whole_B = log_odds(net(batch), label_B)
    for r, t in in_chunks(len(position_T), *words_of(batch).nonzero(as_tuple=True)):
        without_R = net(keep_words(take(batch, r), position_T != t[:, None]))
        attributions_BT[r, t] = whole_B[r] - log_odds(without_R, label_B[r])
    return attributions_BT


ATTRIBUTIONS: dict[str, tuple[str, Attribution]] = {  # name -> how it is shown, function
    "rollout": ("attention rollout", from_attention(rolled_out, partial(weight_rows, skips=True))),
    "last_layer": ("attention, last layer", from_attention(of_last_layer, weight_rows)),
    "all_layers": ("attention, all layers", from_attention(averaged, weight_rows)),
    "norms": ("norms, all layers", from_attention(averaged, norm_rows)),
    "norm_rollout": ("norms, rollout", from_attention(rolled_out, partial(norm_rows, skips=True))),
    "value_zeroing": ("value zeroing, all layers", from_attention(averaged, zeroed_rows)),
    "value_zeroing_rollout": ("value zeroing, rollout", from_attention(rolled_out, zeroed_rows)),
    "gradient": ("gradient × input", gradient),
    "integrated_gradients": ("integrated gradients", integrated_gradients),
    "leave_one_out": ("leave one out", leave_one_out),
    "random": ("random", lambda net, batch, _: torch.rand(batch.tokens_BT.shape) * words_of(batch)),
}
# These are computed for fewer reviews, `costly_reviews`.
COSTLY = ("value_zeroing", "value_zeroing_rollout", "integrated_gradients")
RAW = ("rollout", "last_layer", "all_layers")  # attention weights alone
WITH_VALUES = ("norm_rollout", "norms", "value_zeroing_rollout", "value_zeroing")


def applicable(net: Classifier) -> list[str]:
    """Returns the names of the attributions that a network has.

    A network without layers has only attributions through its pooling, and none by attention if the
    pooling is a mean. The values are known only in parts of this package. `all_layers` is omitted
    if there is one layer, because it equals `last_layer`.
    """
    without = {"all_layers"} if len(net.layers) == 1 else set()
    if not len(net.layers):
        without = {"last_layer", "all_layers", "norms", "value_zeroing"}
        if isinstance(net.pooling, MeanPooling):
            without = {*RAW, *WITH_VALUES}
    parts = [module for part in (*net.layers, net.pooling) for module in part.modules()]
    has_custom_part = not all(type(module).__module__.startswith(OWN_PARTS) for module in parts)
    if has_custom_part or isinstance(net.pooling, LabelQueryPooling):
        without |= set(WITH_VALUES)
    return [name for name in ATTRIBUTIONS if name not in without]
