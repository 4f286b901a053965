"""Scores of words: how much each word of a review contributes to its predicted label, by different methods.

Each function is called with a Classifier, a batch, a random generator and the number of steps of integration, and
returns scores (B, T), 0 on padding. A score is signed, positive for the predicted label, except for attention and
random, whose scores have no sign. Vectors are compared with zero vectors, the mean of GloVe where it is standardized.

Shape suffixes: B reviews, T positions, E width of the vectors, D width, K keys, R reviews without a word.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from imdbattn.data.ragged import Batch
from imdbattn.explain.watch import rollout
from imdbattn.faithfulness.erasure import keep, log_odds, take, words_of
from imdbattn.nn.ladder import Classifier, MeanPooling
from imdbattn.tasks.review_predictor import watched

Attribution = Callable[[Classifier, Batch, torch.Generator, int], Tensor]
BUDGET = 32_768  # positions of a batch of reviews without a word


def attention_weights(net: Classifier, batch: Batch) -> tuple[list[Tensor], list[bool]]:
    """Weights (B, H, K, K) of each layer, then (B, 1, 1, K) of the pooling, and whether each layer has a skip."""
    with torch.no_grad():
        _, weights, skips = watched(net, lambda: net(batch), "this model")
    return weights, skips


def without_cls(shares_BK: Tensor, batch: Batch) -> Tensor:
    """(B, T): the shares of the words, without that of <cls>, if there is one, and of the <pad> of an empty review."""
    return shares_BK[:, shares_BK.shape[1] - batch.tokens_BT.shape[1] :] * words_of(batch)


def attention_rollout(net: Classifier, batch: Batch, generator: torch.Generator, steps: int) -> Tensor:
    """The share of each word in the pooled vector by attention rollout (Abnar & Zuidema 2020), mean over heads."""
    return without_cls(rollout(*attention_weights(net, batch)), batch)


def last_layer(net: Classifier, batch: Batch, generator: torch.Generator, steps: int) -> Tensor:
    """The weights of the last layer, mean over heads, as the pooling weighs its queries."""
    weights, _ = attention_weights(net, batch)
    return without_cls(rollout(weights[-2:], [False]), batch)


def all_layers(net: Classifier, batch: Batch, generator: torch.Generator, steps: int) -> Tensor:
    """The same for each layer, mean over layers."""
    (*layers, pooling), _ = attention_weights(net, batch)
    shares = [rollout([weights_BHKK, pooling], [False]) for weights_BHKK in layers]
    return without_cls(torch.stack(shares).mean(0), batch)


def predicted(net: Classifier, batch: Batch) -> Tensor:
    """(B,): the predicted labels."""
    with torch.no_grad():
        return net(batch).argmax(1)


def from_vectors(net: Classifier, x_BTE: Tensor, batch: Batch, label_B: Tensor) -> Tensor:
    """(B,): the log-odds of the labels, given the vectors of the words."""
    return log_odds(net.head(net.dropout(net.pooling(*net.encode(x_BTE, batch)))), label_B)


def gradient(net: Classifier, batch: Batch, generator: torch.Generator, steps: int) -> Tensor:
    """Gradient x input: the gradient of the log-odds with respect to each vector, times that vector."""
    label_B = predicted(net, batch)
    with torch.enable_grad():
        x_BTE = net.embedding(batch.tokens_BT).detach().requires_grad_()
        (gradient_BTE,) = torch.autograd.grad(from_vectors(net, x_BTE, batch, label_B).sum(), x_BTE)
    return (gradient_BTE * x_BTE.detach()).sum(2)


def integrated_gradients(net: Classifier, batch: Batch, generator: torch.Generator, steps: int) -> Tensor:
    """Integrated gradients (Sundararajan et al. 2017, equation 1): exact, they sum to the change of the log-odds.

    The integral is approximated by a Gauss-Legendre sum of `steps` gradients. It converges slowly through a LayerNorm,
    whose output changes rapidly near the zero vectors where the path starts.
    """
    from captum.attr import IntegratedGradients  # of the extra `faithfulness`

    label_B = predicted(net, batch)
    columns = {name: column for name, column in batch._asdict().items() if isinstance(column, Tensor)}

    def output(x_RTE: Tensor, label_R: Tensor, *columns_R: Tensor) -> Tensor:
        repeated = batch._replace(**dict(zip(columns, columns_R, strict=True)))  # type: ignore[arg-type]
        return from_vectors(net, x_RTE, repeated, label_R)

    x_BTE = net.embedding(batch.tokens_BT).detach()
    scores_BTE = IntegratedGradients(output).attribute(
        x_BTE,
        additional_forward_args=(label_B, *columns.values()),
        n_steps=steps,
        internal_batch_size=len(x_BTE),  # one step at a time, without copies of the reviews for all steps
    )
    return scores_BTE.detach().sum(2)


def leave_one_out(net: Classifier, batch: Batch, generator: torch.Generator, steps: int) -> Tensor:
    """The decrease of the log-odds when a word is removed, as word dropout removes it."""
    review_R, word_R = words_of(batch).nonzero(as_tuple=True)
    scores_BT = torch.zeros(batch.tokens_BT.shape)
    place_T = torch.arange(batch.tokens_BT.shape[1])
    with torch.no_grad():
        logits_BC = net(batch)
        label_B = logits_BC.argmax(1)
        whole_B = log_odds(logits_BC, label_B)
        size = max(1, BUDGET // batch.tokens_BT.shape[1])
        for reviews_R, words_R in zip(review_R.split(size), word_R.split(size), strict=True):
            without_R = net(keep(take(batch, reviews_R), place_T != words_R[:, None]))
            scores_BT[reviews_R, words_R] = whole_B[reviews_R] - log_odds(without_R, label_B[reviews_R])
    return scores_BT


def random(net: Classifier, batch: Batch, generator: torch.Generator, steps: int) -> Tensor:
    """Random numbers, with which the others are compared."""
    return torch.rand(batch.tokens_BT.shape, generator=generator) * words_of(batch)


ATTRIBUTIONS: dict[str, Attribution] = {
    "rollout": attention_rollout,
    "last_layer": last_layer,
    "all_layers": all_layers,
    "gradient": gradient,
    "integrated_gradients": integrated_gradients,
    "leave_one_out": leave_one_out,
    "random": random,
}


ATTENTION = ("rollout", "last_layer", "all_layers")  # the scores that are attention


def applicable(net: Classifier) -> list[str]:
    """The names of the scores that a network has.

    Those of attention differ only if there are layers: `all_layers` needs two of them. A mean without layers has none.
    """
    kept = 0 if isinstance(net.pooling, MeanPooling) and not len(net.layers) else 1 + min(len(net.layers), 2)
    return [name for name in ATTRIBUTIONS if name not in ATTENTION[kept:]]
