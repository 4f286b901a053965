"""Mistakes that are read from the operations of torch that a part computes: which axis a softmax
is over, what is masked before it, what its scores are multiplied by, what is reshaped.

They give a name to a part that is wrong and whose result no formula of mistakes/ gives.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from imdbattn.tools.check.numbers import mistake, named, same
from imdbattn.tools.check.part import HEADS, Part, Watching, call, inputs

HIDDEN = -1e3  # a smaller score is that of a key that is masked
SOFTMAX = ("_softmax", "_safe_softmax", "_log_softmax")
WITH_SOFTMAX = (
    "SelfAttention",
    "MultiHeadAttention",
    "MultiHeadSelfAttention",
    "CausalSelfAttention",
)
WITHOUT_SCALE = ("AdditiveAttention", "AdditiveScore", "BilinearScore", "DecoderAttention")


class Operation(NamedTuple):
    """given: the tensors and numbers that an operation is given, as they are then."""

    name: str
    given: list[Any]
    result: Tensor


class Operations(Watching):
    """Keeps the operations within a with block."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Operation] = []

    def before(self, arguments: object) -> list[Any]:
        return [kept(x) for x in tree_leaves(arguments)]

    def after(self, name: str, given: list[Any], results: list[Tensor]) -> None:
        short = name.partition(".")[0]
        self.made += [Operation(short, given, kept(x)) for x in results]


def kept(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


class Softmax(NamedTuple):
    place: int  # among the operations
    scores: Tensor
    axis: int  # not negative
    weights: Tensor
    is_log: bool


def softmaxes(made: list[Operation]) -> Iterator[Softmax]:
    for place, one in enumerate(made):
        if one.name in SOFTMAX:
            scores, axis = one.given[:2]
            yield Softmax(place, scores, axis % scores.ndim, one.result, one.name == "_log_softmax")


LENGTHS = (4, 7, 5)  # of reviews; their number, and that of heads, is none of these


def require_known_in(part: Part, net: Callable[..., Any]) -> None:
    """Raises Mistake for a mistake that is found in the operations of a call of the part."""
    lengths = part.lengths(*LENGTHS)
    if part.kind == "CausalSelfAttention":
        lengths = (max(lengths),) * len(lengths)
    given = inputs(part, *lengths)
    with torch.enable_grad(), step_by_step(), Operations() as operations:
        call(part, net, *given)
    if part.kind in WITH_SOFTMAX:
        require_softmax(operations.made)
    sizes = {"B": len(lengths), "T": max(lengths), "H": HEADS}
    require_known(operations.made, sizes, [*lengths], part.kind not in WITHOUT_SCALE)


@contextmanager
def step_by_step() -> Iterator[None]:
    """Torch's own attention computes its weights in a step of their own within a with block."""
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(before)


def require_known(
    made: list[Operation], sizes: dict[str, int], lengths: list[int], is_scaled: bool
) -> None:
    """Raises Mistake for a mistake that is found in the operations.

    sizes: B reviews, T keys and H heads, which differ from each other. lengths: of the reviews.
    is_scaled: whether scores are to be divided by sqrt(d).
    """
    require_transposed(made, sizes)
    require_norm(made, sizes)
    found = [one for one in softmaxes(made) if is_of_attention(one, sizes)]
    for number, one in enumerate(found):
        require_axis(one, sizes)
        require_once(one, found[:number])
        require_mask(one, sizes, lengths, made[one.place :])
        if is_scaled:
            require_scale(one, made[: one.place], sizes)


def require_softmax(made: list[Operation]) -> None:
    """Raises Mistake if nothing is computed that could be a softmax."""
    names = {one.name for one in made}
    if names & {*SOFTMAX, "exp", "exp_", "logsumexp"}:
        return
    is_sigmoid = "sigmoid" in names
    raise named("sigmoid-not-softmax" if is_sigmoid else "no-softmax", "of-no-softmax")


def is_of_attention(one: Softmax, sizes: dict[str, int]) -> bool:
    """Whether these are scores of attention."""
    return sizes["T"] in one.scores.shape and one.scores.is_floating_point()


def require_transposed(made: list[Operation], sizes: dict[str, int]) -> None:
    """Raises Mistake if axes are exchanged by view or reshape, which keep the order of numbers."""
    for one in made:
        if one.name not in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
            continue
        shapes = tuple(one.given[0].shape), tuple(one.result.shape)
        before, after = map(above_one, shapes)
        if before != after and sorted(before) == sorted(after):
            raise mistake("reshaped-not-transposed", before=shapes[0], after=shapes[1])
        if is_cut_without_transpose(before, after, sizes) or is_cut_without_transpose(
            after, before, sizes
        ):
            values = {"before": shapes[0], "after": shapes[1]}
            raise named("heads-mix-words", "reshaped-not-transposed", **values)


def above_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)


def require_norm(made: list[Operation], sizes: dict[str, int]) -> None:
    """Raises Mistake if a word is normalized together with other words."""
    for one in made:
        if one.name not in ("native_layer_norm", "var", "std", "var_mean", "std_mean"):
            continue
        shape = one.given[0].shape
        numbers = [x for x in one.given[1:] if isinstance(x, int) and not isinstance(x, bool)][:2]
        if one.name != "native_layer_norm":
            numbers = [shape[axis] for axis in numbers if -len(shape) <= axis < len(shape)]
        if len(shape) == 3 and numbers == [sizes["T"], shape[-1]]:
            raise mistake(
                "norm-over-words", shape=tuple(shape), sizes=" and ".join(map(str, numbers))
            )


def is_cut_without_transpose(
    before: tuple[int, ...], after: tuple[int, ...], sizes: dict[str, int]
) -> bool:
    """Whether numbers of all heads, (B, T, D) or (T, B, D), become those of each head in an order
    that mixes words or reviews.
    """
    B, T, H = sizes["B"], sizes["T"], sizes["H"]
    heads_first = after[:3] == (B, H, T) or after[:2] == (B * H, T)
    wrong = {(B, T): heads_first or after[:2] == (T, B * H), (T, B): heads_first}
    return len(before) == 3 and wrong.get(before[:2], False)


def require_axis(one: Softmax, sizes: dict[str, int]) -> None:
    """Raises Mistake if the softmax is over another axis than that of the keys."""
    shape = tuple(one.scores.shape)
    size = shape[one.axis]
    values: dict[str, Any] = {"shape": shape, "axis": one.axis}
    if size == 1:
        raise named("softmax-over-one", "of-softmax-over-one", **values)
    if size in (sizes["B"], sizes["B"] * sizes["H"]) and size != sizes["T"]:
        raise named("softmax-over-batch", "of-softmax-over-batch", **values)
    if size == sizes["H"] and len(shape) > 3:
        raise named("softmax-over-heads", "of-softmax-over-heads", **values)
    is_square = shape[-2:] == (sizes["T"], sizes["T"])
    if is_square and one.axis == len(shape) - 2 and not is_masked_along(one.scores.mT):
        raise named("softmax-over-queries", "of-softmax-over-queries", **values)


def is_masked_along(scores: Tensor) -> bool:
    """Whether the last axis is that of keys: some of them are masked for all queries."""
    hidden = scores < HIDDEN
    return bool(hidden.any() and (hidden == hidden.all(-2, keepdim=True)).all())


def require_once(one: Softmax, earlier: list[Softmax]) -> None:
    """Raises Mistake if the scores are weights of an earlier softmax."""
    for other in earlier:
        if other.weights.numel() == one.scores.numel():
            x, y = one.scores.flatten(), other.weights.flatten()
            is_word = (x > HIDDEN) & (x != 0)
            if is_word.any() and same(x[is_word], y[is_word]):
                raise named("softmax-applied-twice", "of-softmax-applied-twice", x[is_word])
    if one.is_log:
        raise named("log-softmax", "of-log-softmax", one.weights)


def require_mask(
    one: Softmax, sizes: dict[str, int], lengths: list[int], later: list[Operation]
) -> None:
    """Raises Mistake if other scores than those of padded keys are masked, or none."""
    count, length = sizes["B"], sizes["T"]
    square_BHTT = one.scores.shape[-2:] == (length, length) and one.scores.numel() % count == 0
    if not square_BHTT or min(lengths) == length or one.axis != one.scores.ndim - 1:
        return
    hidden = (one.scores < HIDDEN).reshape(count, -1, length, length)
    keys = torch.arange(length)
    n = torch.tensor(lengths)[:, None, None, None]
    is_word = keys < n
    queries = (keys[:, None] < n).expand(hidden.shape)

    def is_hidden(words: Tensor) -> bool:
        """Whether the keys that are no words are those that are masked, for queries that are."""
        wanted = ~words.expand(hidden.shape)
        return torch.equal(hidden[queries], wanted[queries])

    if not is_word.all() and is_hidden(is_word):
        return
    known = {
        "mask-inverted": ~is_word,
        "one-position-too-many": keys <= n,
        "one-position-too-few": keys < n - 1,
    }
    for finding, words in known.items():
        if is_hidden(words):
            raise named(finding, f"of-{finding}", one.weights)
    if torch.equal(hidden, ~is_word.mT.expand(hidden.shape)):
        raise named("queries-masked", "of-queries-masked", one.weights)
    if not hidden.any():
        weights = one.weights.reshape(hidden.shape)
        zeros = [weights.where(words, 0) for words in (is_word, queries)]
        results = [
            op.result.reshape(hidden.shape) for op in later if op.result.shape == one.weights.shape
        ]
        for after, finding in zip(zeros, ("mask-after-softmax", "queries-masked"), strict=True):
            if any(same(y, after, 1e-6) for y in results):
                raise named(finding, f"of-{finding}", after)
        require_hidden(one.scores.reshape(hidden.shape)[~is_word.expand(hidden.shape)], one)
    require_all_heads(hidden, ~is_word, one)
    others = [is_word.any(0, keepdim=True), is_word.all(0, keepdim=True), *is_word.split(1)]
    rows = hidden[:, :, :1].flatten(0, 2)
    is_of_others = (rows[:, None] == ~is_word.view(1, count, length)).all(-1).any(1).all()
    if is_of_others or any(is_hidden(words) for words in others):
        raise named("lengths-of-other-reviews", "of-lengths-of-other-reviews", one.weights)


def require_all_heads(hidden: Tensor, padded: Tensor, one: Softmax) -> None:
    """Raises Mistake if padded keys are masked in some of the heads only. hidden: (B, H, T, T)."""
    is_masked = [torch.equal(x, padded[:, 0].expand_as(x)) for x in hidden.unbind(1)]
    is_free = [not bool(x.any()) for x in hidden.unbind(1)]
    if any(is_masked) and any(is_free):
        heads = ", ".join(str(place) for place, free in enumerate(is_free) if free)
        raise named("no-key-mask", "of-some-heads", one.weights, heads=heads)


def require_hidden(padded: Tensor, one: Softmax) -> None:
    """Raises Mistake if nothing is masked. padded: the scores of padded keys."""
    if padded[0].abs() < -HIDDEN and same(padded, padded[:1].expand_as(padded)):
        raise named("mask-too-weak", "of-mask-too-weak", padded)
    if same(padded, padded[:1].expand_as(padded)):
        raise named("mask-inverted", "of-mask-inverted", one.weights)
    raise named("no-key-mask", "of-no-key-mask", one.weights)


def require_scale(one: Softmax, earlier: list[Operation], sizes: dict[str, int]) -> None:
    """Raises Mistake if products of queries and keys are not multiplied by 1 / sqrt(d)."""
    places = [n for n, op in enumerate(earlier) if op.name in ("bmm", "mm", "baddbmm")]
    if not places:
        return
    start = places[-1]
    *_, first, second = [x for x in earlier[start].given if isinstance(x, Tensor)]
    width, size = first.shape[-1], earlier[start].result.numel()
    if width == 1 or size != one.scores.numel():
        return
    is_word = one.scores > HIDDEN
    for op in earlier[start:]:
        if op.result.shape == one.scores.shape:
            x, y = op.result[is_word], one.scores[is_word]
            factor = float((x * y).sum() / x.square().sum().clamp(min=1e-30))
            if not same(factor * x, y):
                return
            break
    else:
        return
    numbers = [x for op in earlier for x in op.given if isinstance(x, float)]
    single = [x for op in earlier for x in op.given if isinstance(x, Tensor) and not x.ndim]
    roots = (width**0.5, width**-0.5, width**0.25, width**-0.25)
    known = [*numbers, *(float(x) for x in single)]
    if abs(factor - 1) < 1e-6:
        if not any(abs(number - root) < 1e-6 for number in known for root in roots):
            lengths = torch.cat([first.norm(dim=-1).flatten(), second.norm(dim=-2).flatten()])
            if same(lengths, torch.ones_like(lengths)):
                raise named("cosine-scores", "of-cosine-scores", width=width)
            raise named("no-scale", "of-no-scale", width=width)
    elif abs(factor - width**-0.5) > 1e-4:
        known_factors = {
            "multiplied by sqrt(d)": width**0.5,
            "divided by d, not by sqrt(d)": 1 / width,
            "divided by sqrt(D), D the width of all heads": (width * sizes["H"]) ** -0.5,
            "divided by sqrt(T), T words": sizes["T"] ** -0.5,
            "divided by T, the number of words": 1 / sizes["T"],
        }
        close = (what for what, x in known_factors.items() if abs(x - factor) < 1e-4)
        what = next(close, "multiplied by another number than 1 / sqrt(d)")
        values: dict[str, Any] = {"factor": f"{factor:.3g}", "right": f"{width**-0.5:.3g}"}
        raise named("wrong-scale", "of-wrong-scale", what=what, **values)
