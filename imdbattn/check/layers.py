"""Rules of PlainLayer, x <- g(f(x)), and of ResidualLayer, x <- g(x + f(LN(x))); g is Linear and ReLU.

The paths are separated by derivatives at words that are all equal. There the attention weights have no effect: the
derivative of the first result by the first word, minus that by the second word, is the path of x around f, and the
derivative by the second word is the path through f. LayerNorm removes the mean: its derivative in the direction
(1, ..., 1) is 0.

Shape suffixes: B reviews, T positions, D width. A suffix 1 is a dimension of size 1.
"""

import torch
from torch import Tensor

from imdbattn.check.rules import Mistake, Part, Rules, build, same, show
from imdbattn.check.sequence import WIDTH, add_basics, add_behaviour, mask, words

PLAIN, RESIDUAL = Rules(), Rules()
ATTENTION = tuple(f"SelfAttention.{name}" for name in ("softmax-over-keys", "order", "key-mask", "batch"))


for layer_rules in (PLAIN, RESIDUAL):
    add_basics(layer_rules)


def paths(part: Part, seed: int, factor: float = 1) -> tuple[Tensor, Tensor]:
    """The derivatives (D, D) of the path around f and of that through f, at a random word times the factor."""
    module, x_11D = build(part.make, WIDTH, seed=seed), factor * words(1, 1, seed=seed)

    def first(x_1TD: Tensor) -> Tensor:
        return module(x_1TD, mask(2))[0, 0]

    jacobian = torch.autograd.functional.jacobian(first, x_11D.repeat(1, 2, 1))
    by_first_DD, by_second_DD = jacobian[:, 0, 0], jacobian[:, 0, 1]
    return by_first_DD - by_second_DD, by_second_DD


@PLAIN.add("padding", "mask-direction", *ATTENTION)
@RESIDUAL.add("padding", "mask-direction", *ATTENTION)
def padding(part: Part) -> None:
    """Padding does not change the results of words."""
    module, x_BTD = build(part.make, WIDTH), words(1, 3)
    alone, padded = module(x_BTD[:, :2], mask(2))[0], module(x_BTD, mask(2, size=3))[0, :2]
    if not same(alone, padded):
        example = f"Of 2 words, the first gives {show(alone[0, :3])}... without and {show(padded[0, :3])}... "
        example += "with one padding after them."
        raise Mistake("depends-on-padding", "Padding changes the results of words.", example, "Pass the mask to f.")


@PLAIN.add("g", "mask-direction")
@RESIDUAL.add("g", "mask-direction")
def g(part: Part) -> None:
    """The layer ends with a ReLU."""
    y_N = torch.cat([build(part.make, WIDTH, seed=seed)(words(2, 3), mask(3, 3)).flatten() for seed in range(4)])
    if bool((y_N < 0).any()):
        example = f"One result is {y_N.min().item():.3g}; ReLU gives 0 or more."
        around_DD = torch.stack([paths(part, seed)[0] for seed in range(4)])
        if same(around_DD, torch.eye(WIDTH).expand(4, -1, -1)):
            sentence = "x is added after g, not before: the layer is x + g(f(...))."
            raise Mistake("skip-around-g", sentence, example, "Return self.g(x + self.f(self.norm(x), mask)).")
        sentence = "The results are not those of a ReLU: some are negative."
        raise Mistake("no-relu", sentence, example, "g is nn.Linear(width, width) and nn.ReLU(), and the last step.")
    if not bool((y_N == 0).any()):
        example = f"The smallest of {len(y_N)} results is {y_N.min().item():.3g}; ReLU gives 0 for about half."
        raise Mistake("no-relu", "The results are not those of a ReLU: none is 0.", example, "Use nn.ReLU().")


@PLAIN.add("attention", "SelfAttention.softmax-over-keys")
@RESIDUAL.add("attention", "SelfAttention.softmax-over-keys")
def attention(part: Part) -> None:
    """Words have an effect on other words."""
    x_BTD, changed_BTD = words(1, 3), words(1, 3)
    changed_BTD[0, 1] = words(2, seed=1)[1]
    for module in (build(part.make, WIDTH, seed=seed) for seed in range(4)):
        y_BTD, other_BTD = module(x_BTD, mask(3)), module(changed_BTD, mask(3))
        if not same(y_BTD[0, ::2], other_BTD[0, ::2]):
            return
    example = f"In a review of 3 words, the first gives {show(y_BTD[0, 0, :2])}... whatever the second is."
    raise Mistake("no-attention", "Words have no effect on other words.", example, "f is SelfAttention.")


@PLAIN.add("no-skip", "attention", "g", "input-unchanged", *ATTENTION)
def no_skip(part: Part) -> None:
    """x enters through f only."""
    around_DD = torch.stack([paths(part, seed)[0].abs() for seed in range(4)]).sum(0)
    if not same(around_DD, torch.zeros(WIDTH, WIDTH)):
        example = f"At equal words the derivative around f is up to {around_DD.max().item():.3g}, not 0."
        sentence = "x is added to f(x); the plain layer has no skip connection."
        raise Mistake("skip-in-plain-layer", sentence, example, "Return self.g(self.f(x, mask)).")


@RESIDUAL.add("skip", "attention", "g", "input-unchanged", *ATTENTION)
def skip(part: Part) -> None:
    """x is on the skip connection without LayerNorm; its mean, which LayerNorm removes, has no effect through f."""
    both = [paths(part, seed) for seed in range(4)]
    around_ND, through_ND = (torch.cat([path_DD.sum(1) for path_DD in each]) for each in zip(*both, strict=True))
    zero_N = torch.zeros_like(around_ND)
    fix = "Return self.g(x + self.f(self.norm(x), mask))."
    if all(same(around_DD, torch.zeros(WIDTH, WIDTH)) for around_DD, _ in both):
        example = "The derivative of the path around f is 0 everywhere; with x it is that of g."
        raise Mistake("no-skip", "x is not added to f(LN(x)).", example, fix)
    around, through = (show(values.abs().max().item() / 1000) for values in (around_ND, through_ND))
    example = f"Adding 0.001 to all numbers of x changes the result by up to {around} around f and by up to {through} "
    example += "through f. LayerNorm makes it 0."
    around_normed, through_normed = same(around_ND, zero_N), same(through_ND, zero_N)
    if around_normed and through_normed:
        sentence = "LayerNorm is on the path of x around f: LN(x) is added to f(LN(x)), or LayerNorm is applied to "
        sentence += "x + f(LN(x))."
        raise Mistake("norm-on-skip", sentence, example, fix)
    if around_normed:
        sentence = "LayerNorm is not applied to the input of f: it is applied to x + f(x), or LN(x) is added to f(x)."
        raise Mistake("norm-after-sum", sentence, example, fix)
    if not through_normed:
        raise Mistake("no-norm", "LayerNorm is not applied to the input of f.", example, fix)
    for seed, (once_DD, _) in enumerate(both):
        tenfold_DD, _ = paths(part, seed, 10)
        active_D = once_DD.any(1) & tenfold_DD.any(1)  # rows where both results of the ReLU are above 0
        if not same(once_DD[active_D], tenfold_DD[active_D]):
            place = int(((once_DD - tenfold_DD).abs() * active_D[:, None]).argmax())
            once, tenfold = (show(path_DD.flatten()[place]) for path_DD in (once_DD, tenfold_DD))
            sentence = "x is not alone on the skip connection, as in x + LN(x) + f(LN(x)), or g is more than Linear "
            sentence += "and ReLU."
            example = f"A derivative around f is {once} at x and {tenfold} at 10 x; with x alone it is the same."
            raise Mistake("norm-on-skip", sentence, example, fix)


@RESIDUAL.add("linear-in-g", "skip")
def linear_in_g(part: Part) -> None:
    """g has a Linear before the ReLU."""
    around_ND = torch.cat([paths(part, seed)[0] for seed in range(4)])
    if same(around_ND.abs().sum(1) * (1 - around_ND.sum(1)), torch.zeros(len(around_ND))):
        example = "Where the result is above 0, its derivative by x is 1 for the same entry and 0 for all others."
        raise Mistake("no-linear-in-g", "g is a ReLU alone.", example, "g is nn.Linear(width, width) and nn.ReLU().")


for layer_rules in (PLAIN, RESIDUAL):
    add_behaviour(layer_rules, "padding")
