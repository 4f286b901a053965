"""What each part is compared with. Formulas are in references.txt; here are the numbers that they are computed from.

Linear, attention and LayerNorm are those of the student's module. Without them, results are compared with the closest
softmax attention. Shape suffixes: B reviews, H heads, T positions, D width, N samples.
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
from imdbattn.check.rules import TABLES, WIDTH, Names, Part, diagnose, inputs, mask, mistake, normal, same

Matrix = Tensor | None  # (rows, columns + 1), the weight and the bias of a Linear; None: x itself
TEXTS = "1 review of 2 words", "3 reviews of 4, 2 and 3 words and padding"
QUERY_WIDTH = rules.SIZES["E"]


def batches_of(part: Part) -> dict[str, Any]:
    """The second one has padding after each review."""
    return dict(zip(TEXTS, (inputs(part, 2), [x[1:] for x in inputs(part, 6, 4, 2, 3)]), strict=True))


def words_only(y_BTD: Tensor, *given: Tensor) -> Tensor:
    return y_BTD[given[-1]]


def calling(part: Part) -> tuple[Any, Callable[..., Tensor]]:
    net = rules.net_of(part)
    return net, lambda *given: rules.call(part, net, *given).detach()


def matrices(net: nn.Module, columns: int, rows: int | None = None) -> list[Tensor]:
    """Weights and biases, (n, columns + 1), of everything that may project x; with that many rows, if given."""
    own = {name: p.detach().to(torch.get_default_dtype()) for name, p in net.named_parameters()}
    found = []
    for name, weight in own.items():
        bias = None
        if name.endswith("weight") and weight.ndim == 2:
            bias = own.get(name.removesuffix("weight") + "bias")
        elif rows and max(weight.shape, default=0) == weight.numel() == columns:
            weight = weight.view(1, columns)
        elif weight.ndim >= 2 and weight.shape[-2] == columns:  # x @ weight
            weight = weight.reshape(-1, *weight.shape[-2:]).transpose(1, 2).flatten(0, 1)
        elif rows:
            weight = weight.squeeze()
        if weight.ndim == 2 and weight.shape[1] == columns and rows in (None, len(weight)):
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            found.append(torch.cat([weight, bias[:, None]], 1))
    return found


def apply(matrix: Matrix, x: Tensor) -> Tensor:
    return x if matrix is None else x @ matrix[:, :-1].mT + matrix[:, -1]


# --- attention --------------------------------------------------------------------------------------------------------


def arrangements(net: nn.Module, heads: int) -> Iterator[list[Matrix]]:
    """The projections: blocks of D rows, or of matrices for q, k and v those that alternate by head."""
    whole = [block for block in matrices(net, WIDTH) if len(block) % WIDTH == 0]
    heads_only = [block for block in matrices(net, WIDTH) if len(block) % WIDTH]
    blocks = whole + ([joined] if heads_only and len(joined := torch.cat(heads_only)) % WIDTH == 0 else [])
    fused = [len(block) == 3 * WIDTH for block in blocks]
    yield [row for block in blocks for row in block.split(WIDTH)]
    if heads > 1 and any(fused):
        mixed = [b.view(heads, -1, WIDTH // heads, WIDTH + 1).transpose(0, 1).flatten(0, 2) for b in blocks]
        chosen = [m if one else b for m, b, one in zip(mixed, blocks, fused, strict=True)]
        yield [row for block in chosen for row in block.split(WIDTH)]


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


def attention_bindings(known: list[Matrix], several: bool, crossed: bool) -> Iterator[rules.Binding]:
    """Each order of the matrices as q, k, v and W_O; and the mistakes of using some twice, or x itself.

    several: MultiHeadAttention, which has W_O. crossed: called with query, key and value.
    """
    names = ("W_q", "W_k", "W_v", "W_O") if several else ("W_q", "W_k", "W_v")
    for heads, count in [(rules.HEADS, 4)] if several else itertools.product((1, 2, 4), (3, 4)):
        for linears in itertools.permutations(known, count):
            yield "", "", partial(attention_names, linears, heads)
    for linears in itertools.product([*known, None], repeat=len(names)):
        bind = partial(attention_names, linears, rules.HEADS if several else 1)
        if None in linears:
            missing = names[linears.index(None)]
            name = "no-output-projection" if missing == "W_O" else "no-projection"
            yield name, f"There is no {missing}.", bind
        elif len({id(one) for one in linears}) < len(linears):
            yield "shared-projections", f"One Linear is used for several of {', '.join(names)}.", bind
        elif crossed:
            for order in itertools.product(range(3), repeat=3):
                yield "arguments-exchanged", "Query, key and value are exchanged.", partial(bind, order=order)


def attention_reference(part: Part) -> None:
    """The result is softmax(Q K^T / sqrt(d)) V, over the words of the review."""
    (net, call), several, batches = calling(part), part.name == "MultiHeadAttention", batches_of(part)
    if part.name == "scaled_dot_product_attention":
        diagnose(part, call, [("", "", partial(attention_names, (None, None, None), 1))], batches)
        return
    crossed = len(batches[TEXTS[0]]) == 4
    few = [known for known in arrangements(net, rules.HEADS if several else 1) if len(known) <= 4]
    bindings = [b for known in few for b in attention_bindings(known, several, crossed)]
    keep = (lambda y, *given: y) if crossed else words_only
    with torch.no_grad():
        if diagnose(part, call, bindings, batches, keep, otherwise="differs-from-reference" if several else None):
            return
    rules.batch(part)
    if part.name == "SelfAttention":
        return compare_scores(part, call, few[0] if few else [])
    raise rules.NotChecked("Results were not compared: no parameters were recognized as W_q, W_k, W_v and W_O.")


def scores_of(part: Part, context: Callable[..., Tensor], values_BTD: Tensor, words_BT: Tensor) -> Tensor:
    """The scores (B, T) of which the weights are the softmax, each minus that of the first word.

    context(reviews, places, mask): (B, D). For two words only one pair of weights gives the context as a sum of the
    values. Raises Mistake if there is none, or if the context for more words does not follow from these scores.
    """
    fix, scores, reviews = TABLES[part.name].fix, [torch.zeros(3)], [slice(row, row + 1) for row in range(3)]
    for other in range(1, 4):
        v_B2D = values_BTD[:, [0, other]]
        y_BD, inverted_BD = (torch.cat([context(b, [0, other], m) for b in reviews]) for m in (mask(2), ~mask(2)))
        a_B2 = torch.linalg.lstsq(v_B2D.mT, y_BD[..., None]).solution[..., 0]
        if same(a_B2, torch.full((3, 2), 0.5)):
            if same(inverted_BD, y_BD):
                raise mistake("no-attention", a_B2[0], fix=fix)
            raise mistake("mask-inverted", y_BD, inverted_BD, fix=fix)
        if not same(fitted := (a_B2[..., None] * v_B2D).sum(1), y_BD, 2e-3):
            raise mistake("not-a-sum-of-outputs", y_BD, fitted, fix=fix)
        if not same(a_B2.sum(1), torch.ones(3), 2e-3) or bool((a_B2 < -1e-6).any()):
            raise mistake("weights-do-not-sum-to-1", a_B2, a_B2.softmax(1), fix=fix)
        scores.append((a_B2[:, 1] / a_B2[:, 0]).clamp(min=1e-12).log())
    s_BT, every = torch.stack(scores, 1), slice(None)
    batches: dict[str, Any] = {"1 review of 4 words": (reviews[0], every, mask(4))}
    batches["3 reviews of 4, 2 and 3 words"] = every, every, words_BT
    bindings = [("", "", lambda rows, _, m: {"s": s_BT[rows], "h": values_BTD[rows], "m": m})]
    diagnose(part, context, bindings, batches, table=TABLES["DecoderAttention"]._replace(fix=fix))
    return s_BT


def compare_scores(part: Part, call: Callable[..., Tensor], known: list[Matrix]) -> None:
    """Raises Mistake unless values and scores are those of some projections of x; the scale is that of known ones."""
    x_BTD = normal(3, 4, WIDTH)
    x_BTD[:, 3] = x_BTD[:, 1] + x_BTD[:, 2] - x_BTD[:, 0]  # so are the values and scores, which are affine in x
    v_BTD = torch.cat([call(x_BTD[:, [place]], mask(1, 1, 1)) for place in range(4)], 1)
    s_BT = scores_of(part, lambda rows, t, m: call(x_BTD[rows][:, t], m)[:, 0], v_BTD, mask(4, 2, 3))
    for z in (v_BTD, s_BT):
        if not same(z[:, 3], right := z[:, 1] + z[:, 2] - z[:, 0], 5e-3):
            values = {"part": part.name, "text": "the word a + b - c", "fix": TABLES[part.name].fix}
            raise mistake("differs-from-reference", z[:, 3], right, **values)
    for w_k, w_q in itertools.permutations(known, 2):
        k_BTD = apply(w_k, x_BTD)
        product_BT = ((k_BTD - k_BTD[:, :1]) * apply(w_q, x_BTD)[:, :1]).sum(-1)
        scale = float((s_BT * product_BT).sum() / product_BT.square().sum())
        if same(s_BT, scale * product_BT, 5e-3):
            if abs(scale * WIDTH**0.5 - 1) < 5e-3:
                return
            raise mistake("wrong-scale", given=1 / scale, d=WIDTH, right=WIDTH**0.5, fix=TABLES[part.name].fix)
    raise rules.NotChecked("The scale was not checked: no parameters were recognized as W_q, W_k and W_v.")


def decoder_reference(part: Part) -> None:
    """The context is the sum of the encoder's outputs, weighted by the softmax over the words of a score of each."""
    _, call = calling(part)
    state_BD, outputs_BTD, words_BT = inputs(part, 4, 2, 3)
    scores_of(part, lambda rows, t, m: call(state_BD[rows], outputs_BTD[rows][:, t], m), outputs_BTD, words_BT)
    y, other = (call(state_BD[row : row + 1], outputs_BTD[:1], mask(4)) for row in (0, 1))
    if same(y, other, 1e-5):
        raise mistake("state-not-used", y, fix=TABLES[part.name].fix)


# --- scores -----------------------------------------------------------------------------------------------------------


def softmax_reference(part: Part) -> None:
    """Padded keys have the weight 0, and the weights are the softmax of the other scores."""

    def bind(scores: Tensor, lengths: Tensor) -> Names:
        words = mask(*lengths.tolist(), size=scores.shape[-1])[:, None]
        return {"s": scores, "m": words, "n": lengths[:, None], "T": scores.shape[-1]}

    diagnose(part, calling(part)[1], [("", "", bind)], batches_of(part))


def additive_names(w: Tensor, u: Tensor, v: Tensor, bias: Tensor, q: Tensor, k: Tensor) -> Names:
    return {"a": apply(w, q)[:, :, None] + bias, "b": apply(u, k)[:, None], "h": rules.HIDDEN, "v": partial(number, v)}


def number(v: Tensor, x: Tensor) -> Tensor:
    return apply(v, x).squeeze(-1)


def score_reference(part: Part) -> None:
    """The scores are those of the formula, with the student's parameters."""
    net, call = calling(part)
    binds: list[Callable[..., Names]]
    if part.name == "AdditiveScore":
        biases = [torch.zeros(rules.HIDDEN), *(p.detach() for p in net.parameters() if p.shape == (rules.HIDDEN,))]
        pairs = [*itertools.product(matrices(net, QUERY_WIDTH, rules.HIDDEN), matrices(net, WIDTH, rules.HIDDEN))]
        for both in matrices(
            net, QUERY_WIDTH + WIDTH, rules.HIDDEN
        ):  # of q and k side by side, in one of the two orders
            pairs.append((F.pad(both[:, :QUERY_WIDTH], (0, 1)), both[:, QUERY_WIDTH:]))
            pairs.append((both[:, WIDTH:], F.pad(both[:, :WIDTH], (0, 1))))
        every = itertools.product(pairs, matrices(net, rules.HIDDEN, 1), biases)
        binds = [partial(additive_names, w, u, v, bias) for (w, u), v, bias in every]
    else:
        constant = [torch.zeros(()), *(p.detach().squeeze() for p in net.parameters() if p.numel() == 1)][-1]
        names = {"b": constant, "D": WIDTH, "E": QUERY_WIDTH}
        binds = [lambda q, k, w=w: names | {"q": apply(w, q), "k": k} for w in matrices(net, QUERY_WIDTH, WIDTH)]
        binds += [lambda q, k, w=w: names | {"q": q, "k": apply(w, k)} for w in matrices(net, WIDTH, QUERY_WIDTH)]
    with torch.no_grad():
        if diagnose(part, call, [("", "", bind) for bind in binds], batches_of(part)):
            return
    rules.batch(part)
    raise rules.NotChecked("Scores were not compared: no parameters were recognized as those of the formula.")


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


def attend(linears: tuple[Tensor, ...], x: Tensor, m: Tensor) -> Any:
    return rules.evaluate(TABLES["SelfAttention"].steps, attention_names(linears, 1, x, m))


def layer_reference(part: Part) -> None:
    """The result is that of g, f and LayerNorm as documented."""
    net, call = calling(part)
    inner = [child for child in net.modules() if child is not net]
    linears, vectors = matrices(net, WIDTH, WIDTH), [p for p in net.parameters() if p.shape == (WIDTH,)]
    with torch.no_grad():
        attentions = [f for child in inner for f in attending(child)]
    layer_norm = partial(F.layer_norm, normalized_shape=[WIDTH])
    norms: list[Any] = [child for child in inner if isinstance(child, nn.LayerNorm)]
    own_norms = [layer_norm, *(partial(layer_norm, weight=w, bias=b) for w, b in itertools.permutations(vectors, 2))]
    choices = itertools.product(
        attentions or [partial(attend, three) for three in itertools.permutations(linears[:5], 3)],
        norms or own_norms,
        linears or [normal(WIDTH, WIDTH + 1)],
    )

    def bind(f: Any, n: Any, g: Any, x: Tensor, m: Tensor) -> Names:
        every = torch.ones_like(m)
        return {"x": x, "f": lambda x: f(x, m), "n": n, "g": partial(apply, g), "every": lambda x: f(x, every)}

    batches = {"1 review of 1 word": inputs(part, 1)} | batches_of(part)
    bindings = [("", "", partial(bind, *choice)) for choice in choices]
    recognized = attentions and (norms or part.name == "PlainLayer") and linears
    otherwise = "differs-from-reference" if recognized else None
    with torch.no_grad():
        if diagnose(part, call, bindings, batches, words_only, otherwise=otherwise):
            return
    rules.batch(part)
    raise rules.NotChecked("Results were not compared: attention, LayerNorm and Linear were not recognized.")


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
    sizes, call = ((1, 2), (2, 4), (5, 6), (30, 8)), partial(rules.student, part.make)
    for size in sizes:
        rules.require_shape(call(*size), size, f"positional_encoding{size}", "One row per position.")
    batches = {f"length {length} and width {width}": (length, width) for length, width in sizes}
    double = lambda *size: call(*size).detach().double()  # noqa: E731
    diagnose(part, double, [("", "", position_names)], batches, otherwise="wrong-wavelengths")


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


def accuracy_reference(part: Part) -> None:
    """The accuracy is the share, from 0 to 1, of the test reviews that are right, in evaluation mode."""
    with torch.enable_grad():
        value = rules.student(float, rules.student(part.make, FirstWord().train(), loader(*TRAIN), loader(*TEST)))
    given, names = torch.tensor([value], dtype=torch.float64), {"share": share, "train": TRAIN, "test": TEST}
    batches: dict[str, Any] = {f"{len(TEST)} test batches, of 6, 3 and 2 reviews": ()}
    diagnose(part, lambda: given, [("", "", lambda: names)], batches, otherwise="wrong-accuracy")
