"""Rules that hold for every module, whatever it computes: shape, same results, finite numbers, gradients, inputs.

Shape suffixes: B reviews, T positions, D width.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check.rules import (
    Mistake,
    Part,
    Rule,
    StudentError,
    accepts,
    build,
    differing,
    normal,
    same,
    show,
    student,
)

WIDTH = 8
VOCABULARY, VECTORS, CLASSES = 37, 16, 3  # of a Classifier: words, the width of their vectors, and classes
GAIN = (
    1.6  # of a Classifier; with 1, plain layers make the words of a review so similar that mistakes have small effects
)
EMPTY_FIX = "A softmax over keys that are all -inf is NaN: let such a row give 0, and divide by at least 1."
BATCH_FIX = "Use the mask, and mix no reviews: they are in dimension 0, positions in dimension 1."
OPTIONS: list[dict[str, Any]] = [{}, {"positions": "sinusoidal"}, {"cls": True}]
OPTIONS += [OPTIONS[1] | OPTIONS[2]]


def words(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, WIDTH, seed=seed)


def vectors_VD() -> Tensor:
    return normal(VOCABULARY, VECTORS)


def mask(*lengths: int, size: int | None = None) -> Tensor:
    """(B, T) bool, True on the words."""
    return torch.arange(size or max(lengths)) < torch.tensor(lengths)[:, None]


def inputs(part: Part, *lengths: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x and mask, or tokens and lengths for a Classifier. Padding is random."""
    if part.name != "Classifier":
        return words(len(lengths), max(lengths), seed=seed), mask(*lengths)
    tokens_N = (torch.arange(len(lengths) * max(lengths)) * 5 + 3 + seed) % VOCABULARY
    return tokens_N.view(len(lengths), max(lengths)), torch.tensor(lengths)


def module(part: Part, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Any:
    """The function masked_mean, or a module with random weights. vectors, options: of a Classifier."""
    if part.name == "masked_mean":
        return part.make
    arguments: tuple[Any, ...] = (WIDTH,)
    gain = 1.0
    if part.name == "Classifier":
        arguments, gain = (vectors_VD() if vectors is None else vectors, CLASSES), GAIN
    return build(part.make, *arguments, sample=inputs(part, 1), seed=seed, gain=gain, **options)


def modules(part: Part) -> Iterator[tuple[str, Any]]:
    """One for each implemented combination of the options of a Classifier, with their text."""
    for options in OPTIONS if part.name == "Classifier" else [{}]:
        if all(accepts(part.make, name) for name in options):
            try:
                made = module(part, **options)
            except StudentError as error:
                if isinstance(error.args[0], NotImplementedError) and options:
                    continue
                raise
            yield "".join(f"With {name}={value!r}: " for name, value in options.items()), made


def require_shape(value: Any, shape: tuple[int, ...], call: str, fix: str) -> None:
    """Raises Mistake unless value is a tensor of floating-point numbers with this shape."""
    if not isinstance(value, Tensor):
        raise Mistake("not-a-tensor", "The result is not a tensor.", f"{call} is a {type(value).__name__}.", fix)
    if tuple(value.shape) != shape:
        example = f"{call} has the shape {tuple(value.shape)}, not {shape}."
        raise Mistake("wrong-shape", "The result has the wrong shape.", example, fix)
    if not value.is_floating_point() or (value.dtype != torch.float64 == torch.get_default_dtype()):
        example = f"{call} has the type {value.dtype}."
        raise Mistake("wrong-dtype", "The result has the wrong type.", example, "Keep the type of the input.")


def shape(part: Part) -> None:
    """The result has the documented shape, also for one review and for one word."""
    net, last = module(part), {"masked_mean": (WIDTH,), "Classifier": (CLASSES,)}.get(part.name)
    for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
        text = f"For {reviews} reviews of {length} words, the result"
        y = student(net, *inputs(part, *[length] * reviews))
        expected = (reviews, *(last or (length, WIDTH)))
        require_shape(y, expected, text, f"{part.signature}; squeeze no dimension that may be 1.")


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    net = module(part)
    first, _, again = (student(net, *inputs(part, 3, 2, seed=seed)) for seed in (0, 1, 0))
    if not same(again, first, 1e-5):
        fix = "Make layers in __init__, not in forward, keep no results, and use nn.Dropout, which is off after eval()."
        sentence, example = "The same input gives another result each time.", "The same input gives {} and then {}."
        raise differing("random-in-evaluation", sentence, example, first, again, fix)


def unchanged(part: Part) -> None:
    """The input keeps its values."""
    given, net = inputs(part, 3, 0), module(part)
    student(lambda: net(*given))
    names = ("tokens", "lengths") if part.name == "Classifier" else ("x", "mask")
    for name, before, after in zip(names, inputs(part, 3, 0), given, strict=True):
        if not torch.equal(before, after):
            place = tuple((before != after).nonzero()[0].tolist())
            example = f"{name}{list(place)} was {show(before[place].item())} and is {show(after[place].item())} after."
            fix = "Write x = x + y instead of x += y, and masked_fill instead of masked_fill_."
            raise Mistake("changes-its-input", f"The call changes its argument {name}.", example, fix)


def batch(part: Part) -> None:
    """A review gives the same result alone, with padding, and in a batch with other reviews."""
    for text, net in modules(part):
        x, second = inputs(part, 4, 2, 1, 3)
        together = student(net, x, second)
        for row, length in enumerate((4, 2, 1, 3)):
            alone = student(net, x[row : row + 1, :length], inputs(part, length)[1])[0]
            padded, other = student(net, x[row : row + 1], second[row : row + 1])[0], together[row]
            padded, other = (y[:length] if alone.ndim == 2 else y for y in (padded, other))
            example = f"{text}a review of {length} gives {{}} alone and {{}} "
            if not same(padded, alone, 2e-3):
                example, sentence = (
                    f"{example}with {4 - length} more positions.",
                    "Padding changes the result of words.",
                )
                raise differing("depends-on-padding", sentence, example, alone, padded, BATCH_FIX)
            if not same(other, alone, 2e-3):
                example, sentence = f"{example}in a batch of 4.", "Other reviews of the batch change the result."
                raise differing("depends-on-batch", sentence, example, alone, other, BATCH_FIX)


def trained(net: Any, *given: Tensor) -> set[str]:
    """Names of the parameters that receive a gradient other than 0 from the squares of the result."""
    if (y := student(net, *given)).requires_grad:
        student(lambda: y.square().sum().backward())
    return {name for name, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}


def finite(part: Part) -> None:
    """Padding, and a review without words, have finite results and gradients."""
    for lengths in ((1, 2), (0, 2)):
        name, what = "nan-at-padding", "the padding after a review"
        if 0 in lengths:
            name, what = "nan-without-words", "a review without words"
        for text, net in modules(part):
            x, second = inputs(part, *lengths)
            y = student(net, x.requires_grad_() if x.is_floating_point() else x, second)
            if not bool(y.isfinite().all()):
                example = f"{text}for lengths {list(lengths)}: {show(y[~y.isfinite()][:2])}."
                raise Mistake(name, f"The result of {what} is not finite.", example, EMPTY_FIX)
            if y.requires_grad:
                student(lambda y=y: y.square().sum().backward())
            for key, variable in [("x", x), *(net.named_parameters() if isinstance(net, nn.Module) else ())]:
                if variable.grad is not None and not bool(variable.grad.isfinite().all()):
                    example = (
                        f"{text}for lengths {list(lengths)}, that of {key} is {show(variable.grad.flatten()[:3])}."
                    )
                    raise Mistake(name, f"The gradient of {what} is not finite.", example, EMPTY_FIX)


def gradients(part: Part) -> None:
    """Every layer is registered, and every parameter receives a gradient."""
    nets = [net for _, net in modules(part)]
    used = set().union(*(trained(net, *inputs(part, 3, 3, 3, 3)) for net in nets))  # CLS is unused without the option
    require_registered(nets[-1])
    without = [k for k, p in nets[0].named_parameters() if p.requires_grad and k not in used]
    without = [k for k in without if (p := nets[0].get_parameter(k)).grad is None or p.ndim > 1]  # a bias may have 0
    if without:
        fix = "Use the parameter in forward, without detach(), .data, .item() or torch.no_grad()."
        example = f"No gradient in {len(without)}: {', '.join(without[:4])}{', ...' * (len(without) > 4)}."
        raise Mistake("no-gradient", f"{len(without)} of the parameters are never trained.", example, fix)


def require_registered(net: nn.Module) -> None:
    """Raises Mistake for layers in a list or dict that parameters() does not include."""
    for child in net.modules():
        for key, value in vars(child).items():
            if key in vars(nn.Module()) or not isinstance(value, list | tuple | dict):
                continue
            hidden = [v for v in (value.values() if isinstance(value, dict) else value) if isinstance(v, nn.Module)]
            count = sum(p.numel() for h in hidden for p in h.parameters())
            if count and not set(hidden) <= set(net.modules()):
                example = f"self.{key} holds {len(hidden)} modules with {count} numbers; parameters() has "
                example += f"{sum(p.numel() for p in net.parameters())} others, and not these."
                sentence = f"Modules are kept in a Python {type(value).__name__}, so they are never trained."
                raise Mistake("layers-in-a-list", sentence, example, f"Write self.{key} = nn.ModuleList(...).")


def module_rules(reference: Callable[[Part], None]) -> list[Rule]:
    return [
        Rule("shape", shape),
        Rule("repeatable", repeatable),
        Rule("input-unchanged", unchanged),
        Rule("reference", reference, ("repeatable",)),
        Rule("batch", batch, ("repeatable", "reference")),
        Rule("finite", finite, ("reference", "input-unchanged")),
        Rule("gradients", gradients, ("reference", "input-unchanged")),
    ]
