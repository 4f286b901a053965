"""What each part is compared with. Formulas are in references.txt; here are the numbers that they
are computed from.

Queries, keys and values are found among the tensors that the student's module computes: those that
are affine in each word, however their weights are stored. Shape suffixes: B reviews, H heads, T
positions, D width, N samples, M columns.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import imdbattn.tools.check.rules as rules
from imdbattn.tools.check.rules import (
    HIDDEN,
    QUERY_WIDTH,
    WIDTH,
    Mistake,
    NotChecked,
    Part,
    inputs,
    mask,
    mistake,
    same,
)
from imdbattn.tools.check.tables import TABLES, Table

Names = dict[str, Any]  # what the expressions of a table use
Call = Callable[..., Any]
# finding and sentence of a mistake, or RIGHT or GUESS and ""; names of inputs
Binding = tuple[str, str, Call]
Choice = tuple[str, str, Any]  # the same, or with the names that are not arguments
# a guess may be right, but results that differ from it are not therefore wrong
RIGHT, GUESS = "", "guess"
TOOLS: Names = {"torch": torch, "F": F, "inf": float("inf")}
SAMPLES = 40  # reviews, to find affine functions of words; more than the columns of all arguments


@cache
def compiled(expression: str) -> CodeType:
    return compile(expression, "references.txt", "eval")


def evaluate(steps: dict[str, str], names: Names) -> Any:
    """The last of the steps in their order; None if one cannot be computed for tensors of these
    shapes.
    """
    names = TOOLS | names
    try:
        for name, expression in steps.items():
            names[name] = eval(compiled(expression), names)
    except (RuntimeError, IndexError):
        return None
    return names[name]


def whole(y: Tensor, *given: Any) -> Tensor:
    return y


def words_only(y_BTD: Tensor, x_BTD: Tensor, words_BT: Tensor) -> Tensor:
    return y_BTD[words_BT]


@torch.no_grad()
def diagnose(
    part: Part,
    table: Table,
    results: list[Tensor],
    bindings: Iterable[Binding],
    examples: Names,
    keep: Call = whole,
) -> Exception | None:
    """None if the reference gives the results. Raises Mistake for the variant that gives them.

    Otherwise returns the exception: the Mistake that they differ, or NotChecked if no binding must
    be right.
    examples: the inputs of each result by their description. keep: what the reference defines.
    """
    bindings = list(bindings)
    rights = [bind for finding, _, bind in bindings if finding in (RIGHT, GUESS)]

    @cache
    def names_of(bind: Call, text: str) -> Names:
        return bind(*examples[text])

    def differences(steps: dict[str, str], bind: Call, keep: Call = keep) -> Iterator[Any]:
        """The examples for which the steps give another result, with both results."""
        for (text, given), y in zip(examples.items(), results, strict=True):
            z = evaluate(steps, names_of(bind, text))
            if z is None or not same(z := keep(z, *given), y := keep(y, *given)):
                yield text, y, z

    def holds(*given: Any) -> bool:
        return next(differences(*given), None) is None

    def differs(other: str, bind: Call) -> Mistake:
        text, y, z = min(differences(table.steps, bind), key=lambda found: found[1].numel())
        values = {"other": other, "text": text, "part": part.name, "fix": table.texts["change"]}
        return mistake("differs-from-reference", y, z, **values)

    if any(holds(table.steps, bind) for bind in rights):
        return None
    mistakes: list[Any] = [
        (name, text, {}, bind) for name, text, bind in bindings if name not in (RIGHT, GUESS)
    ]
    mistakes += [(*variant, bind) for variant in table.variants for bind in rights]
    matching = (one for one in mistakes if holds(table.steps | one[2], one[3]))
    if first := next(matching, None):  # results for padding may tell which of two mistakes it is
        found = itertools.chain([first], matching)
        exact = (one for one in found if holds(table.steps | one[2], one[3], whole))
        name, sentence, steps, bind = next(exact, first)
        right = bind if steps or not rights else rights[0]
        differ = not holds(table.steps, right)
        example = (
            differs("right", right).args[2] if differ else "All results are those of this mistake."
        )
        raise Mistake(name, sentence, example, table.texts["change"])
    if RIGHT not in [finding for finding, *_ in bindings]:
        return NotChecked(
            "Results were not compared: the parameters of the formula were not recognized."
        )
    _, *rest = differs("the closest that was found", rights[0]).args
    return Mistake(table.texts.get("differs", "differs-from-reference"), *rest)


# --- what the student's module computes -----------------------------------------------------------


def samples(part: Part, words: int) -> list[Tensor]:
    """The arguments for reviews of so many words."""
    return [
        torch.cat(x)
        for x in zip(*(inputs(part, words, seed=seed) for seed in range(SAMPLES)), strict=True)
    ]


@torch.enable_grad()  # without gradients, torch's own attention computes in one step
def computed(part: Part, net: Any, given: list[Tensor]) -> list[Tensor]:
    """What the module computes of each review, (N, M), and the arguments first; no multiple of an
    earlier one.
    """
    runs = [
        rules.record(part, net, *(x[row : row + 1] for x in given)) for row in range(len(given[0]))
    ]
    found: list[Tensor] = []
    for step in [*(x.split(1) for x in given), *zip(*runs, strict=False)]:
        if (
            step[0].is_floating_point()
            and step[0].numel() > 1
            and len({x.shape for x in step}) == 1
        ):
            x_NM = torch.stack([x.flatten() for x in step]).to(torch.get_default_dtype())
            multiples = (
                y * ((x_NM * y).sum() / y.square().sum()) for y in found if y.shape == x_NM.shape
            )
            if not same(x_NM, x_NM[:1].expand_as(x_NM)) and not any(
                same(y, x_NM) for y in multiples
            ):
                found.append(x_NM)
    return found


def fit(x_ND: Tensor, y_NM: Tensor) -> Tensor:
    """(M, D + 1), weight and bias of the affine function of x that is closest to y."""
    return torch.linalg.lstsq(
        F.pad(x_ND, (0, 1), value=1), y_NM, rcond=1e-5, driver="gelsd"
    ).solution.mT


def affine_maps(x_ND: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Weight and bias of the tensors that are affine functions of x."""
    return [matrix for y_NM in tensors if same(apply(matrix := fit(x_ND, y_NM), x_ND), y_NM)]


def each_number(x_ND: Tensor, y_ND: Tensor) -> Tensor | None:
    """(2, D), weight and bias, if each number of y is an affine function of the same number of
    x.
    """
    gain_D = ((x_ND - x_ND.mean(0)) * y_ND).mean(0) / x_ND.var(0, correction=0)
    bias_D = (y_ND - gain_D * x_ND).mean(0)
    return torch.stack([gain_D, bias_D]) if same(gain_D * x_ND + bias_D, y_ND) else None


def apply(matrix: Tensor, x: Tensor) -> Tensor:
    return x @ matrix[:, :-1].mT + matrix[:, -1]


class Fitted:
    """The Linear with which the first example has the right result: it is found when it is called
    for that one.

    alone: whether it may be the identity.
    """

    def __init__(self, right: Tensor, alone: bool) -> None:
        self.right, self.alone = right, alone

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == len(self.right):
            self.matrix = fit(x.flatten(0, -2), self.right.flatten(0, -2))
            if not self.alone and same(self.matrix, torch.eye(*self.matrix.shape)):
                self.matrix *= float("nan")
        return apply(self.matrix, x)


# --- attention ------------------------------------------------------------------------------------


def attention_names(three: Any, heads: int, alternate: bool, w_o: Call, *given: Tensor) -> Names:
    """three: projections of the arguments side by side. alternate: whether a head has every H-th
    column.

    given: x or query, key and value; the mask.
    """
    *sources, m = given
    Q, K, V = (apply(w, torch.cat(sources, -1)) for w in three) if three else sources
    names: Names = {
        "query": sources[0],
        "m": m,
        "split": whole,
        "merge": whole,
        "Q": Q,
        "K": K,
        "V": V,
    }
    if heads:
        names["m"] = m[:, None, None]
        names["split"] = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)
        names["merge"] = lambda y: w_o(y.transpose(1, 2).flatten(2))
        if alternate:
            names["split"] = lambda x: x.unflatten(-1, (-1, heads)).movedim(-1, 1)
    B, T, D = Q.shape[0], Q.shape[-2], Q.shape[-1]
    return names | {"B": B, "T": T, "D": D, "d": D // (heads or 1)}


class Projection(NamedTuple):
    matrix: Tensor  # (M, columns + 1), of the arguments side by side
    place: int  # of the argument that it is applied to
    weight: Tensor  # (M, D), for that argument
    is_x: bool  # it is the argument itself


def among(rows: Tensor, matrices: list[Tensor]) -> bool:
    """Whether each of the rows is one of those of the matrices."""
    return bool(matrices) and bool((torch.cdist(rows, torch.cat(matrices)).amin(1) < 1e-4).all())


def projections(part: Part, net: Any, sources: int) -> Iterator[list[Projection]]:
    """Those that are computed, in their order, with the argument itself last; two lists for a
    module for each head.
    """
    tensors = computed(part, net, samples(part, 1))
    maps = affine_maps(torch.cat(tensors[:sources], 1), tensors)
    # Without those to which a bias is added later.
    maps = [
        w
        for place, w in enumerate(maps)
        if not any(same(w[:, :-1], v[:, :-1]) for v in maps[place + 1 :])
    ]
    narrow = [w for w in maps if len(w) < WIDTH]
    lists = [
        [w for w in maps if not among(w, [other for other in maps if WIDTH <= len(other) < len(w)])]
    ]
    if (
        len(narrow) > 3
        and len(narrow) % 3 == 0
        and not among(torch.cat(narrow), [w for w in maps if len(w) == WIDTH])
    ):
        count = len(narrow) // 3
        lists = [[torch.cat(narrow[place::3]) for place in range(3)]]
        lists += [
            [torch.cat(narrow[start : start + count]) for start in range(0, 3 * count, count)]
        ]
    for one in lists:
        found = []
        for w in one:
            weights = w[:, :-1].unflatten(1, (sources, WIDTH))
            places, weight = (
                weights.abs().amax((0, 2)).gt(1e-6).nonzero().flatten().tolist(),
                weights.sum(1),
            )
            is_x = same(weight, torch.eye(len(w), WIDTH))
            if len(places) == 1 and (is_x or not same(weight, weight.diag().diag())):
                found.append(Projection(w, places[0], weight, is_x))
        yield sorted(found, key=lambda projection: projection.is_x)


def is_parameter(net: nn.Module, weight: Tensor) -> bool:
    return any(
        same(p, weight) or same(p.mT, weight) for p in net.parameters() if p.shape == weight.shape
    )


def attention_choices(part: Part, net: Any, results: list[Tensor]) -> Iterator[Choice]:
    """All projections as W_q, W_k and W_v; and the mistakes of using one twice, or the word
    itself.
    """
    several, sources = part.name == "MultiHeadAttention", len(part.arguments) - 2
    for found in projections(part, net, sources):
        found = found[:4] + [one for one in found[4:] if one.is_x or sources > 1]
        for three in itertools.product(found, repeat=3):
            missing = [
                name for name, one in zip(("W_q", "W_k", "W_v"), three, strict=True) if one.is_x
            ]
            finding, text = RIGHT, ""
            if sources > 1 and [one.place for one in three] != [0, 1, 2]:
                finding, text = "arguments-exchanged", "Query, key and value are exchanged."
            elif missing in (["W_q"], ["W_k"]) and not is_parameter(
                net, three[missing == ["W_q"]].weight
            ):
                finding = GUESS  # W_q^T W_k may be computed first
            elif missing:
                finding, text = "no-projection", f"There is no {missing[0]}."
            elif any(
                same(one.weight, other.weight) for one, other in itertools.combinations(three, 2)
            ):
                finding, text = (
                    "shared-projections",
                    "One Linear is used for several of W_q, W_k, W_v and W_O.",
                )
            q, k, v = (len(one.matrix) for one in three)
            many = (
                range(1, q + 1)
                if finding == RIGHT and {*map(id, three)} <= {*map(id, found[:3])}
                else (1,)
            )
            for heads in (rules.HEADS,) if several else many:
                if q == k and q % heads == v % heads == 0 and (heads > 1 or v == WIDTH):
                    w_o = whole if heads == 1 else Fitted(results[0], alone=not several)
                    for alternate in (
                        (False, True) if 1 < heads < q and finding == RIGHT else (False,)
                    ):
                        yield (
                            finding,
                            text,
                            partial(
                                attention_names,
                                [one.matrix for one in three],
                                heads,
                                alternate,
                                w_o,
                            ),
                        )


def scores_of(part: Part, context: Call, values_BTD: Tensor) -> Tensor:
    """The scores (B, T) of which the weights are the softmax, each minus that of the first word.

    context(reviews, places, mask): (B, D). For two words only one pair of weights gives the context
    as a sum of the values. Raises Mistake if there is none.
    """
    fix, scores, reviews = (
        TABLES[part.name].texts["change"],
        [torch.zeros(3)],
        [slice(b, b + 1) for b in range(3)],
    )
    for other in range(1, 4):
        v_B2D = values_BTD[:, [0, other]]
        y_BD, inverted_BD = (
            torch.cat([context(b, [0, other], m) for b in reviews]) for m in (mask(2), ~mask(2))
        )
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


def decoder_examples(part: Part) -> Names:
    given = inputs(part, 4, 2, 3)
    return {"1 review of 4 words": [x[:1] for x in given], "3 reviews of 4, 2 and 3 words": given}


def decoder_choices(part: Part, net: Any, results: list[Tensor]) -> Iterator[Choice]:
    state_BD, outputs_BTD, _ = inputs(part, 4, 2, 3)
    call = partial(rules.call, part, net)
    s_BT = scores_of(
        part, lambda rows, t, m: call(state_BD[rows], outputs_BTD[rows][:, t], m), outputs_BTD
    )
    y, other = (call(state_BD[row : row + 1], outputs_BTD[:1], mask(4)) for row in (0, 1))
    if same(y, other, 1e-5):
        raise mistake("state-not-used", y, fix=TABLES[part.name].texts["change"])
    yield RIGHT, "", {"scores": s_BT}


# --- scores ---------------------------------------------------------------------------------------


def numbers_of(net: nn.Module, count: int) -> list[Tensor]:
    return [p.detach().flatten() for p in net.parameters() if p.numel() == count]


def of_one(part: Part, net: Any) -> list[list[Tensor]]:
    """Affine functions of query and key side by side: of the query alone, of the key alone, and of
    both.
    """
    tensors = computed(part, net, samples(part, 1))
    found = affine_maps(torch.cat(tensors[:2], 1), tensors)
    used = [
        [bool(u.abs().max() > 1e-6) for u in (w[:, :QUERY_WIDTH], w[:, QUERY_WIDTH:-1])]
        for w in found
    ]
    return [
        [w for w, one in zip(found, used, strict=True) if one == [q, k]]
        for q, k in ((1, 0), (0, 1), (1, 1))
    ]


def of_query(w: Tensor) -> Call:
    return partial(apply, w[:, [*range(QUERY_WIDTH), -1]])


def additive_choices(part: Part, net: Any, results: list[Tensor]) -> Iterator[Choice]:
    of_q, of_k, of_both = of_one(part, net)
    both = [w for w in of_both if len(w) == HIDDEN]
    both += [w + u for w, u in itertools.product(of_q, of_k) if len(w) == len(u) == HIDDEN]
    for w, v, b in itertools.product(
        both, numbers_of(net, HIDDEN), [torch.zeros(1), *numbers_of(net, 1)]
    ):
        of_key = partial(apply, F.pad(w[:, QUERY_WIDTH:-1], (0, 1)))
        yield RIGHT, "", {"W": of_query(w), "U": of_key, "v": lambda x, v=v, b=b: x @ v + b}


def bilinear_choices(part: Part, net: Any, results: list[Tensor]) -> Iterator[Choice]:
    of_q, of_k, _ = of_one(part, net)
    of_k = [w[:, QUERY_WIDTH:] for w in of_k]
    # W itself
    of_k += [
        F.pad(w.view(QUERY_WIDTH, WIDTH), (0, 1)) for w in numbers_of(net, QUERY_WIDTH * WIDTH)
    ]
    for w, u, b in itertools.product(of_q, of_k, [torch.zeros(1), *numbers_of(net, 1)]):
        if len(w) == len(u):
            yield RIGHT, "", {"W": of_query(w), "U": partial(apply, u), "b": b}


# --- layers ---------------------------------------------------------------------------------------


def attending(module: nn.Module) -> list[Call]:
    """The module as functions of (x, mask) with an effect of words on each other; [] if it is not
    attention.
    """

    def heads(x: Tensor, m: Tensor) -> Tensor:
        x, padding = x if module.batch_first else x.transpose(0, 1), ~m & m.any(1, keepdim=True)
        y = module(x, x, x, key_padding_mask=padding)[0]
        return y if module.batch_first else y.transpose(0, 1)

    found = []
    for call in (
        (heads,) if isinstance(module, nn.MultiheadAttention) else (module, lambda x, m: module(x))
    ):
        try:
            x, y = rules.normal(1, 2, WIDTH), call(rules.normal(1, 2, WIDTH), mask(2))
            if y.shape == x.shape and not same(y[:, :1], call(x[:, :1], mask(1)), 1e-6):
                found.append(call)
        except Exception:  # it has another signature
            continue
    return found


def attend(three: Any, x: Tensor, m: Tensor) -> Any:
    return evaluate(TABLES["SelfAttention"].steps, attention_names(three, 1, False, whole, x, m))


def norms(words: list[Tensor]) -> list[Call]:
    """LayerNorm with each weight and bias with which it gives one of these tensors (N, D) for
    another one.
    """
    found: list[Tensor] = []
    for x_ND in words:
        x_ND = F.layer_norm(x_ND, (WIDTH,))
        fits = [fit for y_ND in words if (fit := each_number(x_ND, y_ND)) is not None]
        found += [fit for fit in fits[-1:] if not any(same(fit, other) for other in found)]
    plain = torch.stack([torch.ones(WIDTH), torch.zeros(WIDTH)])
    return [
        partial(F.layer_norm, normalized_shape=(WIDTH,), weight=w, bias=b)
        for w, b in found or [plain]
    ]


def layer_choices(part: Part, net: Any, results: list[Tensor]) -> Iterator[Choice]:
    """Attention is one of the modules, or else that of three affine functions of x or LN(x); g: see
    Fitted.
    """
    tensors = computed(part, net, samples(part, 2))
    wide = [y.view(SAMPLES, 2, WIDTH) for y in tensors if y.shape[1] == 2 * WIDTH]
    words = [y.flatten(0, 1) for y in wide]
    attentions = [f for child in list(net.modules())[1:] for f in attending(child)]
    finding = RIGHT if attentions else GUESS
    found = norms(words)
    if not attentions:
        for x_ND in (words[0], found[-1](words[0])):
            three = affine_maps(x_ND, [y for y in words if each_number(x_ND, y) is None])[:3]
            attentions += [partial(attend, one) for one in itertools.permutations(three, 3)]
    for f, n, y in itertools.product(attentions, found, reversed(wide)):
        yield finding, "", {"attention": f, "n": n, "g": Fitted(y, alone=False)}


# --- functions ------------------------------------------------------------------------------------


def mean_examples(part: Part) -> Names:
    x_BTD, numbers = rules.normal(3, 4, WIDTH), torch.zeros(1, 3, WIDTH)
    x_BTD[0, 1], x_BTD[1, 0, 2], numbers[0, :, 0] = 0, 0, torch.tensor([2.0, 4.0, 30.0])
    text = "the words 2 and 4 and padding of 30 as the first numbers"
    return {
        text: (numbers, mask(2, size=3)),
        "3 reviews of 4, 2 and 3 words": (x_BTD, mask(4, 2, 3)),
    }


def position_examples(part: Part) -> Names:
    sizes = (1, 2), (2, 4), (5, 6), (30, 8)
    for size in sizes:
        rules.require_shape(
            rules.call(part, part.make, *size), size, f"positional_encoding{size}", part
        )
    return {f"length {length} and width {width}": (length, width) for length, width in sizes}


class FirstWord(nn.Module):
    """The logits belong to the first word. In training mode, two words get the other class; wrong
    lengths give 0.
    """

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
        return self.scale * torch.where(
            is_right_B1, logits_BC, torch.tensor([1.0, 0.0]).to(logits_BC)
        )


# The first word and the label of each review, in batches of 5. Wrong formulas give other numbers
# than the accuracy.
TRAIN = [(2, 1), (4, 1), (1, 1), (1, 1), (3, 1), (3, 1), (3, 0), (3, 0), (1, 1), (1, 1)]
TEST = [
    (3, 0),
    (3, 1),
    (1, 0),
    (3, 0),
    (1, 1),
    (2, 0),
    (1, 1),
    (1, 1),
    (2, 0),
    (3, 0),
    (4, 0),
    (3, 0),
]


def share(reviews: Any, training: bool = False, predict: Call = lambda y: y.argmax(1)) -> Tensor:
    """The share of correct reviews."""
    first_N, labels_N = torch.tensor(reviews).unbind(1)
    return (predict(FirstWord.logits(first_N, training)) == labels_N).double().mean(0, keepdim=True)


def accuracy_examples(part: Part) -> Names:
    def loader(reviews: Any) -> DataLoader[Any]:
        first_N, labels_N = torch.tensor(reviews).unbind(1)
        lengths_N = torch.arange(len(reviews)) % 3 + 1
        words_NT = torch.where(torch.arange(2) < lengths_N[:, None] - 1, 7, 0)
        return DataLoader(
            TensorDataset(torch.cat([first_N[:, None], words_NT], 1), lengths_N, labels_N), 5
        )

    return {
        "3 test batches, of 5, 5 and 2 reviews": (FirstWord().train(), loader(TRAIN), loader(TEST))
    }


# --- the references of all parts ------------------------------------------------------------------


def examples_of(part: Part) -> Names:
    """The last one has padding after each review."""
    last = [x[1:] for x in inputs(part, 6, 2, 4, 3)]
    texts = (
        "16 reviews of 3 words",
        "1 review of 1 word",
        "1 review of 2 words",
        "3 reviews of 2, 4 and 3 words and padding",
    )
    return dict(
        zip(texts, (inputs(part, *[3] * 16), inputs(part, 1), inputs(part, 2), last), strict=True)
    )


def layer_examples(part: Part) -> Names:
    return {f"{SAMPLES} reviews of 2 words": samples(part, 2)} | examples_of(part)


# What formulas use besides the arguments; or the choices of it, which may be computed from the
# first result.
CONSTANT: dict[str, Any] = {
    "scaled_dot_product_attention": partial(attention_names, None, 0, False, whole),
    "test_accuracy": {"share": share, "train": TRAIN, "test": TEST},
}
CHOICES: dict[str, Callable[[Part, Any, list[Tensor]], Iterable[Choice]]] = {
    "SelfAttention": attention_choices,
    "MultiHeadAttention": attention_choices,
    "PlainLayer": layer_choices,
    "ResidualLayer": layer_choices,
    "AdditiveScore": additive_choices,
    "BilinearScore": bilinear_choices,
    "DecoderAttention": decoder_choices,
}
EXAMPLES = {
    "masked_mean": mean_examples,
    "positional_encoding": position_examples,
    "test_accuracy": accuracy_examples,
    "PlainLayer": layer_examples,
    "ResidualLayer": layer_examples,
    "DecoderAttention": decoder_examples,
}


def reference(part: Part) -> str:
    """The result is that of the reference. Returns the sentence."""
    net, table = rules.net_of(part), TABLES[part.name]

    def call(*given: Any) -> Tensor:
        y = rules.call(part, net, *given)
        return (
            y.detach()
            if isinstance(y, Tensor) and y.ndim
            else torch.tensor([rules.student(float, y)])
        )

    examples = EXAMPLES.get(part.name, examples_of)(part)
    results = [call(*given) for given in examples.values()]
    for model in [x for given in examples.values() for x in given if isinstance(x, FirstWord)]:
        if model.scale.item() != 1:
            raise mistake("changes-its-input", torch.ones(1), model.scale, name="model")
    given = re.sub(r" \([^)]*\)", "", part.signature.partition(": ")[2].partition(" ->")[0]).split(
        ", "
    )

    def binding(finding: str, text: str, choice: Any) -> Binding:
        return (
            finding,
            text,
            choice if callable(choice) else lambda *x: dict(zip(given, x, strict=True)) | choice,
        )

    choices = (
        CHOICES[part.name](part, net, results)
        if part.name in CHOICES
        else [(RIGHT, "", CONSTANT.get(part.name, {}))]
    )
    bindings = (binding(*choice) for choice in choices)
    keep = words_only if given == ["x", "mask"] and "T" in part.arguments[-1][1] else whole
    if found := diagnose(part, table, results, bindings, examples, keep):
        if part.arguments[:-1]:
            rules.batch(part)
        raise found
    return table.texts["holds"]
