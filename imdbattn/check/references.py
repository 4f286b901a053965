"""What each part is compared with. Formulas are in references.txt; here are the numbers that they are computed from.

Linear, attention and LayerNorm are those of the student's module. Without them, results are compared with the closest
softmax attention. Shape suffixes: B reviews, H heads, T positions, D width, N samples.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import imdbattn.check.rules as rules
from imdbattn.check.rules import HIDDEN, QUERY_WIDTH, WIDTH, Mistake, NotChecked, Part, inputs, mask, mistake, same
from imdbattn.check.tables import PARTS, TABLES, Table

Parameter = tuple[str, Tensor]
Matrix = Tensor | None  # (rows, columns + 1), the weight and the bias of a Linear; None: x itself
Names = dict[str, Any]  # what the expressions of a table use
Call = Callable[..., Tensor]
Binding = tuple[str, str, Callable[..., Names]]  # finding and sentence of a mistake, or RIGHT or GUESS and ""
Choice = tuple[str, str, Any]  # the same with the student's parameters that are used
RIGHT, GUESS = "", "guess"  # a guess may be right, but results that differ from it are not therefore wrong
BIASES = ("bias", "b", "B")  # instead of weight, kernel, w or W in the name of a parameter
TOOLS: Names = {"torch": torch, "F": F, "inf": float("inf")}


def evaluate(steps: dict[str, str], names: Names, result: str = "") -> Any:
    """The result of the steps in their order; None if one cannot be computed for tensors of these shapes."""
    names = TOOLS | names
    try:
        for name, expression in steps.items():
            names[name] = eval(expression, names)
    except (RuntimeError, IndexError):
        return None
    return names[result or list(steps)[-1]]


def whole(y: Tensor, *given: Any) -> Tensor:
    return y


def words_only(y_BTD: Tensor, x_BTD: Tensor, words_BT: Tensor) -> Tensor:
    return y_BTD[words_BT]


@torch.no_grad()
def diagnose(
    part: Part, table: Table, results: list[Tensor], bindings: Iterable[Binding], examples: Names, keep: Call = whole
) -> Exception | None:
    """None if the reference gives the results. Raises Mistake for the variant that gives them.

    Otherwise returns the exception: the Mistake that they differ, or NotChecked if no binding must be right.
    examples: the inputs of each result by their description, the smallest first. keep: what the reference defines.
    """
    bindings = list(bindings)
    bound = lambda bind: [bind(*given) for given in examples.values()]  # noqa: E731
    rights = [bound(bind) for finding, _, bind in bindings if finding in (RIGHT, GUESS)]

    def difference(steps: dict[str, str], bound: list[Names], keep: Call = keep) -> Any:
        """The first example for which the steps give another result, with both results; None if there is none."""
        for (text, given), y, names in zip(examples.items(), results, bound, strict=True):
            z = evaluate(steps, names)
            if z is None or not same(z := keep(z, *given), y := keep(y, *given)):
                return text, y, z
        return None

    def differs(other: str, text: str, y: Tensor, z: Tensor) -> Mistake:
        values = {"other": other, "text": text, "part": part.name, "fix": table.texts["change"]}
        return mistake("differs-from-reference", y, z, **values)

    def mistakes() -> Iterator[tuple[str, str, dict[str, str], list[Names]]]:
        yield from (
            (name, text, table.steps, bound(bind)) for name, text, bind in bindings if name not in (RIGHT, GUESS)
        )
        for name, text, steps in table.variants:
            yield from ((name, text, table.steps | steps, names) for names in rights)

    if any(difference(table.steps, names) is None for names in rights):
        return None
    for kept in dict.fromkeys((whole, keep)):  # results for padding may tell which of two mistakes it is
        for name, sentence, steps, names in mistakes():
            if difference(steps, names, kept) is None:
                right = rights[0] if rights and steps is table.steps else names
                found = difference(table.steps, right)
                example = differs("right", *found).args[2] if found else "All results are those of this mistake."
                raise Mistake(name, sentence, example, table.texts["change"])
    if RIGHT not in [finding for finding, *_ in bindings]:
        return NotChecked("Results were not compared: the parameters of the formula were not recognized.")
    _, *rest = differs("the closest that was found", *difference(table.steps, rights[0])).args
    return Mistake(table.texts.get("differs", "differs-from-reference"), *rest)


# --- the student's parameters -----------------------------------------------------------------------------------------


@torch.no_grad()
def affine(module: nn.Module, columns: int) -> Tensor | None:
    """Weight and bias, (n, columns + 1), of a module that is the same Linear of each word; None for any other."""
    x_1TD = torch.cat([torch.zeros(1, columns), torch.eye(columns), rules.normal(2, columns)])[None]
    for call in (module, lambda x_1TD: module(x_1TD.mT).mT):  # also a convolution of width 1
        try:
            y_TN = call(x_1TD)[0]
            weight = (y_TN[1:-2] - y_TN[0]).mT
            if y_TN.ndim == 2 and same(x_1TD[0, -2:] @ weight.mT + y_TN[0], y_TN[-2:]):
                return torch.cat([weight, y_TN[0][:, None]], 1)
        except Exception:  # it has another signature
            continue
    return None


def modules_and_parameters(net: nn.Module, columns: int) -> tuple[list[Tensor], list[list[Parameter]]]:
    """Weight and bias of each part that is a Linear, and the other parameters of each module, with their names."""
    found, used = list[Tensor](), set[nn.Parameter]()
    for module in list(net.modules())[1:]:  # a Sequential comes before its parts
        own = {*module.parameters()}
        if own and not own & used and (matrix := affine(module, columns)) is not None:
            found.append(matrix)
            used |= own
    dtype = torch.get_default_dtype()
    return found, [
        [(name, p.detach().to(dtype)) for name, p in module.named_parameters(recurse=False) if p not in used]
        for module in net.modules()
    ]


def matrices(net: nn.Module, columns: int, rows: int | None = None, flip: bool = False) -> list[Tensor]:
    """Weights and biases, (n, columns + 1), of everything that may project x.

    rows: their number; then each parameter that may be a weight is given with each that may be its bias, and both ways
    if it is square. Otherwise a bias is found by its name or place, and a parameter that is not named weight is used as
    x @ weight, which `flip` exchanges.
    """
    found, others = modules_and_parameters(net, columns)
    found = [matrix for matrix in found if rows in (None, len(matrix))]
    for own in others:
        vectors = [p for _, p in own if p.ndim == 1]
        if rows == 1:
            own = [(name, p.view(1, columns) if p.numel() == columns else p) for name, p in own]
        weights = [(name, p) for name, p in own if p.ndim > 1 and (rows == 1 or min(p.shape[-2:]) > 1)]
        for place, (name, p) in enumerate(weights):
            forms = [q.mT.reshape(-1, columns) for q in (p, p.mT) if q.shape[-2] == columns]  # x @ p, and x @ p.mT
            if p.ndim > 2 and p.flatten(0, -2).shape[0] == columns:  # W_O as a matrix for each head
                forms = [p.flatten(0, -2).mT, *forms]
            elif p.ndim > 2 and p.shape[0] == columns:  # (D, H, d)
                forms = [p.flatten(1).mT, *forms]
            if rows is None:
                forms = forms[-1:] if name.endswith("weight") != flip else forms[:1]
            alike = {re.sub("weight|kernel|[wW]", b, name, count=1) for b in BIASES}
            paired = [p.flatten() for other, p in own if other in alike and other != name]
            paired = vectors if rows else paired or vectors[place : place + (len(vectors) == len(weights))]
            for weight in (form for form in forms if rows in (None, len(form))):
                biases = [b for b in (*paired, weight.new_zeros(len(weight))) if len(b) == len(weight)]
                found += [torch.cat([weight, b[:, None]], 1) for b in (biases if rows else biases[:1])]
    return found


def apply(matrix: Matrix, x: Tensor) -> Tensor:
    return x if matrix is None else x @ matrix[:, :-1].mT + matrix[:, -1]


# --- attention --------------------------------------------------------------------------------------------------------


def attention_names(choice: Any, *given: Tensor) -> Names:
    """choice: the projections, heads, order of the arguments, and which columns a head has (see LAYOUTS).

    given: x or query, key and value; the mask.
    """
    (w_q, w_k, w_v, w_o), heads, order, layout = choice
    *sources, m = given
    query, key, value = (sources[place % len(sources)] for place in order)
    names: Names = {"query": query, "m": m, "split": whole, "merge": whole}
    names |= {"Q": apply(w_q, query), "K": apply(w_k, key), "V": apply(w_v, value)}
    if heads:
        names["m"] = m[:, None, None]
        names["split"] = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)
        names["merge"] = lambda y: apply(w_o, y.transpose(1, 2).flatten(2))
        if layout:
            names["split"] = lambda x: x.unflatten(-1, (-1, heads)).movedim(-1, 1)
        if layout == "both":
            names["merge"] = lambda y: apply(w_o, y.movedim(1, -1).flatten(2))
    B, T, D = names["Q"].shape[0], names["Q"].shape[-2], names["Q"].shape[-1]
    return names | {"B": B, "T": T, "D": D, "d": D // (heads or 1)}


ORDER = (0, 1, 2)
LAYOUTS = ("", "split", "both")  # columns side by side; every H-th column: before attention, or also after it


def arrangements(net: nn.Module, heads: int) -> Iterator[list[Matrix]]:
    """The projections: blocks of D rows, or of matrices for q, k and v those that alternate by head."""
    _, others = modules_and_parameters(net, WIDTH)
    for flip in (False, True) if any(others) else (False,):
        found = matrices(net, WIDTH, flip=flip)
        blocks, parts = [b for b in found if len(b) % WIDTH == 0], [b for b in found if len(b) % WIDTH]
        if parts and len(joined := torch.cat(parts)) % WIDTH == 0:
            blocks.append(joined)
        yield [row for block in blocks for row in block.split(WIDTH)]
        if heads > 1 and any(len(block) == 3 * WIDTH for block in blocks):
            mixed = [b.view(heads, -1, WIDTH // heads, WIDTH + 1).transpose(0, 1).flatten(0, 2) for b in blocks]
            chosen = [m if len(m) == 3 * WIDTH else b for m, b in zip(mixed, blocks, strict=True)]
            yield [row for block in chosen for row in block.split(WIDTH)]


def other_widths(net: nn.Module) -> Iterator[Choice]:
    """Several heads whose queries, keys and values have another width than x."""
    found = matrices(net, WIDTH)
    for width in {len(block) // count for block in found for count in (1, 3)} - {0, WIDTH}:
        rows = [row for block in found if len(block) % width == 0 for row in block.split(width)]
        for three in itertools.permutations(rows[:4], 3):
            for w_o, heads in itertools.product(matrices(net, width, WIDTH), (1, 2, 4)):
                if width % heads == 0:
                    yield GUESS, "", ((*three, w_o), heads, ORDER, "")


def attention_choices(part: Part, net: Any, call: Call) -> Iterator[Choice]:
    """Each order of the matrices as q, k, v and W_O; and the mistakes of using some twice, or x itself."""
    several, crossed = part.name == "MultiHeadAttention", len(part.arguments) == 5
    _, others = modules_and_parameters(net, WIDTH)
    recognized = several and all(p.ndim == 2 for own in others for _, p in own)  # biases, and heads, may be elsewhere
    found = [known for known in arrangements(net, rules.HEADS if several else 1) if len(known) <= 4]
    for heads in (rules.HEADS,) if several else (1, 2, 4):  # SelfAttention may have heads and W_O, too
        for linears in (linears for known in found for linears in itertools.product([*known, None], repeat=4)):
            names = [name for name, w in zip(("W_q", "W_k", "W_v", "W_O"), linears, strict=True) if w is None]
            used = {id(w) for w in linears if w is not None}
            if len(used) + len(names) == 4 and (not names or (not several and names == ["W_O"])):
                for layout in LAYOUTS if heads > 1 else LAYOUTS[:1]:
                    yield RIGHT if recognized else GUESS, "", (linears, heads, ORDER, layout)
                for order in itertools.product(range(3), repeat=3) if crossed else ():
                    yield "arguments-exchanged", "Query, key and value are exchanged.", (linears, heads, order, "")
            elif several or (heads == 1 and linears[-1] is None):
                finding = "shared-projections", "One Linear is used for several of W_q, W_k, W_v and W_O."
                if several and names == ["W_O"]:
                    finding = "no-output-projection", "There is no W_O."
                elif names[: 4 if several else -1]:
                    finding = "no-projection", f"There is no {names[0]}."
                yield *finding, (linears, heads, ORDER, "")
    if not several:
        yield from other_widths(net)


def scores_of(part: Part, context: Call, values_BTD: Tensor) -> Tensor:
    """The scores (B, T) of which the weights are the softmax, each minus that of the first word.

    context(reviews, places, mask): (B, D). For two words only one pair of weights gives the context as a sum of the
    values. Raises Mistake if there is none.
    """
    fix, scores, reviews = TABLES[part.name].texts["change"], [torch.zeros(3)], [slice(b, b + 1) for b in range(3)]
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
        if same(a_B2.max(1).values, torch.ones(3), 1e-9):
            raise mistake("one-word-only", a_B2[0], fix=fix)
        ratio_B = (a_B2[:, 1] / a_B2[:, 0]).clamp(min=1e-12)
        if 0 < int((ratio_B < 1e-9).sum()) < len(ratio_B):
            raise NotChecked("The scores were not checked: some weights are too close to 0.")
        scores.append(ratio_B.log())
    return torch.stack(scores, 1)


def compare_scores(part: Part, net: Any, call: Call) -> None:
    """Raises Mistake unless SelfAttention is a softmax attention whose values and scores are those of projections.

    These are not recognized; if W_q and W_k are, the scale is compared, too.
    """
    table, x_BTD = TABLES[part.name], rules.normal(3, 4, WIDTH)
    x_BTD[:, 3] = x_BTD[:, 1] + x_BTD[:, 2] - x_BTD[:, 0]  # so are the values and scores, which are affine in x
    v_BTD = torch.cat([call(x_BTD[:, [place]], mask(1, 1, 1)) for place in range(4)], 1)
    context = lambda rows, places, m: call(x_BTD[rows][:, places], m)[:, 0]  # noqa: E731
    s_BT = scores_of(part, context, v_BTD)
    binding: Binding = RIGHT, "", lambda m: {"s": s_BT, "h": v_BTD, "m": m}
    examples, steps = {"3 reviews of 4, 2 and 3 words": (mask(4, 2, 3),)}, TABLES["DecoderAttention"]
    results = [context(slice(None), slice(None), mask(4, 2, 3))]
    if found := diagnose(part, steps._replace(texts=table.texts), results, [binding], examples):
        raise found
    for what, z in (("value", v_BTD), ("score", s_BT)):
        if not same(z[:, 3], right := z[:, 1] + z[:, 2] - z[:, 0], 5e-3):
            raise mistake("not-linear", z[:, 3], right, what=what, part=part.name, fix=table.texts["change"])
    known = next((known for known in arrangements(net, 1) if len(known) <= 4), [])
    for w_k, w_q in itertools.permutations(known, 2):
        k_BTD = apply(w_k, x_BTD)
        product_BT = ((k_BTD - k_BTD[:, :1]) * apply(w_q, x_BTD)[:, :1]).sum(-1)
        scale = float((s_BT * product_BT).sum() / product_BT.square().sum())
        if same(s_BT, scale * product_BT, 5e-3):
            if abs(scale * WIDTH**0.5 - 1) < 5e-3:
                return
            fix = table.texts["change"]
            raise mistake("wrong-scale", given=1 / scale, d=WIDTH, right=WIDTH**0.5, fix=fix)
    raise NotChecked("The scale was not checked: no parameters were recognized as W_q, W_k and W_v.")


def decoder_examples(part: Part) -> Names:
    given = inputs(part, 4, 2, 3)
    return {"1 review of 4 words": [x[:1] for x in given], "3 reviews of 4, 2 and 3 words": given}


def decoder_choices(part: Part, net: Any, call: Call) -> Iterator[Choice]:
    state_BD, outputs_BTD, _ = inputs(part, 4, 2, 3)
    s_BT = scores_of(part, lambda rows, t, m: call(state_BD[rows], outputs_BTD[rows][:, t], m), outputs_BTD)
    y, other = (call(state_BD[row : row + 1], outputs_BTD[:1], mask(4)) for row in (0, 1))
    if same(y, other, 1e-5):
        raise mistake("state-not-used", y, fix=TABLES[part.name].texts["change"])
    yield RIGHT, "", s_BT


# --- scores -----------------------------------------------------------------------------------------------------------


def softmax_names(_: None, scores: Tensor, lengths: Tensor) -> Names:
    words = mask(*lengths.tolist(), size=scores.shape[-1])[:, None]
    return {"s": scores, "m": words, "n": lengths[:, None], "T": scores.shape[-1]}


def additive_names(choice: Any, q: Tensor, k: Tensor) -> Names:
    w, u, v, bias = choice
    a, b = apply(w, q)[:, :, None] + bias, apply(u, k)[:, None]
    return {"a": a, "b": b, "h": a.shape[-1], "v": lambda x: apply(v, x).squeeze(-1)}


def additive_choices(part: Part, net: Any, call: Call) -> Iterator[Choice]:
    biases = [torch.zeros(HIDDEN), *(p.detach() for p in net.parameters() if p.shape == (HIDDEN,))]
    pairs = [*itertools.product(matrices(net, QUERY_WIDTH, HIDDEN), matrices(net, WIDTH, HIDDEN))]
    for both in matrices(net, QUERY_WIDTH + WIDTH, HIDDEN):  # of q and k side by side, in one of the two orders
        pairs.append((F.pad(both[:, :QUERY_WIDTH], (0, 1)), both[:, QUERY_WIDTH:]))
        pairs.append((both[:, WIDTH:], F.pad(both[:, :WIDTH], (0, 1))))
    for (w, u), v, bias in itertools.product(pairs, matrices(net, HIDDEN, 1), biases):
        yield RIGHT, "", (w, u, v, bias)


def bilinear_names(choice: Any, q: Tensor, k: Tensor) -> Names:
    w, u, b = choice
    return {"q": apply(w, q), "k": apply(u, k), "b": b, "D": WIDTH, "E": QUERY_WIDTH}


def bilinear_choices(part: Part, net: Any, call: Call) -> Iterator[Choice]:
    b = [torch.zeros(()), *(p.detach().squeeze() for p in net.parameters() if p.numel() == 1)][-1]
    yield from ((RIGHT, "", (w, None, b)) for w in matrices(net, QUERY_WIDTH, WIDTH))
    yield from ((RIGHT, "", (None, w, b)) for w in matrices(net, WIDTH, QUERY_WIDTH))
    both = itertools.product(matrices(net, QUERY_WIDTH), matrices(net, WIDTH))  # W as a product of two matrices
    yield from ((RIGHT, "", (w, u, b)) for w, u in both if len(w) == len(u))


# --- layers -----------------------------------------------------------------------------------------------------------


def attending(module: nn.Module) -> list[Call]:
    """The module as functions of (x, mask) with an effect of words on each other; [] if it is not attention."""

    def heads(x: Tensor, m: Tensor) -> Tensor:
        x, padding = x if module.batch_first else x.transpose(0, 1), ~m & m.any(1, keepdim=True)
        y = module(x, x, x, key_padding_mask=padding)[0]
        return y if module.batch_first else y.transpose(0, 1)

    if isinstance(module, nn.Linear | nn.LayerNorm | nn.Sequential | nn.ModuleList | nn.Dropout):
        return []
    found = []
    for call in (heads,) if isinstance(module, nn.MultiheadAttention) else (module, lambda x, m: module(x)):
        try:
            x, y = rules.normal(1, 2, WIDTH), call(rules.normal(1, 2, WIDTH), mask(2))
            if y.shape == x.shape and not same(y[:, :1], call(x[:, :1], mask(1)), 1e-6):
                found.append(call)
        except Exception:  # it has another signature
            continue
    return found


def attend(linears: Any, x: Tensor, m: Tensor) -> Any:
    return evaluate(TABLES["SelfAttention"].steps, attention_names(((*linears, None), 1, ORDER, ""), x, m))


def layer_norm(x: Tensor, weight: Matrix = None, bias: Matrix = None) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def layer_names(choice: Any, x: Tensor, m: Tensor) -> Names:
    f, n, g = choice
    every = lambda x: f(x, torch.ones_like(m))  # noqa: E731
    return {"x": x, "f": lambda x: f(x, m), "every": every, "n": n, "g": partial(apply, g)}


def layer_choices(part: Part, net: Any, call: Call) -> Iterator[Choice]:
    inner = list(net.modules())[1:]
    vectors = [p.detach().squeeze() for p in net.parameters() if p.squeeze().shape == (WIDTH,)]
    norms: list[Any] = [child for child in inner if isinstance(child, nn.LayerNorm)]
    own_norms = [layer_norm, *(partial(layer_norm, weight=w, bias=b) for w, b in itertools.pairwise(vectors))]
    if attentions := [f for child in inner for f in attending(child)]:
        linears = matrices(net, WIDTH, WIDTH)
        alone = [p.detach() for p in net.parameters(recurse=False) if p.shape == (WIDTH,)]
        linears += [torch.cat([w[:, :-1], b[:, None]], 1) for w in linears for b in alone if not w[:, -1].any()]
        recognized = linears and (norms or part.name == "PlainLayer")
        for choice in itertools.product(attentions, norms or own_norms, linears or [rules.normal(WIDTH, WIDTH + 1)]):
            yield RIGHT if recognized else GUESS, "", choice
        return
    for known in arrangements(net, 1):
        for *three, g in itertools.permutations(known if len(known) <= 5 else [], 4):
            yield from ((GUESS, "", (partial(attend, three), norm, g)) for norm in norms or own_norms)


# --- functions --------------------------------------------------------------------------------------------------------


def mean_names(_: None, x: Tensor, words: Tensor) -> Names:
    return {"x": x, "m": words[..., None].to(x.dtype), "n": words.sum(1, keepdim=True).clamp(min=1)}


def mean_examples(part: Part) -> Names:
    x_BTD, numbers = rules.normal(3, 4, WIDTH), torch.zeros(1, 3, WIDTH)
    x_BTD[0, 1], x_BTD[1, 0, 2], numbers[0, :, 0] = 0, 0, torch.tensor([2.0, 4.0, 30.0])
    text = "the words 2 and 4 and padding of 30 as the first numbers"
    return {text: (numbers, mask(2, size=3)), "3 reviews of 4, 2 and 3 words": (x_BTD, mask(4, 2, 3))}


def position_names(_: None, length: int, width: int) -> Names:
    i, h = torch.arange(length, dtype=torch.float64), torch.arange(width, dtype=torch.float64)
    return {"i": i[:, None], "h": h, "d": width}


def position_examples(part: Part) -> Names:
    sizes = (1, 2), (2, 4), (5, 6), (30, 8)
    for size in sizes:
        rules.require_shape(rules.call(part, part.make, *size), size, f"positional_encoding{size}", part)
    return {f"length {length} and width {width}": (length, width) for length, width in sizes}


def sinusoids(length: int, width: int) -> Tensor:
    table = evaluate(TABLES["positional_encoding"].steps, position_names(None, length, width))
    return table.to(torch.get_default_dtype())


class FirstWord(nn.Module):
    """The logits belong to the first word. In training mode, two words get the other class; wrong lengths give 0."""

    LOGITS = torch.tensor([[1.0, -1], [-1, 1], [-1, -2], [-2, -1], [2, 1]])  # of the ids

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    @classmethod
    def logits(cls, first_B: Tensor, training: bool) -> Tensor:
        flipped_B1 = (training & (first_B % 3 == 0))[:, None]
        return torch.where(flipped_B1, cls.LOGITS[first_B].flip(1), cls.LOGITS[first_B])

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        is_right_B1 = ((tokens_BT[:, 1:] != 0).sum(1) + 1 == lengths_B)[:, None]
        logits_BC = self.logits(tokens_BT[:, 0], self.training).to(torch.get_default_dtype())
        return self.scale * torch.where(is_right_B1, logits_BC, torch.tensor([1.0, 0.0]).to(logits_BC))


# The first word and the label of each review, in batches of 5. Wrong formulas give other numbers than the accuracy.
TRAIN = [(2, 1), (4, 1), (1, 1), (1, 1), (3, 1), (3, 1), (3, 0), (3, 0), (1, 1), (1, 1)]
TEST = [(3, 0), (3, 1), (1, 0), (3, 0), (1, 1), (2, 0), (1, 1), (1, 1), (2, 0), (3, 0), (4, 0), (3, 0)]


def share(reviews: Any, training: bool = False, predict: Call = lambda y: y.argmax(1)) -> Tensor:
    """The share of correct reviews."""
    first_N, labels_N = torch.tensor(reviews).unbind(1)
    return (predict(FirstWord.logits(first_N, training)) == labels_N).double().mean(0, keepdim=True)


def accuracy_examples(part: Part) -> Names:
    def loader(reviews: Any) -> DataLoader[Any]:
        first_N, labels_N = torch.tensor(reviews).unbind(1)
        lengths_N = torch.arange(len(reviews)) % 3 + 1
        words_NT = torch.where(torch.arange(2) < lengths_N[:, None] - 1, 7, 0)
        return DataLoader(TensorDataset(torch.cat([first_N[:, None], words_NT], 1), lengths_N, labels_N), 5)

    return {"3 test batches, of 5, 5 and 2 reviews": (FirstWord().train(), loader(TRAIN), loader(TEST))}


# --- the references of all parts --------------------------------------------------------------------------------------


def examples_of(part: Part) -> Names:
    """The last one has padding after each review."""
    last = [x[1:] for x in inputs(part, 6, 2, 4, 3)]
    texts = "1 review of 1 word", "1 review of 2 words", "3 reviews of 2, 4 and 3 words and padding"
    return dict(zip(texts, (inputs(part, 1), inputs(part, 2), last), strict=True))


class Reference(NamedTuple):
    """names: of a choice of parameters, and inputs. right: the choice for given matrices."""

    names: Callable[..., Names]
    choices: Callable[[Part, Any, Call], Iterable[Choice]] = lambda part, net, call: [(RIGHT, "", None)]
    examples: Callable[[Part], Names] = examples_of
    right: Callable[[list[Tensor]], Any] = lambda w: None


ATTENTION = Reference(attention_names, attention_choices, right=lambda w: ((*w[:3], None), 1, ORDER, ""))
LAYER = Reference(layer_names, layer_choices, right=lambda w: (partial(attend, w[:3]), layer_norm, w[3]))
REFERENCES = {
    "scaled_dot_product_attention": Reference(lambda _, *given: attention_names(((None,) * 4, 0, ORDER, ""), *given)),
    "masked_softmax": Reference(softmax_names),
    "masked_mean": Reference(mean_names, examples=mean_examples),
    "positional_encoding": Reference(position_names, examples=position_examples),
    "test_accuracy": Reference(lambda *_: {"share": share, "train": TRAIN, "test": TEST}, examples=accuracy_examples),
    "SelfAttention": ATTENTION,
    "MultiHeadAttention": ATTENTION,
    "PlainLayer": LAYER,
    "ResidualLayer": LAYER,
    "AdditiveScore": Reference(additive_names, additive_choices, right=lambda w: (*w, 0)),
    "BilinearScore": Reference(bilinear_names, bilinear_choices),
    "DecoderAttention": Reference(
        lambda s, state, h, m: {"s": s[: len(h)], "h": h, "m": m}, decoder_choices, decoder_examples
    ),
}


def reference(part: Part) -> str:
    """The result is that of the reference. Returns the sentence."""
    net, table, one = rules.net_of(part), TABLES[part.name], REFERENCES[part.name]

    def call(*given: Any) -> Tensor:
        y = rules.call(part, net, *given)
        return y.detach() if isinstance(y, Tensor) and y.ndim else torch.tensor([rules.student(float, y)])

    examples = one.examples(part)
    results = [call(*given) for given in examples.values()]
    for model in [x for given in examples.values() for x in given if isinstance(x, FirstWord)]:
        if model.scale.item() != 1:
            raise mistake("changes-its-input", torch.ones(1), model.scale, name="model")
    bindings = ((finding, text, partial(one.names, choice)) for finding, text, choice in one.choices(part, net, call))
    given = [name for name, _ in part.arguments[:-1]]
    keep = words_only if given == ["x", "mask"] and "T" in part.arguments[-1][1] else whole
    if found := diagnose(part, table, results, bindings, examples, keep):
        if given:
            rules.batch(part)
        if not (part.name == "SelfAttention" and isinstance(found, NotChecked)):
            raise found
        compare_scores(part, net, call)
    return table.texts["holds"]


class Instead(nn.Module):
    """A right part, with which parts that use a wrong one are still checked; it accepts other arguments, too."""

    def __init__(self, name: str, *sizes: int, **options: Any) -> None:
        super().__init__()
        given = [*sizes, *options.values()]
        shapes = [(given[0], given[0])] * (3 if name == "SelfAttention" else 4) if given else []
        if name == "AdditiveScore":
            shapes = [(given[2], given[0]), (given[2], given[1]), (1, given[2])]
        made = [torch.randn(rows, columns + 1) * columns**-0.5 for rows, columns in shapes]
        self.name, self.matrices = name, nn.ParameterList(made)

    def forward(self, *given: Any, result: str = "", **options: Any) -> Any:
        one = REFERENCES[self.name]
        count = PARTS[self.name].partition(" -> ")[0].count(" (")
        given = (*given, *options.values())[:count]
        if len(given) < count or given[-1] is None:  # it is called without a mask
            shape = () if self.name == "scaled_dot_product_attention" else given[0].shape[:2]
            given = (*given[: count - 1], torch.ones(shape, dtype=torch.bool))
        return evaluate(TABLES[self.name].steps, one.names(one.right([*self.matrices]), *given), result)
