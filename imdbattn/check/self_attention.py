"""Rules of SelfAttention: f(x) = softmax(Q K^T / sqrt(d)) V, one head, without an output projection.

The softmax weights are computed from the outputs. For a single word, f is its value; for several words, it is a
weighted sum of their values. The logarithms of the weights are the scores up to a constant per query, and the scores
belong to a pair of matrices among the parameters.

Shape suffixes: B reviews, T positions, D width, Q candidates for the queries, K candidates for the keys, N any number.
A suffix 1 is a dimension of size 1.
"""

import math

import torch
from torch import Tensor, nn

from imdbattn.check.rules import Mistake, NotChecked, Part, Rules, build, same, show
from imdbattn.check.sequence import WIDTH, add_basics, add_behaviour, mask, words

RULES = Rules()
KEYS = "Apply the softmax to the scores (B, queries, keys) over the last dimension: softmax(dim=-1)."
MINUS_INFINITY = "Before the softmax: scores.masked_fill(~mask[:, None, :], -inf), for mask (B, T)."

add_basics(RULES)


def weights_TT(module: nn.Module, x_1TD: Tensor, mask_1T: Tensor) -> tuple[Tensor, bool]:
    """The weight of each key (columns) for each query (rows), and whether they explain the output exactly.

    A row of NaN in the output gives NaN.
    """
    alone = [module(x_1TD[:, t : t + 1], mask(1))[0, 0] for t in range(x_1TD.shape[1])]
    value_TD, y_TD = torch.stack(alone).detach(), module(x_1TD, mask_1T)[0].detach()
    finite_T1 = y_TD.isfinite().all(1, keepdim=True)
    weight_TT = torch.linalg.lstsq(value_TD.mT, y_TD.where(finite_T1, 0).mT).solution.mT
    return weight_TT.where(finite_T1, math.nan), same(weight_TT @ value_TD, y_TD.where(finite_T1, 0))


@RULES.add("softmax-over-keys", "mask-direction")
def softmax_over_keys(part: Part) -> None:
    """The weights of each query over the keys are not negative and sum to 1."""
    module = build(part.make, WIDTH)
    weight_TT, exact = weights_TT(module, words(1, 2), mask(2))
    rows, columns = weight_TT.sum(1), weight_TT.sum(0)
    if not exact:
        sentence = "The result for a word is not a weighted sum of the values of the words."
        example = f"For 2 words the first result starts {show(module(words(1, 2), mask(2))[0, 0, :3])}."
        fix = "f(x) = softmax(Q K^T / sqrt(d)) V with one head; x itself and LayerNorm belong to the layer."
        raise Mistake("not-a-weighted-sum", sentence, example, fix)
    if same(weight_TT, torch.eye(2)):
        example = f"For x of 2 words the weights are {show(weight_TT)}."
        raise Mistake("no-attention", "Words have no effect on each other.", example, KEYS)
    if same(rows, torch.ones(2)) and bool((weight_TT > -1e-3).all()):
        return
    example = f"For x of 2 words the weights (queries in rows) are {show(weight_TT)}: rows sum to {show(rows)}, "
    example += f"columns to {show(columns)}."
    if same(weight_TT, torch.ones(2, 2)):
        sentence = "The softmax is over the reviews of the batch, not the keys."
        raise Mistake("softmax-over-batch", sentence, example, KEYS)
    if same(columns, torch.ones(2)):
        raise Mistake("softmax-over-queries", "The softmax is over the queries, not over the keys.", example, KEYS)
    raise Mistake("weights-do-not-sum-to-1", "The weights of a query do not sum to 1.", example, KEYS)


@RULES.add("scale", "softmax-over-keys", "order")
def scale(part: Part) -> None:
    """The scores are q.k / sqrt(d)."""
    module, x_1TD = build(part.make, WIDTH), words(1, 5)
    weight_TT, _ = weights_TT(module, x_1TD, mask(5))
    if bool((weight_TT <= 0).any()):
        raise NotChecked("The scale was not checked: some weights are 0.")
    score_TT = weight_TT.log()[:, 1:] - weight_TT.log()[:, :1]  # the bias of the keys cancels
    matrix_NDD, bias_ND = candidates(module)
    query_QTD = (x_1TD @ matrix_NDD)[:, None] + bias_ND[:, None]
    key_KTD = x_1TD @ matrix_NDD
    product_QKTT = query_QTD.flatten(0, 1)[:, None] @ key_KTD.mT
    product_QKTT = product_QKTT[..., 1:] - product_QKTT[..., :1]
    factor_QK = (product_QKTT * score_TT).sum((-1, -2)) / product_QKTT.square().sum((-1, -2)).clamp(min=1e-12)
    error_QK = (factor_QK[..., None, None] * product_QKTT - score_TT).square().mean((-1, -2)).sqrt()
    best = int(error_QK.argmin())
    if error_QK.flatten()[best] > 1e-3 * score_TT.abs().max():
        raise NotChecked("The scale was not checked: no two of the parameters were recognized as W_q and W_k.")
    factor = float(factor_QK.flatten()[best])
    if abs(factor * WIDTH**0.5 - 1) < 1e-3:
        return
    known = {1: "1", 1 / WIDTH: "1 / d", 5**-0.5: "1 / sqrt(T), for the number of words T", WIDTH**0.5: "sqrt(d)"}
    meaning = next((f", which is {text}" for value, text in known.items() if abs(factor - value) < 1e-3 * value), "")
    example = f"For d = {WIDTH} and T = 5 the factor is {factor:.3g}{meaning}; 1 / sqrt(d) is {WIDTH**-0.5:.3g}."
    fix = "Divide the scores by math.sqrt(d), d being the width of a key."
    if meaning == ", which is 1":
        raise Mistake("no-scale", "The scores q.k are not divided by sqrt(d).", example, fix)
    raise Mistake("wrong-scale", "The scores q.k are not multiplied by 1 / sqrt(d).", example, fix)


def candidates(module: nn.Module) -> tuple[Tensor, Tensor]:
    """(N, D, D) and (M, D): all square blocks of the parameters, also transposed, and all biases, also none.

    Blocks are those of separate matrices and of fused ones, one after another or interleaved.
    """
    matrices, biases = [], [torch.zeros(WIDTH)]
    for parameter in module.parameters():
        values = parameter.detach().to(torch.get_default_dtype())
        count, rest = divmod(values.numel(), WIDTH)
        if not rest and 1 <= count <= 4:
            biases += [*values.reshape(count, WIDTH), *values.reshape(WIDTH, count).mT]
            continue
        count, rest = divmod(values.numel(), WIDTH**2)
        if rest or not 1 <= count <= 4:
            continue
        views = [values.reshape(-1, WIDTH)] if values.shape[-1] == WIDTH else []
        views += [values.reshape(WIDTH, -1).mT] if values.shape[0] == WIDTH else []
        for view in views:
            for c in range(count):
                for block in (view[c * WIDTH : (c + 1) * WIDTH], view[c::count]):
                    matrices += [block, block.mT]
    if not matrices:
        raise NotChecked("The scale was not checked: no parameter has the shape of W_q and W_k.")
    return torch.stack(matrices), torch.stack(biases)


@RULES.add("key-mask", "mask-direction", "softmax-over-keys")
def key_mask(part: Part) -> None:
    """Padding gets no attention, and the weights of the words still sum to 1."""
    module, x_1TD = build(part.make, WIDTH), words(1, 3)
    lengths = mask(2, size=3)
    open_TT, _ = weights_TT(module, x_1TD, mask(3))
    closed_TT, _ = weights_TT(module, x_1TD, lengths)
    row_T, before_T = closed_TT[0], open_TT[0]  # of the first word
    right_T = before_T * lengths[0] / before_T[:2].sum()
    if same(closed_TT[:2, :2], open_TT[:2, :2] / open_TT[:2, :2].sum(1, keepdim=True)) and same(row_T, right_T):
        return
    example = f"With the mask [True, True, False] the weights of word 0 are {show(row_T)}; right is {show(right_T)}."
    if same(row_T, before_T):
        if not same(closed_TT[2], open_TT[2]):
            sentence = "The mask is applied to the queries, not to the keys, so words attend to padding."
            raise Mistake("queries-masked", sentence, example, MINUS_INFINITY)
        raise Mistake("no-key-mask", "Words attend to padding: the mask has no effect.", example, MINUS_INFINITY)
    if same(row_T, before_T * lengths[0]):
        sentence = "The mask is applied after the softmax, so the weights no longer sum to 1."
        raise Mistake("mask-after-softmax", sentence, example, MINUS_INFINITY)
    if row_T[2] > 0 and same(row_T[:2] / row_T[:2].sum(), right_T[:2]):
        sentence = "The scores of padding are changed, but not to -inf, so words attend to padding."
        raise Mistake("mask-too-weak", sentence, example, MINUS_INFINITY)
    fix = f"{MINUS_INFINITY} Apply one softmax only: a second one gives padding a weight again."
    raise Mistake("wrong-mask", "With a mask the weights are not those of the words alone.", example, fix)


add_behaviour(RULES, "mask-direction", "softmax-over-keys", "key-mask")
