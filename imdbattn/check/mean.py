"""Rules of masked_mean.

Shape suffixes: B reviews, T positions, D width.
"""

from functools import partial

import torch
from torch import Tensor

from imdbattn.check.rules import Mistake, Part, Rules, require_shape
from imdbattn.check.sequence import WIDTH, mask, require_finite, require_same_alone, require_unchanged, words

RULES = Rules()


def mean(part: Part, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Called with copies, as in rules.build."""
    return part.make(x_BTD.clone(), mask_BT.clone())


@RULES.add("shape")
def shape(part: Part) -> None:
    """(B, T, D) in, (B, D) out."""
    for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
        mean_BD = mean(part, words(reviews, length), mask(*[length] * reviews))
        call = f"For x of shape ({reviews}, {length}, {WIDTH}), the result"
        require_shape(mean_BD, (reviews, WIDTH), call, "Sum over dimension 1 only, without squeeze().")


@RULES.add("padding")
def padding(part: Part) -> None:
    """The mean is over the words, without the padding."""
    x_BTD = torch.zeros(1, 3, WIDTH)
    x_BTD[0, :, 0] = torch.tensor([2.0, 4.0, 30.0])
    result = float(mean(part, x_BTD, mask(2, size=3))[0, 0])
    example = f"The words 2 and 4, followed by padding of 30, give {result:.3g}; their mean is 3."
    fix = "(x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1), for mask (B, T)."
    mistakes = {
        12: ("padding-in-mean", "Padding is in the sum and in the number of words."),
        18: ("padding-in-mean", "Padding is in the sum."),
        2: ("divides-by-padded-length", "The sum is divided by the padded length, not by the number of words."),
        6: ("not-divided", "The result is the sum of the words, not divided by their number."),
        30: ("mask-inverted", "The mean is over the padding: the mask is True on words."),
    }
    for value, (name, sentence) in mistakes.items():
        if abs(result - value) < 1e-3:
            raise Mistake(name, sentence, example, fix)
    if not abs(result - 3) < 1e-3:
        raise Mistake("wrong-mean", "The result is not the mean of the words.", example, fix)


@RULES.add("zero-vector", "padding")
def zero_vector(part: Part) -> None:
    """A word whose vector is 0 counts as a word."""
    x_BTD = torch.zeros(1, 2, WIDTH)
    x_BTD[0, 0] = 2.0
    result = float(mean(part, x_BTD, mask(2))[0, 0])
    if not abs(result - 1) < 1e-3:
        example = f"The words 2 and 0 give {result:.3g}; their mean is 1."
        sentence = "A word whose vector is 0 is treated as padding."
        raise Mistake("zero-vector-as-padding", sentence, example, "Take the number of words from the mask.")


@RULES.add("batch", "padding")
def batch(part: Part) -> None:
    """A review gives the same result alone as in a batch with longer reviews."""
    require_same_alone(partial(mean, part), "Divide by mask.sum(1, keepdim=True).")


@RULES.add("empty-review", "padding")
def empty_review(part: Part) -> None:
    """A review without words gives a finite mean and finite gradients."""
    x_BTD = words(2, 2).requires_grad_()
    fix = "Divide by at least 1: mask.sum(1, keepdim=True).clamp(min=1)."
    require_finite(mean(part, x_BTD, mask(0, 2)), [("x", x_BTD)], "nan-without-words", "lengths [0, 2]", fix)


@RULES.add("input-unchanged")
def input_unchanged(part: Part) -> None:
    """The input keeps its values."""
    require_unchanged(part.make, x=words(2, 3), mask=mask(3, 2))
