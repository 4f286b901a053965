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

from imdbattn.check import rules
from imdbattn.check.rules import (
    TABLES,
    WIDTH,
    Binding,
    Names,
    Part,
    diagnose,
    inputs,
    mask,
    mistake,
    net_of,
    normal,
    same,
    student,
)

Matrix = Tensor | None  # (D, D + 1), the weight and the bias of a Linear; None: x itself
TEXTS = "1 review of 2 words", "3 reviews of 4, 2 and 3 words and padding"


def batches_of(part: Part) -> dict[str, Any]:
    """The second one has padding after each review."""
    return dict(zip(TEXTS, (inputs(part, 2), [x[1:] for x in inputs(part, 6, 4, 2, 3)]), strict=True))


def words_only(y_BTD: Tensor, *given: Tensor) -> Tensor:
    return y_BTD[given[-1]]


def calling(part: Part) -> tuple[Any, Callable[..., Tensor]]:
    net = net_of(part)
    return net, lambda *given: rules.call(part, net, *given).detach()


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
        mixed = [b.view(heads, -1, WIDTH // heads, WIDTH + 1).transpose(0, 1).flatten(0, 2) for b in blocks]
        blocks = [m if len(m) == 3 * WIDTH else b for m, b in zip(mixed, blocks, strict=True)]
        yield [*torch.cat(blocks).split(WIDTH)]


def apply(matrix: Matrix, x: Tensor) -> Tensor:
    return x if matrix is None else x @ matrix[:, :-1].mT + matrix[:, -1]


def attention_names(linears: tuple[Matrix, ...], heads: int, *given: Tensor, order: Any = (0, 1, 2)) -> Names:
    """linears: for q, k, v, and the result if there are 4. given: x or query, key and value; the mask."""
    *sources, words = given
    sources = [sources[place] for place in order] if len(sources) == 3 else [*sources * 3]
    q, k, v = (apply(w, x) for w, x in zip(linears, sources, strict=False))
    out = linears[3] if len(linears) == 4 else None
    names: Names = {"B": len(q), "T": q.shape[1], "D": q.shape[-1], "d": q.shape[-1] // heads}
    names |= {"Q": q, "K": k, "V": v, "query": sources[0], "m": words}
    if words.ndim > 2:  # of a function, without heads
        return names | {"split": lambda x: x, "merge": lambda x: x}
    names["m"] = words[:, None, None]
    split = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)  # noqa: E731
    return names | {"split": split, "merge": lambda y: apply(out, y.transpose(1, 2).flatten(2))}


def attention_bindings(known: list[Matrix], several: bool, crossed: bool) -> Iterator[Binding]:
    """Each order of the matrices as q, k, v and W_O; and the mistakes of using some twice, or x itself.

    several: MultiHeadAttention, which has W_O. crossed: called with query, key and value.
    """
    for heads, count in itertools.product((rules.HEADS,) if several else (1, 2, 4), (4,) if several else (3, 4)):
        for linears in itertools.permutations(known, count):
            yield "", "", partial(attention_names, linears, heads)
            for order in itertools.product(range(3), repeat=3) if crossed else ():
                if order != (0, 1, 2):
                    bind = partial(attention_names, linears, heads, order=order)
                    yield "arguments-exchanged", "Query, key and value are exchanged.", bind
    if several:
        for linears in itertools.permutations(known, 3) if len(known) == 3 else ():
            yield "no-output-projection", "There is no W_O.", partial(attention_names, linears, rules.HEADS)
    for linears in itertools.product(known if several else [*known, None], repeat=4 if several else 3):
        if None in linears:
            where = "qkv"[[one is None for one in linears].index(True)]
            yield "no-projection", f"There is no W_{where}: x is used itself.", partial(attention_names, linears, 1)
        elif len({id(one) for one in linears}) < len(linears):
            sentence = f"One Linear is used for several of q, k{', v and W_O' if several else ' and v'}."
            yield "shared-projections", sentence, partial(attention_names, linears, rules.HEADS if several else 1)


def attention_reference(part: Part) -> None:
    """The result is softmax(Q K^T / sqrt(d)) V, over the words of the review."""
    (net, call), several, batches = calling(part), part.name == "MultiHeadAttention", batches_of(part)
    if part.name == "scaled_dot_product_attention":
        diagnose(part, call, [("", "", partial(attention_names, (None, None, None), 1))], batches)
        return
    crossed = len(batches[TEXTS[0]]) == 4
    few = [known for known in arrangements(net, rules.HEADS if several else 1) if len(known) <= 4] or [[]]
    bindings = [b for known in few for b in attention_bindings(known, several, crossed)]
    keep = (lambda y, *given: y) if crossed else words_only
    with torch.no_grad():
        if diagnose(part, call, bindings, batches, keep, otherwise="differs-from-reference" if several else None):
            return
    rules.batch(part)
    if several:
        raise rules.NotChecked("Results were not compared: no parameters were recognized as W_q, W_k, W_v and W_O.")
    compare_probed(call, [one for one in few[0] if one is not None])


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
    values = {"part": "SelfAttention", "fix": TABLES["SelfAttention"].fix, "d": WIDTH, "right": WIDTH**0.5}
    if not same((y := call(given, words))[words], right[words], 5e-3):
        raise mistake("differs-from-reference", y[words], right[words], text="3 reviews of 4, 2 and 3 words", **values)
    for k, q in itertools.permutations(known, 2):
        product = k[:, :-1].mT @ q[:, :-1]
        scale = float((a_DD * product).sum() / product.square().sum())
        if same(a_DD, scale * product, 5e-3):
            if abs(scale * WIDTH**0.5 - 1) < 5e-3:
                return
            raise mistake("wrong-scale", given=1 / scale, **values)
    raise rules.NotChecked("The scale was not checked: no parameters were recognized as W_q, W_k and W_v.")


# --- scores -----------------------------------------------------------------------------------------------------------


def softmax_reference(part: Part) -> None:
    """Padded keys have the weight 0, and the weights are the softmax of the other scores."""

    def bind(scores: Tensor, lengths: Tensor) -> Names:
        words = mask(*lengths.tolist(), size=scores.shape[-1])[:, None]
        return {"s": scores, "m": words, "n": lengths[:, None], "T": scores.shape[-1]}

    diagnose(part, calling(part)[1], [("", "", bind)], batches_of(part))


def linears(net: nn.Module, rows: int, columns: int) -> list[Callable[[Tensor], Tensor]]:
    """The functions from `columns` to `rows` numbers that a Linear or another parameter of the module may be."""
    modules = [child for child in net.modules() if isinstance(child, nn.Linear)]
    inside = {id(p) for child in modules for p in child.parameters()}
    found: list[Any] = [one for one in modules if (one.out_features, one.in_features) == (rows, columns)]
    for p in (p.detach() for p in net.parameters() if id(p) not in inside):
        if p.numel() == rows * columns and {rows, columns} <= {1, *p.shape}:
            first = next((size for size in p.shape if size != 1), 1)
            w = p.reshape(rows, columns) if first == rows or 1 in (rows, columns) else p.reshape(columns, rows).mT
            found.append(partial(F.linear, weight=w.to(torch.get_default_dtype())))
    return found


def additive_names(w: Any, u: Any, v: Any, bias: Tensor, q: Tensor, k: Tensor) -> Names:
    """w and u: of q and k, or with u=None, w of both side by side, in one of the two orders."""
    grid = q[:, :, None].expand(-1, -1, k.shape[1], -1), k[:, None].expand(-1, q.shape[1], -1, -1)
    a, b = (w(q)[:, :, None], u(k)[:, None]) if callable(u) else (w(torch.cat(grid[::u], -1)), torch.zeros(()))
    return {"a": a + bias, "b": b, "h": rules.HIDDEN, "v": lambda x: v(x).squeeze(-1)}


def score_reference(part: Part) -> None:
    """The scores are those of the formula, with the student's parameters."""
    net, call = calling(part)
    e, h = rules.SIZES["E"], rules.HIDDEN
    with torch.no_grad():
        if part.name == "AdditiveScore":
            biases = [p.detach() for k, p in net.named_parameters() if tuple(p.shape) == (h,) and "." not in k]
            pairs: list[Any] = [*itertools.product(linears(net, h, e), linears(net, h, WIDTH))]
            pairs += itertools.product(linears(net, h, e + WIDTH), (1, -1))
            every = itertools.product(pairs, linears(net, 1, h), [torch.zeros(h), *biases])
            binds: list[Any] = [partial(additive_names, w, u, v, bias) for (w, u), v, bias in every]
        else:
            constant = [torch.zeros(()), *(p.detach().squeeze() for p in net.parameters() if p.numel() == 1)][-1]
            names = {"b": constant, "D": WIDTH, "E": e}
            binds = [lambda q, k, w=w: names | {"q": w(q), "k": k} for w in linears(net, WIDTH, e)]
            binds += [lambda q, k, w=w: names | {"q": q, "k": w(k)} for w in linears(net, e, WIDTH)]
        if diagnose(part, call, [("", "", bind) for bind in binds], batches_of(part)):
            return
    rules.batch(part)
    raise rules.NotChecked("Scores were not compared: no parameters were recognized as those of the formula.")


def decoder_reference(part: Part) -> None:
    """The context is the sum of the encoder's outputs, weighted by the softmax over the words of a score of each.

    The weights of two words are the only ones whose sum of outputs is the context. They determine the scores.
    """
    _, call = calling(part)
    state_BD, outputs_BTD, words_BT = inputs(part, 4, 2, 3)
    fix, scores = TABLES[part.name].fix, [torch.zeros(3)]
    for other in range(1, 4):  # words 0 and `other` of each review, one review at a time
        h_B2D = outputs_BTD[:, [0, other]]
        y_BD, inverted_BD = (
            torch.cat([call(s, h, m) for s, h in zip(state_BD.split(1), h_B2D.split(1), strict=True)])
            for m in (mask(2), ~mask(2))
        )
        a_B2 = torch.linalg.lstsq(h_B2D.mT, y_BD[..., None]).solution[..., 0]
        if same(a_B2, torch.full((3, 2), 0.5)):
            if same(inverted_BD, y_BD):
                raise mistake("no-attention", a_B2[0], fix=fix)
            raise mistake("mask-inverted", y_BD, inverted_BD, fix=fix)
        if not same(fitted := (a_B2[..., None] * h_B2D).sum(1), y_BD, 2e-3):
            raise mistake("not-a-sum-of-outputs", y_BD, fitted, fix=fix)
        if not same(a_B2.sum(1), torch.ones(3), 2e-3) or bool((a_B2 < -1e-6).any()):
            raise mistake("weights-do-not-sum-to-1", a_B2, a_B2.softmax(1), fix=fix)
        scores.append((a_B2[:, 1] / a_B2[:, 0]).clamp(min=1e-12).log())
    first = state_BD[:1], outputs_BTD[:1], mask(4)
    if same(y := call(state_BD[1:2], *first[1:]), call(*first), 1e-5):
        raise mistake("state-not-used", y, fix=fix)
    s_BT = torch.stack(scores, 1)
    batches = {"1 review of 4 words": first, "3 reviews of 4, 2 and 3 words": (state_BD, outputs_BTD, words_BT)}
    diagnose(part, call, [("", "", lambda state, h, m: {"s": s_BT[: len(h)], "h": h, "m": m})], batches)


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
    net, call = calling(part)
    inner = [child for child in net.modules() if child is not net]
    with torch.no_grad():
        found = {child: calls for child in inner if (calls := attending(child))}
    deepest = [child for child in found if not any(deep in found for deep in child.modules() if deep is not child)]
    within = {deep for child in deepest for deep in child.modules()}
    norms: list[Any] = [child for child in inner if isinstance(child, nn.LayerNorm)]
    own: list[Any] = [child for child in inner if isinstance(child, nn.Linear) and child not in within]
    choices = itertools.product(
        [calls[0] for calls in found.values()],
        norms or [partial(F.layer_norm, normalized_shape=[WIDTH])],
        [g for g in own if g.weight.shape == (WIDTH, WIDTH)] or [partial(F.linear, weight=normal(WIDTH, WIDTH))],
    )

    def bind(f: Any, n: Any, g: Any, x: Tensor, m: Tensor) -> Names:
        return {"x": x, "f": lambda x: f(x, m), "n": n, "g": g, "every": lambda x: f(x, torch.ones_like(m))}

    batches = {"1 review of 1 word": inputs(part, 1)} | batches_of(part)
    bindings = [("", "", partial(bind, *choice)) for choice in choices]
    with torch.no_grad():
        if diagnose(part, call, bindings, batches, words_only, otherwise=None):
            return
    rules.batch(part)
    compare_fitted(part, call, [f for calls in found.values() for f in calls], norms)


def compare_fitted(part: Part, call: Callable[..., Tensor], attentions: list[Any], norms: list[Any]) -> None:
    """Raises Mistake unless the results are relu(A s + b), s = f(x) or x + f(LN(x)), for f and LN of the module.

    If these are not recognized, the results for one word must be relu(A x + b), or relu(A x + B LN(x) + b).
    """
    table, residual = TABLES[part.name], part.name == "ResidualLayer"
    known = bool(attentions and (norms or not residual))
    x = normal(80, 4, WIDTH, seed=5) if known else normal(320, 1, WIDTH)
    y = call(x, mask(*[x.shape[1]] * len(x))).flatten(0, 1)
    terms = [torch.cat([x, F.layer_norm(x, [WIDTH])], -1) if residual else x]
    with torch.no_grad():
        if known:  # whatever mask f is called with in the layer, which no padding is needed to tell
            masks = (torch.full(x.shape[:2], value) for value in (True, False))
            names = [
                {"x": x, "f": partial(lambda f, m, x: f(x, m), f, m), "n": n}
                for f, n, m in itertools.product(attentions, norms or [None], masks)
            ]
            terms = [s for each in names if (s := rules.evaluate({"s": table.steps["s"]}, each)) is not None]
        fits = [closest_relu(term.flatten(0, 1), y) for term in terms]
    if not any(same(fit, y, 2e-3) for fit in fits):
        rules.gradients(part)  # a module that is not used explains more
        text = f"{len(x)} reviews of {x.shape[1]} words"
        raise mistake("differs-from-reference", y, fits[0], part=part.name, text=text, fix=table.fix)


def closest_relu(term_ND: Tensor, y_ND: Tensor) -> Tensor:
    """The closest ReLU of an affine function of the term, fitted where y is above 0."""
    z, columns = F.pad(term_ND, (0, 1), value=1.0), []
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

    def bind(x: Tensor, words: Tensor) -> Names:
        return {"x": x, "m": words[..., None].to(x.dtype), "n": words.sum(1, keepdim=True)}

    diagnose(part, calling(part)[1], [("", "", bind)], batches, otherwise="wrong-mean")


def position_names(length: int, width: int) -> Names:
    i, h = torch.arange(length, dtype=torch.float64), torch.arange(width, dtype=torch.float64)
    return {"i": i[:, None], "h": h, "d": width}


def sinusoids(length: int, width: int) -> Tensor:
    table = rules.evaluate(TABLES["positional_encoding"].steps, position_names(length, width))
    assert table is not None
    return table.to(torch.get_default_dtype())


def position_reference(part: Part) -> None:
    """Columns 2k and 2k + 1 are the sine and the cosine of i / 10000^(2k/d), i from 0."""
    sizes, made = ((1, 2), (2, 4), (5, 6), (30, 8)), {}
    for size in sizes:
        y = student(part.make, *size)
        made[size] = y.detach().to(torch.float64) if isinstance(y, Tensor) and y.is_floating_point() else y
        rules.require_shape(made[size], size, f"positional_encoding{size}", "One row per position.")
    batches = {f"length {length} and width {width}": (length, width) for length, width in sizes}
    diagnose(part, lambda *size: made[size], [("", "", position_names)], batches, otherwise="wrong-wavelengths")


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
    given, bindings = torch.tensor([value], dtype=torch.float64), [("", "", lambda: ACCURACY_NAMES)]
    batches: dict[str, Any] = {f"{len(TEST)} test batches, of 6, 3 and 2 reviews": ()}
    diagnose(part, lambda: given, bindings, batches, otherwise="wrong-accuracy")
