"""Other attention weights with the same output: Jain and Wallace, "Attention is not Explanation", NAACL 2019.

A network is a Classifier with Attention in evaluation mode. Weights are those that its attentions compute for the
unchanged review. An empty review is read as one <pad>.

Shape suffixes: B reviews, C classes, P permutations, T positions; H heads, Q queries, K keys: the T positions, after
<cls> with ClsPooling.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from imdbattn.data.ragged import Batch
from imdbattn.explain.watch import watch
from imdbattn.nn.ladder import Attention
from imdbattn.nn.scores import padding_mask

LEARNING_RATE = 0.3  # of the logits of the weights
PEAK = 6.0  # of the logit of one key, at the start of the search
HALVINGS = 10  # of the interval between the original weights and the result of the search


class Original(NamedTuple):
    """What a network computes for a batch."""

    probabilities_BC: Tensor  # float64
    weights: list[Tensor]  # (B, H, Q, K) of each Attention, in order of use
    keys_BK: Tensor  # bool, True on words and <cls>


def attentions(net: nn.Module) -> nn.ModuleList:
    return nn.ModuleList(module for module in net.modules() if isinstance(module, Attention))


@contextmanager
def replaced(net: nn.Module, attend: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """For one forward pass, each Attention of `net` returns `attend(number, value)` and computes no weights.

    number: counts the uses of attention from 0. value: (B, H, K, V); the result is (B, H, Q, V).
    """
    number, parts = count(), attentions(net)

    def forward(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        return attend(next(number), value)

    try:
        for part in parts:
            part.forward = forward
        yield
    finally:
        for part in parts:
            vars(part).pop("forward", None)


def observe(net: nn.Module, batch: Batch) -> Original:
    with watch(attentions(net)) as weights:
        probabilities_BC = net(batch).double().softmax(-1)
    keys = weights[0].shape[-1]
    words_B = batch.lengths_B.clamp(min=1)
    return Original(probabilities_BC, weights, padding_mask(words_B + keys - batch.tokens_BT.shape[1], keys))


def total_variation(p_BC: Tensor, q_BC: Tensor) -> Tensor:
    """(B,), from 0 to 1."""
    return (p_BC - q_BC).abs().sum(-1) / 2


def generators(batch: Batch, seed: int) -> list[torch.Generator]:
    """One for each review; its random numbers do not depend on the other reviews of the batch."""
    return [torch.Generator().manual_seed((seed + row) % 2**63) for row in batch.rows_B.tolist()]


@torch.no_grad()
def permute(net: nn.Module, batch: Batch, permutations: int, seed: int) -> Tensor:
    """(B,): the median total variation distance between the outputs with permuted and with the original weights.

    Section 4.2.1. A permutation of the words of a review is the same for all queries, heads and layers; <cls> and
    padding keep their weights. The seed, with the row of each review, determines the permutations.
    """
    original = observe(net, batch)
    reviews, keys = original.keys_BK.shape
    first = keys - batch.tokens_BT.shape[1]  # 1 if <cls> precedes the words
    places_PBK = torch.arange(keys).repeat(permutations, reviews, 1)
    for row, (end, generator) in enumerate(zip(original.keys_BK.sum(1).tolist(), generators(batch, seed), strict=True)):
        for places_K in places_PBK[:, row]:
            places_K[first:end] = first + torch.randperm(end - first, generator=generator)
    distances = []
    for places_BK in places_PBK:

        def attend(number: int, value: Tensor, places_B1K1: Tensor = places_BK[:, None, :, None]) -> Tensor:
            # Permuting the values is the same as permuting the columns of the weights, and moves fewer numbers.
            return original.weights[number] @ value.take_along_dim(places_B1K1, -2)

        with replaced(net, attend):
            distances.append(total_variation(original.probabilities_BC, net(batch).double().softmax(-1)))
    return torch.stack(distances).quantile(0.5, 0)


def entropy(weights: Tensor) -> Tensor:
    """Of (..., K), in nats: (...)."""
    logarithms = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()  # finite gradients at 0
    return -(weights * logarithms).sum(-1)


def divergence(original: Original, changed: Sequence[Tensor]) -> Tensor:
    """(B,) Jensen-Shannon divergence in nats: the mean over real queries and heads, then over the attentions."""
    means = []
    for old_BHQK, new_BHQK in zip(original.weights, changed, strict=True):
        middle_BHQ = entropy((old_BHQK + new_BHQK) / 2)
        rows_BHQ = middle_BHQ - (entropy(old_BHQK) + entropy(new_BHQK)) / 2
        queries_B1Q = original.keys_BK[:, None, : rows_BHQ.shape[-1]]  # a pooling has one query, which is real
        means.append((rows_BHQ * queries_B1Q).mean(1).sum(-1) / queries_B1Q.sum((1, 2)))
    return torch.stack(means).mean(0)


@torch.no_grad()
def adversary(
    net: nn.Module, batch: Batch, epsilon: float, steps: int, restarts: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Searches weights as different as possible whose output is at most `epsilon` from the model's (section 4.2.2).

    All attentions change at once. The search takes `steps` steps of Adam over a logit for each weight, from each of
    `restarts` random starts; larger divergences than the one found may exist.
    Needs memory for about ten times the weights: B x H x Q x K numbers for each attention. The seed, with the row of
    each review, determines the starts.

    Returns (B,) the Jensen-Shannon divergence (see `divergence`), at least 0, and (B,) the total variation distance
    between the outputs, at most epsilon.
    """
    original, numbers = observe(net, batch), generators(batch, seed)
    p_BC = original.probabilities_BC
    best_2B = p_BC.new_zeros(2, len(p_BC))

    def judge(changed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(B,) each: the distance of the output, and the loss. Updates the best weights found."""
        nonlocal best_2B
        with replaced(net, lambda number, value: changed[number] @ value):
            logits_BC = net(batch).double().log_softmax(-1)
        divergence_B = divergence(original, changed).double()
        distance_B = total_variation(p_BC, logits_BC.exp())
        found_B = (distance_B <= epsilon) & (divergence_B > best_2B[0])
        best_2B = torch.where(found_B, torch.stack([divergence_B, distance_B]).detach(), best_2B)
        # The logarithm of the symmetric divergence: its gradient does not vanish where an output is close to 0 or 1.
        symmetric_B = ((p_BC - logits_BC.exp()) * (p_BC.clamp(min=1e-300).log() - logits_BC)).sum(-1)
        return distance_B, symmetric_B.clamp(min=1e-300).log() * (distance_B > epsilon) - divergence_B

    for _ in range(restarts):
        logits = [logit.requires_grad_() for logit in random_logits(original, numbers)]
        optimizer = torch.optim.Adam(logits, lr=LEARNING_RATE, eps=1e-12)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
            with torch.enable_grad():
                _, loss_B = judge([logit.softmax(-1) for logit in logits])
                gradients = torch.autograd.grad(loss_B.sum(), logits)
            for logit, gradient in zip(logits, gradients, strict=True):
                logit.grad = gradient  # not backward(), which would also set the gradients of the parameters
            optimizer.step()
        # Bisection between the original weights and the last ones: the best of them may lie between.
        last = [logit.softmax(-1) for logit in logits]
        low_B, at_B, high_B = torch.zeros_like(best_2B[0]), torch.ones_like(best_2B[0]), torch.ones_like(best_2B[0])
        for _ in range(HALVINGS):
            at_B111 = at_B[:, None, None, None].to(last[0])
            distance_B, _ = judge([torch.lerp(*both, at_B111) for both in zip(original.weights, last, strict=True)])
            feasible_B = distance_B <= epsilon
            low_B, high_B = torch.where(feasible_B, at_B, low_B), torch.where(feasible_B, high_B, at_B)
            at_B = (low_B + high_B) / 2
    return best_2B[0], best_2B[1]


def random_logits(original: Original, generators: Sequence[torch.Generator]) -> list[Tensor]:
    """Logits of weights that are near 1 on a random key of each query: the divergence is largest at such weights."""
    starts = []
    for weights_BHQK in original.weights:
        start_BHQK = torch.full_like(weights_BHQK, -1e4)
        _, heads, queries, _ = start_BHQK.shape
        for start_HQK, keys, generator in zip(start_BHQK, original.keys_BK.sum(1).tolist(), generators, strict=True):
            q = min(keys, queries)
            logits_HQK = torch.randn(heads, q, keys, generator=generator)
            chosen_HQ1 = torch.randint(keys, (heads, q, 1), generator=generator)
            start_HQK[:, :q, :keys] = logits_HQK.scatter_add(-1, chosen_HQ1, torch.full(chosen_HQ1.shape, PEAK))
        starts.append(start_BHQK)
    return starts
