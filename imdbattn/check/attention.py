"""References and variants of SelfAttention, softmax(Q K^T / sqrt(d)) V, PlainLayer, and ResidualLayer.

Linear, attention and LayerNorm are those of the student's module. Without them, results are compared with the closest
softmax attention, or ReLU layer. Shape suffixes: B reviews, H heads, T positions, D width, K width of a key, N samples.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check import generic
from imdbattn.check.generic import WIDTH, mask, words
from imdbattn.check.rules import NotChecked, Part, diagnose, differing, same, student

FIX = "softmax(Q K^T / sqrt(d), dim=-1) V, the scores of padded keys replaced by a very negative number before it."


def softmax(s: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return s.softmax(-1)


def masked(s: Tensor, m: Tensor, value: float = -1e9) -> Tensor:
    return s.masked_fill(~m, value)


def share(a: Tensor) -> Tensor:
    return a / a.sum(-1, keepdim=True).clamp(min=1e-9)


def eye(s: Tensor) -> Tensor:
    return torch.eye(s.shape[-1], dtype=torch.bool).expand_as(s)


def causal(s: Tensor) -> Tensor:
    return torch.ones_like(s, dtype=torch.bool).tril()


unit = partial(nn.functional.normalize, dim=-1)


RIGHT: dict[str, Callable[..., Any]] = {
    "projected": lambda q, k, v, x: (q, k, v),
    "product": lambda q, k: q @ k.mT,
    "scale": lambda d, x: d**-0.5,
    "scores": lambda s: s,
    "mask": masked,
    "weights": softmax,
    "sum": lambda a, v, x: a @ v,
}
# Step of RIGHT, finding, sentence, and what replaces the step. d: width of a key. m (B, 1, 1, T) is True on words.
STEPS: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("weights", "softmax-over-queries", "The softmax is over the queries.", lambda s, m, v: s.softmax(-2)),
    ("sum", "weights-transposed", "The weights are transposed, or summed over queries.", lambda a, v, x: a.mT @ v),
    ("weights", "softmax-over-batch", "The softmax is over the reviews.", lambda s, m, v: s.softmax(0)),
    ("weights", "softmax-over-all", "It is over all scores.", lambda s, m, v: s.flatten(-2).softmax(-1).view_as(s)),
    ("weights", "softmax-applied-twice", "There is a second softmax.", lambda s, m, v: s.softmax(-1).softmax(-1)),
    ("weights", "no-softmax", "There is no softmax.", lambda s, m, v: s),
    ("weights", "no-softmax", "Scores are divided by their sum.", lambda s, m, v: s / s.sum(-1, keepdim=True)),
    ("weights", "weights-do-not-sum-to-1", "exp is divided by T.", lambda s, m, v: s.exp() / s.shape[-1]),
    ("weights", "weights-do-not-sum-to-1", "It is a sigmoid, not a softmax.", lambda s, m, v: s.sigmoid()),
    ("weights", "sigmoid-not-softmax", "A sigmoid is divided by its sum.", lambda s, m, v: share(s.sigmoid() * m)),
    ("weights", "no-attention", "Words have no effect on each other.", lambda s, m, v: eye(s).to(s.dtype)),
    ("scale", "no-scale", "The scores q.k are not divided by sqrt(d).", lambda d, x: 1),
    ("scale", "wrong-scale", "The scores are divided by d, not by sqrt(d).", lambda d, x: 1 / d),
    ("scale", "wrong-scale", "The scores are multiplied by sqrt(d).", lambda d, x: d**0.5),
    ("scale", "wrong-scale", "The scores are divided by sqrt(T), T words.", lambda d, x: x.shape[1] ** -0.5),
    ("scale", "wrong-scale", "The scores are divided by sqrt(B), B reviews.", lambda d, x: len(x) ** -0.5),
    ("scores", "function-of-scores", "tanh is applied to the scores.", torch.tanh),
    ("product", "cosine-scores", "The scores are cosines of q and k.", lambda q, k: unit(q) @ unit(k).mT),
    ("mask", "no-key-mask", "Words attend to padding: the mask has no effect on them.", lambda s, m: s),
    ("mask", "mask-inverted", "Words are masked and padding is attended to.", lambda s, m: masked(s, ~m)),
    ("mask", "mask-inverted", "Words are masked with -inf.", lambda s, m: masked(s, ~m, -math.inf)),
    ("mask", "queries-masked", "The mask is applied to queries, not to keys.", lambda s, m: masked(s, m.mT)),
    ("mask", "queries-masked", "The mask applies to queries.", lambda s, m: masked(s, m.mT, -math.inf)),
    ("mask", "mask-too-weak", "Scores of padding become 0, not -inf.", lambda s, m: s * m),
    ("mask", "mask-too-weak", "Scores of padding are lowered by 1 only.", lambda s, m: s - (~m).to(s.dtype)),
    ("mask", "depends-on-order", "Words do not attend to later words.", lambda s, m: masked(s, m & causal(s))),
    ("mask", "depends-on-batch", "Padding of another review is masked.", lambda s, m: masked(s, m.all(0))),
    ("sum", "skip-in-attention", "x is added to the result.", lambda a, v, x: x + a @ v),
    ("sum", "function-of-the-result", "ReLU is applied to the result.", lambda a, v, x: (a @ v).relu()),
    ("sum", "softmax-of-the-result", "A softmax is applied to the result.", lambda a, v, x: (a @ v).softmax(-1)),
]
# The mask after the softmax changes two steps.
PAIRS = [
    ("mask-after-softmax", "The mask is applied after the softmax: weights do not sum to 1.", softmax),
]
Linear = Callable[[Tensor], Tensor]


def changes() -> Iterator[tuple[str, str, dict[str, Callable[..., Any]]]]:
    """Finding, sentence and steps of each mistake."""
    for step, name, text, do in STEPS:
        yield name, text, {step: do}
    for name, text, do in PAIRS:
        yield name, text, {"mask": lambda s, m: s, "weights": lambda s, m, v, do=do: do(s, m, v) * m}


def attend(
    linears: tuple[Linear, ...], heads: int, steps: dict[str, Callable[..., Any]], x_BTD: Tensor, mask_BT: Tensor
) -> Tensor:
    """linears: for q, k, v, and the result if there are 4."""
    step = RIGHT | steps
    q, k, v = (f(x_BTD).unflatten(-1, (heads, -1)).transpose(1, 2) for f in linears[:3])  # (B, H, T, K)
    m = mask_BT[:, None, None, :]
    scores = step["mask"](step["scores"](step["product"](q, k) * step["scale"](q.shape[-1], x_BTD)), m)
    x = x_BTD[:, None] if v.shape[-1] == WIDTH else v
    y_BTD = step["sum"](step["weights"](scores, m, v), v, x).transpose(1, 2).flatten(2)
    return linears[3](y_BTD) if len(linears) == 4 else y_BTD


identity = nn.Identity()


def projections(module: nn.Module) -> list[Linear]:
    """All linear functions of x that the parameters may be: of separate matrices and of blocks of fused ones."""
    own = {name: p.detach().to(torch.get_default_dtype()) for name, p in module.named_parameters()}
    found: list[Linear] = []
    for name, weight in own.items():
        if name.endswith("weight") and weight.ndim == 2:
            bias = own.get(name.removesuffix("weight") + "bias")
        elif weight.ndim >= 2 and weight.shape[-2] == WIDTH:
            weight, bias = weight.reshape(-1, *weight.shape[-2:]).transpose(1, 2).flatten(0, 1), None  # x @ weight
        else:
            continue
        count = max(1, len(weight) // WIDTH)
        if weight.shape[1] == WIDTH and (len(weight) % WIDTH == 0 or count == 1):
            biases = [None] * count if bias is None else bias.chunk(count)
            found += [
                partial(nn.functional.linear, weight=w, bias=b)
                for w, b in zip(weight.chunk(count), biases, strict=True)
            ]
    return found


def attention_reference(part: Part) -> None:
    """The result is softmax(Q K^T / sqrt(d)) V, over the words of the review."""
    module, x_BTD = generic.module(part), words(3, 4)
    batches = {"1 review of 2 words": (x_BTD[:1, :2], mask(2)), "3 reviews of 4, 2 and 3 words": (x_BTD, mask(4, 2, 3))}
    known = projections(module) if 1 <= len(list(module.parameters())) <= 12 else []
    known = known if len(known) <= 4 else []
    distinct = [*itertools.permutations(known, 3), *itertools.permutations(known, 4)]
    repeated = [c for c in itertools.product([*known, identity], repeat=3) if len(set(c)) < 3 or identity in c]

    def keep(y_BTD: Tensor, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return y_BTD[mask_BT]

    def call(*inputs: Tensor) -> Tensor:
        return student(module, *inputs).detach()

    def right(linears: tuple[Any, ...]) -> Callable[..., Tensor]:
        return partial(attend, linears, 1, {})

    def variants() -> Iterator[tuple[str, str, Callable[..., Tensor], Callable[..., Tensor]]]:
        for linears in repeated:
            name, text = "shared-projections", "One Linear is used for several of q, k and v."
            if identity in linears:
                name, text = "no-projection", f"There is no W_{'qkv'[linears.index(identity)]}: x is used itself."
            yield name, text, right(linears), right(distinct[0] if distinct else linears)
        orders = distinct[:6] if len(known) == 3 else distinct
        for (name, text, steps), linears in itertools.product(changes(), orders):
            yield name, text, partial(attend, linears, 1, steps), right(linears)

    with torch.no_grad():
        several = [partial(attend, linears, heads, {}) for heads in (1, 2, 4) for linears in distinct]
        if diagnose(call, several, variants, batches, FIX, keep):
            return
    generic.batch(part)
    compare_probed(call, keep)


def compare_probed(call: Callable[..., Tensor], keep: Callable[..., Tensor]) -> None:
    """For one word the result is its value, affine in x; for two, log(a1 / a0) of the weights is (x1 - x0) (A x0 + b).

    Raises Mistake unless values and scores that are fitted to these give the results for other reviews.
    """
    x_N1D, x_N2D, inputs = words(60, 1, seed=2), words(300, 2, seed=3), (words(3, 4), mask(4, 2, 3))
    ones = torch.ones(60, 1)
    fit = torch.linalg.lstsq(torch.cat([x_N1D[:, 0], ones], 1), call(x_N1D, mask(*[1] * 60))[:, 0]).solution
    y_ND, v_N2D = call(x_N2D, mask(*[2] * 300))[:, 0], x_N2D @ fit[:-1] + fit[-1]
    a_N2 = torch.linalg.lstsq(v_N2D.mT, y_ND[..., None]).solution[..., 0]
    use_N = a_N2.min(1).values > 1e-5
    d_ND, x0_ND = (x_N2D[:, 1] - x_N2D[:, 0])[use_N], x_N2D[use_N, 0]
    features = torch.cat([(d_ND[:, :, None] * x0_ND[:, None]).flatten(1), d_ND], 1)
    fitted = torch.linalg.lstsq(features, (a_N2[use_N, 1:] / a_N2[use_N, :1]).log()).solution
    scores = inputs[0] @ fitted[:-WIDTH].view(WIDTH, WIDTH).mT @ inputs[0].mT + (inputs[0] @ fitted[-WIDTH:]).mT
    right = keep(masked(scores, inputs[1][:, None]).softmax(-1) @ (inputs[0] @ fit[:-1] + fit[-1]), *inputs)
    if not same(given := keep(call(*inputs), *inputs), right, 5e-3):
        sentence = "It is not the sum of values W x + b with the weights of a softmax of products q.k."
        example = "For reviews of 4, 2 and 3 words the result is {}; the closest such sum is {}."
        raise differing("differs-from-reference", sentence, example, given, right, FIX)
    raise NotChecked("The scale was not checked: no parameters were recognized as W_q, W_k and W_v.")


F = nn.functional
r = torch.relu
# Finding, sentence, formula. f: attention with the mask, all: without it, n: LayerNorm, g: Linear, r: ReLU.
Table = list[tuple[str, str, Callable[..., Tensor]]]
PLAIN: Table = [
    ("", "", lambda x, f, n, g, all: r(g(f(x)))),
    ("skip-in-plain-layer", "x is added to f(x).", lambda x, f, n, g, all: r(g(x + f(x)))),
    ("no-linear-in-g", "g is a ReLU alone.", lambda x, f, n, g, all: r(f(x))),
    ("no-g", "g is missing.", lambda x, f, n, g, all: f(x)),
    ("no-relu", "There is no ReLU at the end.", lambda x, f, n, g, all: g(f(x))),
    ("depends-on-padding", "The mask is not passed to f.", lambda x, f, n, g, all: r(g(all(x)))),
]
RESIDUAL: Table = [
    ("", "", lambda x, f, n, g, all: r(g(x + f(n(x))))),
    ("no-norm", "There is no LayerNorm before f.", lambda x, f, n, g, all: r(g(x + f(x)))),
    ("no-skip", "x is not added to f(LN(x)).", lambda x, f, n, g, all: r(g(f(n(x))))),
    ("norm-on-skip", "LN(x) is added to f(LN(x)), not x.", lambda x, f, n, g, all: r(g(n(x) + f(n(x))))),
    ("norm-on-skip", "LN(x) is added to f(x).", lambda x, f, n, g, all: r(g(n(x) + f(x)))),
    ("norm-on-skip", "x + LN(x) is added to f(LN(x)).", lambda x, f, n, g, all: r(g(x + n(x) + f(n(x))))),
    ("norm-on-skip", "LayerNorm is applied to x + f(LN(x)), too.", lambda x, f, n, g, all: r(g(n(x + f(n(x)))))),
    ("norm-after-sum", "LayerNorm is applied to x + f(x), not to x.", lambda x, f, n, g, all: r(g(n(x + f(x))))),
    ("norm-after-sum", "LayerNorm comes after g.", lambda x, f, n, g, all: n(r(g(x + f(x))))),
    ("norm-after-sum", "LayerNorm comes after g, too.", lambda x, f, n, g, all: n(r(g(x + f(n(x)))))),
    ("norm-after-f", "LayerNorm is applied to f(x), not to x.", lambda x, f, n, g, all: r(g(x + n(f(x))))),
    ("skip-around-g", "x is added after g, not before.", lambda x, f, n, g, all: x + r(g(f(n(x))))),
    ("no-linear-in-g", "g is a ReLU alone.", lambda x, f, n, g, all: r(x + f(n(x)))),
    ("no-g", "g is missing.", lambda x, f, n, g, all: x + f(n(x))),
    ("relu-before-sum", "ReLU is applied to f(LN(x)) before x is added.", lambda x, f, n, g, all: r(g(x + r(f(n(x)))))),
    ("relu-before-linear", "ReLU comes before the Linear of g.", lambda x, f, n, g, all: g(r(x + f(n(x))))),
    ("no-relu", "There is no ReLU at the end.", lambda x, f, n, g, all: g(x + f(n(x)))),
    ("no-attention", "f is overwritten: ReLU(x) + x remains.", lambda x, f, n, g, all: g(r(x) + x)),
    ("no-attention", "f is overwritten: ReLU(LN(x)) + LN(x) remains.", lambda x, f, n, g, all: g(r(n(x)) + n(x))),
    ("depends-on-padding", "The mask is not passed to f.", lambda x, f, n, g, all: r(g(x + all(n(x))))),
]
TABLES = {"PlainLayer": PLAIN, "ResidualLayer": RESIDUAL}
FIXES = {
    "PlainLayer": "Return self.g(self.f(x, mask)).",
    "ResidualLayer": "Return self.g(x + self.f(self.norm(x), mask)).",
}
ACTIVATIONS = {"GELU": F.gelu, "softplus": F.softplus, "a sigmoid": torch.sigmoid, "tanh": torch.tanh, "SiLU": F.silu}
ACTIVATIONS |= {"leaky ReLU": F.leaky_relu, "ELU": F.elu, "ReLU6": F.relu6, "a softmax": lambda x: x.softmax(-1)}
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "over all numbers of a review": lambda x: F.layer_norm(x, x.shape[1:]),
    "without the mean, as in RMSNorm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "over the reviews, as in BatchNorm": lambda x: (x - x.mean((0, 1))) / (x.var((0, 1), correction=0) + 1e-5).sqrt(),
}


def attending(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The module as a function of (x, mask), or None if it is no attention."""

    def heads(x: Tensor, m: Tensor) -> Tensor:
        x, padding = x if module.batch_first else x.transpose(0, 1), ~m & m.any(1, keepdim=True)
        y = module(x, x, x, key_padding_mask=padding)[0]
        return y if module.batch_first else y.transpose(0, 1)

    if isinstance(module, nn.Linear | nn.LayerNorm | nn.Sequential | nn.ModuleList | nn.Dropout):
        return None
    for call in (heads,) if isinstance(module, nn.MultiheadAttention) else (module, lambda x, m: module(x)):
        try:
            y = call(words(1, 2), mask(2))
            if y.shape == (1, 2, WIDTH) and not same(y[:, :1], call(words(1, 2)[:, :1], mask(1)), 1e-6):
                return call
        except Exception:  # it has another signature
            continue
    return None


def layer_reference(part: Part) -> None:
    """The result is that of g, f and LayerNorm as documented."""
    module, x_BTD = generic.module(part), words(3, 4)
    texts = "1 review of 1 word", "1 review of 2 words", "3 reviews of 4, 2 and 3 words"
    inputs = (x_BTD[:1, :1], mask(1)), (x_BTD[:1, :2], mask(2)), (x_BTD, mask(4, 2, 3))
    batches, table = dict(zip(texts, inputs, strict=True)), TABLES[part.name]
    inner = [child for child in module.modules() if child is not module]
    found = {child: f for child in inner if (f := attending(child))}
    within = {deep for child in found for deep in child.modules() if deep is not child}
    attentions = [call for child, call in found.items() if child not in within]
    own = [child for child in inner if child not in within and child not in found]
    norms: list[Any] = [child for child in own if isinstance(child, nn.LayerNorm)]
    norms = norms or [partial(F.layer_norm, normalized_shape=[WIDTH])]
    linears: list[Any] = [child for child in own if isinstance(child, nn.Linear)]
    linears = [linear for linear in linears if linear.weight.shape == (WIDTH, WIDTH)] or [identity]
    choices = [*itertools.product(attentions, norms, linears)]

    def formula(choice: Any, do: Callable[..., Tensor], x: Tensor, m: Tensor) -> Tensor:
        f, n, g = choice
        return do(x, lambda x: f(x, m), n, g, lambda x: f(x, torch.ones_like(m)))

    def keep(y_BTD: Tensor, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return y_BTD[mask_BT]

    def changed() -> Iterator[tuple[str, str, Callable[..., Tensor]]]:
        yield from table[1:]
        for text, activate in ACTIVATIONS.items():
            before = next(do for name, _, do in table if name == "no-relu")
            yield "no-relu", f"It is {text}, not a ReLU.", lambda *parts, a=activate, do=before: a(do(*parts))
        for text, norm in NORMS.items() if part.name == "ResidualLayer" else ():
            yield (
                "wrong-norm",
                f"x is divided {text}, not by LayerNorm.",
                lambda x, f, n, g, all, norm=norm: r(g(x + f(norm(x)))),
            )

    def variants() -> Iterator[Any]:
        for (name, text, do), choice in itertools.product(changed(), choices):
            yield name, text, partial(formula, choice, do), partial(formula, choice, table[0][2])

    def call(*inputs: Tensor) -> Tensor:
        return student(module, *inputs).detach()

    fix = FIXES[part.name]
    with torch.no_grad():
        right = [partial(formula, choice, table[0][2]) for choice in choices if choice[2] is not identity]
        if diagnose(call, right, variants, batches, fix, keep):
            return
    generic.batch(part)
    with torch.no_grad():
        compare_one_word(part, call, fix)


def compare_one_word(part: Part, call: Callable[..., Tensor], fix: str) -> None:
    """Raises Mistake unless the results for one word are relu(A x + B LN(x) + c), or relu(A x + c) in a plain layer."""
    x_ND = words(400, seed=5)
    y_ND = call(x_ND[:, None], mask(*[1] * 400))[:, 0]
    form, terms = "relu(A x + c)", [x_ND]
    if part.name == "ResidualLayer":
        form, terms = "relu(A x + B LN(x) + c), with A and B", [x_ND, F.layer_norm(x_ND, [WIDTH])]
    if not same(fitted := closest_relu(terms, y_ND), y_ND, 2e-3):
        sentence, example = (
            f"The results for one word are not {form}.",
            "For one word, it is {}; the closest one is {}.",
        )
        raise differing("differs-from-reference", sentence, example, y_ND, fitted, fix)


def closest_relu(terms: list[Tensor], y_ND: Tensor) -> Tensor:
    """The closest ReLU of an affine function of the terms (N, D), fitted where y is above 0."""
    z, columns = torch.cat([*terms, torch.ones(len(y_ND), 1)], 1), []
    ridge = 1e-6 * torch.eye(z.shape[1])
    for y_N in y_ND.T:
        right = torch.cat([y_N[y_N > 0], torch.zeros(len(ridge))])[:, None]
        columns.append(z @ torch.linalg.lstsq(torch.cat([z[y_N > 0], ridge]), right).solution)
    return torch.cat(columns, 1).relu()
