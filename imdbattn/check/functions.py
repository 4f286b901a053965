"""References and variants of masked_mean, positional_encoding and test_accuracy.

Shape suffixes: B reviews, T positions, D width.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from imdbattn.check import generic
from imdbattn.check.generic import mask, words
from imdbattn.check.rules import Mistake, Part, Rule, diagnose, show, student

MEAN_FIX = "(x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1), for mask (B, T)."


def mean(x: Tensor, m: Tensor) -> Tensor:
    return (x * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1)


def count(x: Tensor) -> Tensor:
    return (x != 0).sum(1).clamp(min=1)


# Finding, sentence, and formula: x (B, T, D), mask m (B, T, 1), n (B, 1) words.
MEANS = [
    ("padding-in-mean", "Padding is in the sum and in the number of words.", lambda x, m, n: x.mean(1)),
    ("padding-in-mean", "Padding is in the sum.", lambda x, m, n: x.sum(1) / n),
    ("divides-by-padded-length", "The sum is divided by the padded length.", lambda x, m, n: (x * m).mean(1)),
    ("not-divided", "The result is the sum of the words, not divided by n.", lambda x, m, n: (x * m).sum(1)),
    ("divides-by-batch-size", "The sum is divided by the number of reviews.", lambda x, m, n: (x * m).sum(1) / len(x)),
    ("divides-by-batch-words", "It is divided by the words of all reviews.", lambda x, m, n: (x * m).sum(1) / n.sum()),
    ("divides-by-longest", "It is divided by the longest review's words.", lambda x, m, n: (x * m).sum(1) / n.max()),
    ("divides-by-too-much", "The sum is divided by n + 1.", lambda x, m, n: (x * m).sum(1) / (n + 1)),
    ("mask-inverted", "It is the mean of padding.", lambda x, m, n: (x * (1 - m)).sum(1) / (1 - m).sum(1).clamp(min=1)),
    ("zero-vector-as-padding", "0 is padding.", lambda x, m, n: (x * m).sum(1) / count((x * m).norm(dim=2)[..., None])),
    ("zero-vector-as-padding", "Numbers 0 are padding.", lambda x, m, n: (x * m).sum(1) / count(x * m)),
    ("maximum-not-mean", "It is the largest number.", lambda x, m, n: x.masked_fill(m == 0, -1e9).amax(1)),
]


def mean_reference(part: Part) -> None:
    """The result is the mean of the words, without the padding."""
    x_BTD = words(3, 4)
    x_BTD[0, 1], x_BTD[1, 0, 2] = 0, 0
    numbers = torch.zeros(1, 3, generic.WIDTH)
    numbers[0, :, 0] = torch.tensor([2.0, 4.0, 30.0])
    texts = "the words 2 and 4 and padding of 30 as the first numbers", "3 reviews of 4, 2 and 3 words"
    batches = dict(zip(texts, ((numbers, mask(2, size=3)), (x_BTD, mask(4, 2, 3))), strict=True))

    def variant(formula: Any, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        m = mask_BT[..., None].to(x_BTD.dtype)
        return formula(x_BTD, m, m.sum(1))

    table = [(name, text, partial(variant, formula), mean) for name, text, formula in MEANS]
    call = partial(student, part.make)
    if not diagnose(call, [mean], lambda: table, batches, MEAN_FIX):
        generic.batch(part)
        sentence, given = "The result differs from the mean of the words.", show(call(numbers, mask(2, size=3))[0, 0])
        example = f"The words 2 and 4, with padding of 30, give {given}; right is 3."
        raise Mistake("wrong-mean", sentence, example, MEAN_FIX)


MEAN_RULES = [
    Rule("shape", generic.shape),
    Rule("input-unchanged", generic.unchanged),
    Rule("reference", mean_reference),
    Rule("batch", generic.batch, ("reference",)),
    Rule("finite", generic.finite, ("reference",)),
]


def sinusoids(length: int, width: int, start: float = 0, base: float = 1e4, exponent: Any = None, **how: Any) -> Tensor:
    """pe[i, h] = sin(angle) in even columns h, cos(angle) in odd ones, angle = i / base ** exponent(h, d)."""
    i, h = torch.arange(length, dtype=torch.float64)[:, None] + start, torch.arange(width, dtype=torch.float64)
    exponent = exponent or (lambda h, d: h // 2 * 2 / d)
    angle = how.get("angle", lambda angle, i: angle)(i / base ** exponent(h, width), i)
    table = torch.where(h % 2 == 0, *how.get("waves", lambda a: (a.sin(), a.cos()))(angle))
    return how.get("after", lambda table: table)(table).to(torch.get_default_dtype())


POSITION_FIX = "pe[:, 0::2] = sin(angle) and pe[:, 1::2] = cos(angle), angle[i, k] = i / 10000 ** (2 * k / d)."
# Finding, sentence, and what is different in `sinusoids`.
POSITIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("sin-and-cos-swapped", "Even columns are cosines.", {"waves": lambda a: (a.cos(), a.sin())}),
    ("halves-not-interleaved", "Sines come first.", {"after": lambda pe: torch.cat([pe[:, ::2], pe[:, 1::2]], 1)}),
    ("positions-from-1", "The first position is 1, not 0.", {"start": 1}),
    ("wrong-exponent", "The exponent of 10000 is h / d for each column h.", {"exponent": lambda h, d: h / d}),
    ("wrong-exponent", "The exponent of 10000 is 2h / d for each column h.", {"exponent": lambda h, d: 2 * h / d}),
    ("wrong-exponent", "The exponent of 10000 is k / d, not 2k / d.", {"exponent": lambda h, d: h // 2 / d}),
    ("wrong-exponent", "The exponent of 10000 is 0: 2k // d is an integer.", {"exponent": lambda h, d: 0 * h}),
    ("wrong-exponent", "The exponent of 10000 is 4k / d, not 2k / d.", {"exponent": lambda h, d: h // 2 * 4 / d}),
    ("wrong-base", "The base is e ** 4: log10 is used instead of log.", {"base": 2.718281828459045**4}),
    *[("wrong-base", f"The base is {base}, not 10000.", {"base": base}) for base in (10, 100, 1000, 100000)],
    ("wrong-base", "The width in the exponent is d + 2.", {"exponent": lambda h, d: h // 2 * 2 / (d + 2)}),
    ("not-sin-and-cos", "All columns are sines.", {"waves": lambda a: (a.sin(), a.sin())}),
    ("degrees", "The angles are read as degrees.", {"angle": lambda a, i: torch.deg2rad(a)}),
    ("divided-by-length", "Positions are divided by the length.", {"angle": lambda a, i: a / len(i)}),
    ("first-row-only", "Only position 0 is written.", {"after": lambda pe: pe * (torch.arange(len(pe)) == 0)[:, None]}),
]


def encode(part: Part, length: int, width: int) -> Any:
    """In the type that is expected here: students may compute in float64 or float32."""
    value = student(part.make, length, width)
    real = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().to(torch.get_default_dtype()) if real else value


SIZES = ((1, 2), (2, 4), (5, 6), (30, 8))


def position_reference(part: Part) -> None:
    """Columns 2k and 2k + 1 are the sine and the cosine of i / 10000^(2k/d), i from 0."""
    for size in SIZES:
        generic.require_shape(encode(part, *size), size, f"positional_encoding{size}", "One row per position.")
    table = [(name, text, partial(sinusoids, **how), sinusoids) for name, text, how in POSITIONS]
    batches = {f"length {length} and width {width}": (length, width) for length, width in SIZES}
    if not diagnose(partial(encode, part), [sinusoids], lambda: table, batches, POSITION_FIX):
        given, right = encode(part, 5, 6), sinusoids(5, 6)
        row, column = max(((given - right).abs() > 1e-3).nonzero().tolist()[:1] or [[0, 0]])
        example = f"For d = 6, pe[{row}, {column}] is {given[row, column]:.4g}; right is {right[row, column]:.4g}."
        raise Mistake("wrong-wavelengths", "The table differs from the reference.", example, POSITION_FIX)


POSITION_RULES = [Rule("reference", position_reference)]

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


def share(*batches: Any, train: bool = False, predict: Any = None) -> float:
    """The share of right reviews."""
    tokens, labels = torch.tensor([review for batch in batches for review in batch]).unbind(1)
    logits = LOGITS[tokens].flip(1) if train else LOGITS[tokens]
    return float(((predict or (lambda y: y.argmax(1)))(logits) == labels).double().mean())


RIGHT = share(*TEST) * 11  # reviews
ACCURACIES = [
    ("accuracy-on-training", "The accuracy is that of the training reviews.", share(*TRAIN)),
    ("accuracy-on-both", "The accuracy is that of training and test reviews.", share(*TRAIN, *TEST)),
    ("not-in-evaluation-mode", "The model is in training mode, with dropout.", share(*TEST, train=True)),
    ("mean-of-batches", "Batches count the same, however many reviews they have.", sum(map(share, TEST)) / 3),
    ("one-batch-only", "Only the first batch counts.", share(TEST[0])),
    ("one-batch-only", "Only the right reviews of the first batch are counted.", share(TEST[0]) * 6 / 11),
    ("threshold-not-argmax", "The class is 1 if its logit is above 0.", share(*TEST, predict=lambda y: y[:, 1] > 0)),
    ("wrong-accuracy", "It is a percentage.", 100 * share(*TEST)),
    ("divides-by-batches", "The number of right reviews is divided by the number of batches.", RIGHT / 3),
    ("divides-by-last-batch", "The number of right reviews is divided by the size of the last batch.", RIGHT / 2),
]


def accuracy_reference(part: Part) -> None:
    """The accuracy is the share, from 0 to 1, of the test reviews that are right, in evaluation mode."""

    def call(train: Any, test: Any) -> Tensor:
        with torch.enable_grad():
            value = student(part.make, FirstWord().train(), train, test)
        return torch.tensor([student(float, value)])

    text = f"{len(TEST)} test batches, of 6, 3 and 2 reviews"
    (value,) = call(loader(*TRAIN), loader(*TEST))
    right = lambda *_: torch.tensor([share(*TEST)])  # noqa: E731
    table = [(name, sentence, lambda *_, v=v: torch.tensor([v]), right) for name, sentence, v in ACCURACIES]
    fix = "Call model.eval(), loop over test_loader, use argmax(1), and return correct / total."
    if not diagnose(call, [right], lambda: table, {text: (loader(*TRAIN), loader(*TEST))}, fix):
        example = f"For {text} the result is {value:.4g}; right is {share(*TEST):.4g}."
        raise Mistake("wrong-accuracy", "The result is not the share of correct test reviews.", example, fix)


ACCURACY_RULES = [Rule("reference", accuracy_reference)]
