"""Rules of masked_mean.

Shape suffixes: B reviews, T positions, D width.
"""

import torch
from torch import Tensor

from imdbattn.check.rules import Mistake, Part, Rules, require_shape, same, show
from imdbattn.check.sequence import WIDTH, mask, require_unchanged, words

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
    found = float(mean(part, x_BTD, mask(2, size=3))[0, 0])
    example = f"The words 2 and 4, followed by padding of 30, give {found:.3g}; their mean is 3."
    fix = "(x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1), for mask (B, T)."
    mistakes = {
        12: ("padding-in-mean", "Padding is in the sum and in the number of words."),
        18: ("padding-in-mean", "Padding is in the sum."),
        2: ("divides-by-padded-length", "The sum is divided by the padded length, not by the number of words."),
        6: ("not-divided", "The result is the sum of the words, not divided by their number."),
        30: ("mask-inverted", "The mean is over the padding: the mask is True on words."),
    }
    for value, (name, sentence) in mistakes.items():
        if abs(found - value) < 1e-3:
            raise Mistake(name, sentence, example, fix)
    if not abs(found - 3) < 1e-3:
        raise Mistake("wrong-mean", "The result is not the mean of the words.", example, fix)


@RULES.add("zero-vector", "padding")
def zero_vector(part: Part) -> None:
    """A word whose vector is 0 counts as a word."""
    x_BTD = torch.zeros(1, 2, WIDTH)
    x_BTD[0, 0] = 2.0
    found = float(mean(part, x_BTD, mask(2))[0, 0])
    if not abs(found - 1) < 1e-3:
        example = f"The words 2 and 0 give {found:.3g}; their mean is 1."
        sentence = "A word whose vector is 0 is treated as padding."
        raise Mistake("zero-vector-as-padding", sentence, example, "Take the number of words from the mask.")


@RULES.add("batch", "padding")
def batch(part: Part) -> None:
    """A review gives the same result alone as in a batch with longer reviews."""
    x_BTD = words(3, 4)
    mean_BD = mean(part, x_BTD, mask(4, 2, 1))
    for row, length in enumerate((4, 2, 1)):
        alone_D = mean(part, x_BTD[row : row + 1, :length], mask(length))[0]
        if not same(mean_BD[row], alone_D):
            example = f"A review of {length} words gives {show(alone_D[:2])}... alone and {show(mean_BD[row, :2])}... "
            example += "in a batch with reviews of 4, 2 and 1 words."
            sentence = "Other reviews of the batch change the result."
            raise Mistake("depends-on-batch", sentence, example, "Divide by mask.sum(1, keepdim=True).")


@RULES.add("empty-review", "padding")
def empty_review(part: Part) -> None:
    """A review without words gives a finite mean and finite gradients."""
    x_BTD = words(2, 2).requires_grad_()
    mean_BD = mean(part, x_BTD, mask(0, 2))
    fix = "Divide by at least 1: mask.sum(1, keepdim=True).clamp(min=1)."
    if not bool(mean_BD.isfinite().all()):
        example = f"For lengths [0, 2] the mean of the first review is {show(mean_BD[0, :3])}..."
        raise Mistake("nan-without-words", "The mean of a review without words is not finite.", example, fix)
    mean_BD.sum().backward()
    if x_BTD.grad is None or not bool(x_BTD.grad.isfinite().all()):
        example = "The gradient of x is None." if x_BTD.grad is None else "For lengths [0, 2] the gradient has NaN."
        raise Mistake("nan-without-words", "The mean of a review without words has no finite gradient.", example, fix)


@RULES.add("input-unchanged")
def input_unchanged(part: Part) -> None:
    """The input keeps its values."""
    x_BTD, mask_BT = words(2, 3), mask(3, 2)
    part.make(given := x_BTD.clone(), given_mask := mask_BT.clone())
    require_unchanged((x_BTD, given, "x"), (mask_BT, given_mask, "mask"))
