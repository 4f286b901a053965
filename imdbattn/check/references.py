"""What each part is compared with. Formulas are in references.txt; here are the numbers that they are computed from.

Linear, attention and LayerNorm are those of the student's module. Without them, results are compared with the closest
softmax attention, or ReLU layer. Shape suffixes: B reviews, H heads, T positions, D width, N samples.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from imdbattn.check import generic
from imdbattn.check.core import (
    TABLES,
    Mistake,
    Names,
    NotChecked,
    Part,
    diagnose,
    differing,
    evaluate,
    normal,
    same,
    student,
)
from imdbattn.check.generic import HEADS, WIDTH, inputs, mask, net_of

Matrix = Tensor | None  # (D, D + 1), the weight and the bias of a Linear; None: x itself
TEXTS = "1 review of 2 words", "3 reviews of 4, 2 and 3 words and padding"


def batches_of(part: Part) -> dict[str, Any]:
    """The second one has padding after each review."""
    return dict(zip(TEXTS, (inputs(part, 2), [x[1:] for x in inputs(part, 6, 4, 2, 3)]), strict=True))


def words_only(y_BTD: Tensor, *given: Tensor) -> Tensor:
    return y_BTD[given[-1]]


def calling(part: Part) -> tuple[Any, Callable[..., Tensor]]:
    net = net_of(part)
    return net, lambda *given: generic.call(part, net, *given).detach()


def differs(part: Part, call: Callable[..., Tensor]) -> Mistake:
    """For results that no formula gives."""
    generic.batch(part)
    text, given = next(iter(batches_of(part).items()))
    return Mistake(
        "differs-from-reference",
        f"The result is not that of {part.name} as documented.",
        f"For {text} it begins with {generic.show(call(*given).flatten()[:3])}.",
        TABLES[part.name].fix,
    )


# --- attention --------------------------------------------------------------------------------------------------------


def matrices(net: nn.Module) -> list[Tensor]:
    """Weights and biases, (n, D + 1), of everything that may project x; those with few rows, of heads, as one."""
    own = {name: p.detach().to(torch.get_default_dtype()) for name, p in net.named_parameters()}
    found: list[Tensor] = []
    few: list[Tensor] = []
    for name, weight in own.items():
        bias = None
        if name.endswith("weight") and weight.ndim == 2:
            bias = own.get(name.removesuffix("weight") + "bias")
        elif weight.ndim >= 2 and weight.shape[-2] == WIDTH:  # x @ weight
            weight = weight.reshape(-1, *weight.shape[-2:]).transpose(1, 2).flatten(0, 1)
        if weight.ndim == 2 and weight.shape[1] == WIDTH:
            whole = torch.cat([weight, (weight.new_zeros(len(weight)) if bias is None else bias)[:, None]], 1)
            (found if len(weight) % WIDTH == 0 else few).append(whole)
    return [torch.cat(few), *found] if few and sum(map(len, few)) % WIDTH == 0 else found


def arrangements(net: nn.Module, heads: int) -> Iterator[list[Matrix]]:
    """The projections: blocks of D rows, or of matrices for q, k and v those that alternate by head."""
    blocks = matrices(net)
    yield [*torch.cat(blocks).split(WIDTH)] if blocks else []
    if heads > 1 and any(len(block) == 3 * WIDTH for block in blocks):
        mixed = [
            b.view(heads, 3, -1, WIDTH + 1).transpose(0, 1).flatten(0, 2) if len(b) == 3 * WIDTH else b for b in blocks
        ]
        yield [*torch.cat(mixed).split(WIDTH)]


def apply(matrix: Matrix, x: Tensor) -> Tensor:
    return x if matrix is None else x @ matrix[:, :-1].mT + matrix[:, -1]


def attention_names(linears: tuple[Matrix, ...], heads: int, *given: Tensor, order: Any = (0, 1, 2)) -> Names:
    """linears: for q, k, v, and the result if there are 4. given: x or query, key and value; the mask."""
    *sources, words = given
    sources = [sources[place] for place in order] if len(sources) == 3 else [*sources * 3]
    q, k, v = (apply(w, x) for w, x in zip(linears, sources, strict=False))
    out = linears[3] if len(linears) == 4 else None
    names = {"Q": q, "K": k, "V": v, "query": sources[0], "m": words[:, None, None] if words.ndim == 2 else words}
    names |= {"B": len(q), "T": q.shape[1], "D": q.shape[-1], "d": q.shape[-1] // heads}
    if words.ndim > 2:
        return names | {"split": lambda x: x, "merge": lambda x: x}
    return names | {
        "split": lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2),
        "merge": lambda y: apply(out, y.transpose(1, 2).flatten(2)),
    }


def attention_reference(part: Part) -> None:
    """The result is softmax(Q K^T / sqrt(d)) V, over the words of the review."""
    (net, call), several = calling(part), part.name == "MultiHeadAttention"
    table, batches, keep = TABLES[part.name], batches_of(part), words_only
    wrong: list[Any] = []
    known: list[Matrix] = []
    if part.name == "scaled_dot_product_attention":
        bindings, keep = [partial(attention_names, (None, None, None), 1)], lambda y, *given: y
    else:
        bindings = []
        for known in arrangements(net, HEADS if several else 1) if len(list(net.parameters())) <= 24 else ():
            if len(known) <= 4:
                orders = [*itertools.permutations(known, 3), *itertools.permutations(known, 4)]
                orders = [order for order in orders if len(order) == min(4, len(known)) or not several]
                sizes = (HEADS,) if several else (1, 2, 4)
                bindings += [partial(attention_names, order, h) for h in sizes for order in orders]
        known = known if len(known) <= 4 else []
        reference = bindings[0] if bindings else None
        for chosen in () if several else itertools.product([*known, None], repeat=3):
            if None in chosen or len({id(one) for one in chosen}) < 3:
                bind = partial(attention_names, chosen, 1)
                name, text = "shared-projections", "One Linear is used for several of q, k and v."
                if None in chosen:
                    where = next(i for i, one in enumerate(chosen) if one is None)
                    name, text = "no-projection", f"There is no W_{'qkv'[where]}: x is used itself."
                wrong.append((name, text, bind, reference or bind))
        for bind in bindings if several and len(batches[TEXTS[0]]) == 4 else ():
            for order in itertools.product(range(3), repeat=3):
                if order != (0, 1, 2):
                    text = "Query, key and value are exchanged."
                    wrong.append(("arguments-exchanged", text, partial(bind, order=order), bind))
        for chosen in itertools.product(known, repeat=4) if several and len(known) == 4 else ():
            bind, text = partial(attention_names, chosen, HEADS), "One Linear is used for several of q, k, v and W_O."
            wrong.append(("shared-projections", text, bind, reference))
        if several:
            keep = words_only if len(batches[TEXTS[0]]) == 2 else lambda y, *given: y
            if len(known) == 3:  # without W_O, the results may be right
                wrong += [("no-output-projection", "There is no W_O.", bind, bind) for bind in bindings]
                bindings = [partial(attention_names, (*known, known[0]), HEADS)]
    with torch.no_grad():
        if diagnose(call, table, bindings, batches, wrong, keep):
            return
    generic.batch(part)
    if part.name == "scaled_dot_product_attention" or (several and len(known) == 4):
        raise differs(part, call)
    if several:
        raise NotChecked("Results were not compared: no parameters were recognized as W_q, W_k, W_v and W_O.")
    compare_probed(call, [one for one in known if one is not None])


def compare_probed(call: Callable[..., Tensor], known: list[Tensor]) -> None:
    """For one word the result is its value, affine in x; for two, log(a1 / a0) of the weights is (x1 - x0) (A x0 + b).

    Raises Mistake unless values and scores that are fitted to these give the results for other reviews, and unless A is
    W_k^T W_q / sqrt(d) if such matrices are known.
    """
    x_N1D, x_N2D, given = normal(60, 1, WIDTH, seed=2), normal(300, 2, WIDTH, seed=3), normal(3, 4, WIDTH)
    words, ones = mask(4, 2, 3), torch.ones(60, 1)
    fit = torch.linalg.lstsq(torch.cat([x_N1D[:, 0], ones], 1), call(x_N1D, mask(*[1] * 60))[:, 0]).solution
    y_ND, v_N2D = call(x_N2D, mask(*[2] * 300))[:, 0], x_N2D @ fit[:-1] + fit[-1]
    a_N2 = torch.linalg.lstsq(v_N2D.mT, y_ND[..., None]).solution[..., 0]
    use_N = a_N2.min(1).values > 1e-5
    d_ND, x0_ND = (x_N2D[:, 1] - x_N2D[:, 0])[use_N], x_N2D[use_N, 0]
    features = torch.cat([(d_ND[:, :, None] * x0_ND[:, None]).flatten(1), d_ND], 1)
    fitted = torch.linalg.lstsq(features, (a_N2[use_N, 1:] / a_N2[use_N, :1]).log()).solution
    a_DD = fitted[:-WIDTH].view(WIDTH, WIDTH)
    scores = given @ a_DD.mT @ given.mT + (given @ fitted[-WIDTH:]).mT
    right = scores.masked_fill(~words[:, None], -1e9).softmax(-1) @ (given @ fit[:-1] + fit[-1])
    fix = TABLES["SelfAttention"].fix
    if not same((y := call(given, words))[words], right[words], 5e-3):
        sentence = "It is not the sum of values W x + b with the weights of a softmax of products q.k."
        example = "For reviews of 4, 2 and 3 words the result is {}; the closest such sum is {}."
        raise differing("differs-from-reference", sentence, example, y[words], right[words], fix)
    for k, q in itertools.permutations(known, 2):
        product = k[:, :-1].mT @ q[:, :-1]
        scale = float((a_DD * product).sum() / product.square().sum())
        if same(a_DD, scale * product, 5e-3):
            if abs(scale * WIDTH**0.5 - 1) < 5e-3:
                return
            sentence = f"The scores q.k are divided by {1 / scale:.3g}, not by sqrt(d)."
            raise Mistake("wrong-scale", sentence, f"For d = {WIDTH}, it is {WIDTH**0.5:.3g}.", fix)
    raise NotChecked("The scale was not checked: no parameters were recognized as W_q, W_k and W_v.")


def softmax_reference(part: Part) -> None:
    """Padded keys have the weight 0, and the weights are the softmax of the other scores."""
    _, call = calling(part)

    def bind(scores: Tensor, lengths: Tensor) -> Names:
        words = mask(*lengths.tolist(), size=scores.shape[-1])[:, None]
        return {"s": scores, "m": words, "n": lengths[:, None], "T": scores.shape[-1]}

    if not diagnose(call, TABLES[part.name], [bind], batches_of(part)):
        raise differs(part, call)


def linears(net: nn.Module, rows: int, columns: int) -> list[Callable[[Tensor], Tensor]]:
    """The functions from `columns` to `rows` numbers that a Linear or another parameter of the module may be."""
    modules = [child for child in net.modules() if isinstance(child, nn.Linear)]
    inside = {id(p) for child in modules for p in child.parameters()}
    found: list[Any] = [one for one in modules if (one.out_features, one.in_features) == (rows, columns)]
    for p in (p.detach() for p in net.parameters() if id(p) not in inside):
        if p.numel() == rows * columns and {rows, columns} <= {1, *p.shape}:
            shape = [size for size in p.shape if size != 1] or [1]
            w = p.reshape(rows, columns) if shape[0] == rows or 1 in (rows, columns) else p.reshape(columns, rows).mT
            found.append(partial(F.linear, weight=w.to(torch.get_default_dtype())))
    return found


def score_reference(part: Part) -> None:
    """The scores are those of the formula, with the student's parameters."""
    net, call = calling(part)
    h, e = generic.HIDDEN, generic.SIZES["E"]
    bindings: list[Callable[..., Names]] = []
    if part.name == "AdditiveScore":
        free = [p.detach() for k, p in net.named_parameters() if tuple(p.shape) == (h,) and "." not in k]  # biases
        free = [torch.zeros(h), *free]

        def additive(w: Any, u: Any, v: Any, bias: Tensor, q: Tensor, k: Tensor) -> Names:
            return {"a": (w(q) + bias)[:, :, None], "b": u(k)[:, None], "h": h, "v": lambda x: v(x).squeeze(-1)}

        pairs = [*itertools.product(linears(net, h, e), linears(net, h, WIDTH))]
        for both in linears(net, h, e + WIDTH):  # of q and k, one after the other
            pairs += [
                (
                    lambda q, f=both: f(F.pad(q, (0, WIDTH))),
                    lambda k, f=both: f(F.pad(k, (e, 0))) - f(torch.zeros(e + WIDTH)),
                ),
                (
                    lambda q, f=both: f(F.pad(q, (WIDTH, 0))),
                    lambda k, f=both: f(F.pad(k, (0, e))) - f(torch.zeros(e + WIDTH)),
                ),
            ]
        every = itertools.product(pairs, linears(net, 1, h), free)
        bindings = [partial(additive, w, u, v, bias) for (w, u), v, bias in every]
    else:
        constant = [p.detach().squeeze() for p in net.parameters() if p.numel() == 1]
        names: Names = {"b": constant[0] if constant else torch.zeros(()), "D": WIDTH, "E": e}
        bindings = [lambda q, k, w=w: names | {"q": w(q), "k": k} for w in linears(net, WIDTH, e)]
        bindings += [lambda q, k, w=w: names | {"q": q, "k": w(k)} for w in linears(net, e, WIDTH)]
    if not bindings:
        generic.batch(part)
        raise NotChecked("Scores were not compared: no parameters were recognized as those of the formula.")
    with torch.no_grad():
        if not diagnose(call, TABLES[part.name], bindings, batches_of(part)):
            raise differs(part, call)


def decoder_reference(part: Part) -> None:
    """The context is the sum of the encoder's outputs, weighted by the softmax over the words of a score of each."""
    _, call = calling(part)
    state_BD, outputs_BTD, words_BT = inputs(part, 4, 2, 3)
    fix = TABLES[part.name].fix

    def weights_of(outputs: Tensor, context: Tensor) -> Tensor:
        """(B, T): the only ones whose sum of the outputs is the context."""
        return torch.linalg.lstsq(outputs.mT, context[..., None]).solution[..., 0]

    pairs = []
    for other in range(1, 4):  # words 0 and `other` of each review, one review at a time
        h_B2D = outputs_BTD[:, [0, other]]
        y_BD, inverted_BD = (
            torch.cat([call(s, h, m) for s, h in zip(state_BD.split(1), h_B2D.split(1), strict=True)])
            for m in (mask(2), ~mask(2))
        )
        a_B2 = weights_of(h_B2D, y_BD)
        if same(a_B2, torch.full((3, 2), 0.5)) and not same(inverted_BD, y_BD):
            example = "For 2 words the weights are [0.5, 0.5], and others if both are padding."
            raise Mistake("mask-inverted", "Words are masked and padding is attended to.", example, fix)
        fitted = (a_B2[..., None] * h_B2D).sum(1)
        if not same(fitted, y_BD, 2e-3):
            sentence, example = (
                "The context is not a sum of the outputs with one weight for each.",
                ("For 2 words it is {}; the closest such sum is {}."),
            )
            raise differing("not-a-sum-of-outputs", sentence, example, y_BD, fitted, fix)
        if not same(a_B2.sum(1), torch.ones(3), 2e-3) or bool((a_B2 < -1e-6).any()):
            example = f"For 2 words they are {generic.show(a_B2[0])}."
            raise Mistake("weights-do-not-sum-to-1", "The weights are not those of a softmax.", example, fix)
        pairs.append(a_B2.clamp(min=1e-12).log())
    s_BT = torch.stack([torch.zeros(3), *(pair[:, 1] - pair[:, 0] for pair in pairs)], 1)
    if same(s_BT, torch.zeros(3, 4) + s_BT.mean(), 1e-3) or bool((s_BT.abs() < 1e-6).all()):
        raise Mistake("no-attention", "All words have the same weight.", "Those of 2 words are [0.5, 0.5].", fix)
    again = call(state_BD.roll(1, 0)[:1], outputs_BTD[:1], mask(4))
    if same(again, call(state_BD[:1], outputs_BTD[:1], mask(4)), 1e-5):
        example = f"For two states it begins with {generic.show(again[0, :3])}."
        raise Mistake("state-not-used", "The decoder's state has no effect on the context.", example, fix)
    bind = lambda state, h, m: {"s": s_BT[-len(h) :] if len(h) > 1 else s_BT[:1, : h.shape[1]], "h": h, "m": m}  # noqa: E731
    batches = {
        "1 review of 4 words": (state_BD[:1], outputs_BTD[:1], mask(4)),
        TEXTS[1]: (state_BD, outputs_BTD, words_BT),
    }
    if not diagnose(call, TABLES[part.name], [bind], batches):
        raise differs(part, call)


# --- layers -----------------------------------------------------------------------------------------------------------


def attending(module: nn.Module) -> list[Callable[[Tensor, Tensor], Tensor]]:
    """The module as functions of (x, mask) with an effect of words on each other; none if it is no attention."""

    def heads(x: Tensor, m: Tensor) -> Tensor:
        x, padding = x if module.batch_first else x.transpose(0, 1), ~m & m.any(1, keepdim=True)
        y = module(x, x, x, key_padding_mask=padding)[0]
        return y if module.batch_first else y.transpose(0, 1)

    if isinstance(module, nn.Linear | nn.LayerNorm | nn.Sequential | nn.ModuleList | nn.Dropout):
        return []
    found = []
    for call in (heads,) if isinstance(module, nn.MultiheadAttention) else (module, lambda x, m: module(x)):
        try:
            x, y = normal(1, 2, WIDTH), call(normal(1, 2, WIDTH), mask(2))
            if y.shape == x.shape and not same(y[:, :1], call(x[:, :1], mask(1)), 1e-6):
                found.append(call)
        except Exception:  # it has another signature
            continue
    return found


def layer_reference(part: Part) -> None:
    """The result is that of g, f and LayerNorm as documented."""
    (net, call), table = calling(part), TABLES[part.name]
    batches = {"1 review of 1 word": inputs(part, 1)} | batches_of(part)
    inner = [child for child in net.modules() if child is not net]
    with torch.no_grad():
        found = {child: calls for child in inner if (calls := attending(child))}
    deepest = [child for child in found if not any(deep in found for deep in child.modules() if deep is not child)]
    within = {deep for child in deepest for deep in child.modules()}
    norms: list[Any] = [child for child in inner if isinstance(child, nn.LayerNorm)]
    own: list[Any] = [child for child in inner if isinstance(child, nn.Linear) and child not in within]
    own = [child for child in own if child.weight.shape == (WIDTH, WIDTH)]
    any_linear = partial(F.linear, weight=normal(WIDTH, WIDTH))
    choices = itertools.product(
        [calls[0] for calls in found.values()],
        norms or [partial(F.layer_norm, normalized_shape=[WIDTH])],
        own or [any_linear],
    )

    def bind(choice: Any, x: Tensor, m: Tensor) -> Names:
        f, n, g = choice
        return {"x": x, "f": lambda x: f(x, m), "n": n, "g": g, "every": lambda x: f(x, torch.ones_like(m))}

    with torch.no_grad():
        if diagnose(call, table, [partial(bind, choice) for choice in choices], batches, (), words_only):
            return
    generic.batch(part)
    with torch.no_grad():
        compare_fitted(part, call, [f for calls in found.values() for f in calls], norms)


def compare_fitted(part: Part, call: Callable[..., Tensor], attentions: list[Any], norms: list[Any]) -> None:
    """Raises Mistake unless the results are relu(A s + b), s = f(x) or x + f(LN(x)), for f and LN of the module.

    If these are not recognized, the results for one word must be relu(A x + b), or relu(A x + B LN(x) + b).
    """
    table, residual = TABLES[part.name], part.name == "ResidualLayer"
    x, size = (
        (normal(80, 4, WIDTH, seed=5), 4) if attentions and (norms or not residual) else (normal(320, 1, WIDTH), 1)
    )
    y = call(x, mask(*[size] * len(x))).flatten(0, 1)
    if size == 1:
        form, terms = "relu(A x + b)", [[x]]
        if residual:
            form, terms = "relu(A x + B LN(x) + b)", [[x, F.layer_norm(x, [WIDTH])]]
    else:
        form, terms = "relu(A s + b), s = x + f(LN(x))" if residual else "relu(A f(x) + b)", []
        for f, n, value in itertools.product(attentions, norms or [None], (True, False)):
            m = torch.full(x.shape[:2], value)
            s = evaluate({"s": table.steps["s"]}, {"x": x, "f": lambda x, f=f, m=m: f(x, m), "n": n})
            terms += [] if s is None else [[s]]
    fits = [closest_relu([term.flatten(0, 1) for term in each], y) for each in terms]
    if not any(same(fit, y, 2e-3) for fit in fits):
        with torch.enable_grad():
            generic.gradients(part)  # a module that is not used explains more
        sentence = f"The results for reviews of {size} {'words' if size > 1 else 'word'} are not {form}."
        example = "For one word, it is {}; the closest one is {}."
        raise differing("differs-from-reference", sentence, example, y, fits[0], table.fix)


def closest_relu(terms: list[Tensor], y_ND: Tensor) -> Tensor:
    """The closest ReLU of an affine function of the terms (N, D), fitted where y is above 0."""
    z, columns = torch.cat([*terms, torch.ones(len(y_ND), 1)], 1), []
    ridge = 1e-6 * torch.eye(z.shape[1])
    for y_N in y_ND.T:
        right = torch.cat([y_N[y_N > 0], torch.zeros(len(ridge))])[:, None]
        columns.append(z @ torch.linalg.lstsq(torch.cat([z[y_N > 0], ridge]), right).solution)
    return torch.cat(columns, 1).relu()


# --- functions --------------------------------------------------------------------------------------------------------


def mean_reference(part: Part) -> None:
    """The result is the mean of the words, without the padding."""
    x_BTD = normal(3, 4, WIDTH)
    x_BTD[0, 1], x_BTD[1, 0, 2] = 0, 0
    numbers = torch.zeros(1, 3, WIDTH)
    numbers[0, :, 0] = torch.tensor([2.0, 4.0, 30.0])
    text = "the words 2 and 4 and padding of 30 as the first numbers"
    batches = {text: (numbers, mask(2, size=3)), TEXTS[1]: (x_BTD, mask(4, 2, 3))}
    _, call = calling(part)

    def bind(x: Tensor, words: Tensor) -> Names:
        return {"x": x, "m": words[..., None].to(x.dtype), "n": words.sum(1, keepdim=True)}

    if not diagnose(call, TABLES[part.name], [bind], batches):
        generic.batch(part)
        example = f"The words 2 and 4, with padding of 30, give {generic.show(call(*batches[text])[0, 0])}; right is 3."
        raise Mistake("wrong-mean", "The result differs from the mean of the words.", example, TABLES[part.name].fix)


def position_names(length: int, width: int) -> Names:
    i, h = torch.arange(length, dtype=torch.float64), torch.arange(width, dtype=torch.float64)
    return {"i": i[:, None], "h": h, "d": width}


def sinusoids(length: int, width: int) -> Tensor:
    table = evaluate(TABLES["positional_encoding"].steps, position_names(length, width))
    assert table is not None
    return table.to(torch.get_default_dtype())


def position_reference(part: Part) -> None:
    """Columns 2k and 2k + 1 are the sine and the cosine of i / 10000^(2k/d), i from 0."""
    sizes, made = ((1, 2), (2, 4), (5, 6), (30, 8)), {}
    for size in sizes:
        y = student(part.make, *size)
        made[size] = y.detach().to(torch.float64) if isinstance(y, Tensor) and y.is_floating_point() else y
        generic.require_shape(made[size], size, f"positional_encoding{size}", "One row per position.")
    batches = {f"length {length} and width {width}": (length, width) for length, width in sizes}
    if not diagnose(lambda *size: made[size], TABLES[part.name], [position_names], batches):
        given, right = made[5, 6], sinusoids(5, 6)
        row, column = max(((given - right).abs() > 1e-3).nonzero().tolist()[:1] or [[0, 0]])
        example = f"For d = 6, pe[{row}, {column}] is {given[row, column]:.4g}; right is {right[row, column]:.4g}."
        fix = TABLES[part.name].fix
        raise Mistake("wrong-wavelengths", "The table differs from the reference.", example, fix)


LOGITS = torch.tensor([[1.0, -1], [-1, 1], [-1, -2], [-2, -1], [2, 1]])  # of the ids, in evaluation mode


class FirstWord(nn.Module):
    """The logits belong to the first word; in training mode the classes are exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        logits = LOGITS.to(torch.get_default_dtype())[tokens_BT[:, 0]]
        return self.scale * (logits.flip(1) if self.training else logits)


def loader(*batches: list[tuple[int, int]]) -> DataLoader[Any]:
    """Batches (tokens, lengths, labels). batches: the first word and the label of each review."""
    first_N, labels_N = torch.tensor([review for batch in batches for review in batch]).unbind(1)
    reviews = TensorDataset(first_N[:, None].repeat(1, 2), torch.full_like(labels_N, 2), labels_N)
    places = torch.arange(len(labels_N)).split([len(batch) for batch in batches])
    return DataLoader(reviews, batch_sampler=[batch.tolist() for batch in places])


TRAIN = [(0, 0), (1, 1), (0, 0), (3, 1)], [(1, 1), (4, 0), (0, 1), (2, 0)]
TEST = [(0, 0), (1, 1), (2, 1), (3, 1), (4, 0), (0, 1)], [(3, 1), (3, 1), (1, 1)], [(0, 0), (1, 1)]


def share(*batches: Any, training: bool = False, predict: Any = None) -> Tensor:
    """The share of right reviews."""
    tokens, labels = torch.tensor([review for batch in batches for review in batch]).unbind(1)
    logits = LOGITS[tokens].flip(1) if training else LOGITS[tokens]
    return ((predict or (lambda y: y.argmax(1)))(logits) == labels).double().mean(0, keepdim=True)


ACCURACY_NAMES: Names = {"share": share, "train": TRAIN, "test": TEST}


def accuracy_reference(part: Part) -> None:
    """The accuracy is the share, from 0 to 1, of the test reviews that are right, in evaluation mode."""
    with torch.enable_grad():
        value = student(float, student(part.make, FirstWord().train(), loader(*TRAIN), loader(*TEST)))
    text = f"{len(TEST)} test batches, of 6, 3 and 2 reviews"
    given = torch.tensor([value], dtype=torch.float64)
    if not diagnose(lambda: given, TABLES[part.name], [lambda: ACCURACY_NAMES], {text: ()}):
        example, fix = (
            f"For {text} the result is {value:.4g}; right is {share(*TEST).item():.4g}.",
            TABLES[part.name].fix,
        )
        raise Mistake("wrong-accuracy", "The result is not the share of correct test reviews.", example, fix)
