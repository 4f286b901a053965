"""Rules that hold for every part, whatever it computes: shape, same results, finite numbers, gradients, inputs."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check.core import (
    Mistake,
    Part,
    Rule,
    StudentError,
    accepts,
    differing,
    normal,
    same,
    show,
    student,
)

WIDTH, HEADS, HIDDEN = 8, 2, 10
VOCABULARY, VECTORS, CLASSES = 37, 16, 3  # of a Classifier: words, the width of their vectors, and classes
GAIN = 1.6  # of a Classifier; with 1, plain layers make words so similar that mistakes have small effects
SIZES = {"1": 1, "D": WIDTH, "E": 6, "C": CLASSES}
MADE_WITH = {"MultiHeadAttention": (WIDTH, HEADS), "AdditiveScore": (6, WIDTH, HIDDEN), "BilinearScore": (6, WIDTH)}
MAY_RETURN_WEIGHTS = ("MultiHeadAttention", "scaled_dot_product_attention", "DecoderAttention")
EMPTY_FIX = "A softmax over keys that are all -inf is NaN: let such a row give 0, and divide by at least 1."
BATCH_FIX = "Use the mask, and mix no reviews: they are in dimension 0, positions in dimension 1."
OPTIONS: list[dict[str, Any]] = [{}, {"positions": "sinusoidal"}, {"cls": True}]
OPTIONS += [OPTIONS[1] | OPTIONS[2]]


def vectors_VD() -> Tensor:
    return normal(VOCABULARY, VECTORS)


def mask(*lengths: int, size: int | None = None) -> Tensor:
    """(B, T) bool, True on the words."""
    return torch.arange(size or max(lengths)) < torch.tensor(lengths)[:, None]


def inputs(part: Part, *lengths: int, seed: int = 0) -> list[Tensor]:
    """The arguments of a part for reviews of these lengths. Padding is random."""
    sizes = SIZES | {"B": len(lengths), "T": max(lengths), "Q": max(lengths)}
    made = []
    for place, (name, dimensions) in enumerate(part.arguments[:-1]):
        shape = [sizes[letter] for letter in dimensions]
        if name == "mask":
            made.append(mask(*lengths).view(shape))
        elif name.endswith("lengths"):
            made.append(torch.tensor(lengths))
        elif name == "tokens":
            made.append(((torch.arange(len(lengths) * max(lengths)) * 5 + 3 + seed) % VOCABULARY).view(shape))
        else:
            made.append(normal(*shape, seed=seed + 100 * place))
    return made


def net_of(part: Part, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Callable[..., Any]:
    """A function, or a module in evaluation mode with random parameters. vectors, options: of a Classifier."""
    if not inspect.isclass(part.make) and "(" not in part.signature.partition(":")[0]:
        return part.make
    arguments, gain = MADE_WITH.get(part.name, (WIDTH,)), 1.0
    if part.name == "Classifier":
        arguments, gain = (vectors_VD() if vectors is None else vectors, CLASSES), GAIN
    if part.name == "MultiHeadAttention" and "batch_first" in inspect.signature(part.make).parameters:
        options["batch_first"] = True
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    module = student(part.make, *arguments, **options)
    if not isinstance(module, nn.Module):
        example = f"The result of the call is of the type {type(module).__name__}."
        raise Mistake("not-a-module", "It is no torch.nn.Module.", example, "Derive the class from nn.Module.")
    if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        call(part, module, *inputs(part, 1))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
                parameter.normal_(std=gain * parameter.shape[-1] ** -0.5)
    return module.eval()


def nets(part: Part) -> Iterator[tuple[str, Any]]:
    """One for each implemented combination of the options of a Classifier, with their text."""
    for options in OPTIONS if part.name == "Classifier" else [{}]:
        if all(accepts(part.make, name) for name in options):
            try:
                made = net_of(part, **options)
            except StudentError as error:
                if isinstance(error.args[0], NotImplementedError) and options:
                    continue
                raise
            yield "".join(f"With {name}={value!r}: " for name, value in options.items()), made


def like_torch(part: Part, net: Any) -> bool:
    """Whether it is called as torch.nn.MultiheadAttention: the mask is key_padding_mask, True on padding."""
    return part.name == "MultiHeadAttention" and "key_padding_mask" in inspect.signature(net.forward).parameters


def call(part: Part, net: Callable[..., Any], *given: Tensor) -> Any:
    """The result for the documented arguments; without the weights that some parts may return, too."""
    if like_torch(part, net):
        return student(net, *given[:-1], key_padding_mask=~given[-1])[0]
    y = student(net, *given)
    return y[0] if isinstance(y, tuple) and y and part.name in MAY_RETURN_WEIGHTS else y


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value


def require_shape(value: Any, shape: tuple[int, ...], text: str, fix: str) -> None:
    """Raises Mistake unless value is a tensor of floating-point numbers with this shape."""
    if not isinstance(value, Tensor):
        raise Mistake("not-a-tensor", "The result is not a tensor.", f"{text} is a {type(value).__name__}.", fix)
    if tuple(value.shape) != shape:
        example = f"{text} has the shape {tuple(value.shape)}, not {shape}."
        raise Mistake("wrong-shape", "The result has the wrong shape.", example, fix)
    if not value.is_floating_point() or (value.dtype != torch.float64 == torch.get_default_dtype()):
        example = f"{text} has the type {value.dtype}."
        raise Mistake("wrong-dtype", "The result has the wrong type.", example, "Keep the type of the input.")


def shape(part: Part) -> None:
    """The result has the documented shape, also for one review and for one word."""
    net = net_of(part)
    for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
        sizes = SIZES | {"B": reviews, "T": length, "Q": length}
        expected = tuple(sizes[letter] for letter in part.arguments[-1][1])
        y = call(part, net, *inputs(part, *[length] * reviews))
        text = f"For {reviews} reviews of {length} words, the result"
        require_shape(y, expected, text, f"{part.signature}; squeeze no dimension that may be 1.")


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    net = net_of(part)
    first, _, again = (call(part, net, *inputs(part, 3, 2, seed=seed)) for seed in (0, 1, 0))
    if not same(again, first, 1e-5):
        fix = "Make layers in __init__, not in forward, keep no results, and use nn.Dropout, which is off after eval()."
        sentence, example = "The same input gives another result each time.", "The same input gives {} and then {}."
        raise differing("random-in-evaluation", sentence, example, first, again, fix)


def unchanged(part: Part) -> None:
    """The input keeps its values."""
    given, net = inputs(part, 3, 0), net_of(part)
    student(lambda: net(*given[:-1], key_padding_mask=~given[-1]) if like_torch(part, net) else net(*given))
    for (name, _), before, after in zip(part.arguments, inputs(part, 3, 0), given, strict=False):
        if not torch.equal(before, after):
            place = tuple((before != after).nonzero()[0].tolist())
            example = f"{name}{list(place)} was {show(before[place].item())} and is {show(after[place].item())} after."
            fix = "Write x = x + y instead of x += y, and masked_fill instead of masked_fill_."
            raise Mistake("changes-its-input", f"The call changes its argument {name}.", example, fix)


def batch(part: Part) -> None:
    """A review gives the same result alone, with padding, and in a batch with other reviews."""
    *dimensions, (_, result) = part.arguments
    for text, net in nets(part):
        given = inputs(part, 4, 2, 1, 3)
        together = call(part, net, *given)
        for row, length in enumerate((4, 2, 1, 3)):
            one = [x[row : row + 1] for x in given]
            short = [cut(x, letters, length) for x, (_, letters) in zip(one, dimensions, strict=True)]
            alone, padded = call(part, net, *short), cut(call(part, net, *one), result, length)
            example = f"{text}a review of {length} gives {{}} alone and {{}} "
            if not same(padded, alone, 2e-3):
                example += f"with {4 - length} more positions."
                raise differing(
                    "depends-on-padding", "Padding changes the result of words.", example, alone, padded, BATCH_FIX
                )
            if not same(other := cut(together[row : row + 1], result, length), alone, 2e-3):
                example, sentence = f"{example}in a batch of 4.", "Other reviews of the batch change the result."
                raise differing("depends-on-batch", sentence, example, alone, other, BATCH_FIX)


def trained(part: Part, net: Any, *given: Tensor) -> set[str]:
    """Names of the parameters that receive a gradient other than 0 from the squares of the result."""
    if (y := call(part, net, *given)).requires_grad:
        student(lambda: y.square().sum().backward())
    return {name for name, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}


def finite(part: Part) -> None:
    """Padding, and a review without words, have finite results and gradients."""
    for lengths in ((1, 2), (0, 2)):
        name, what = "nan-at-padding", "the padding after a review"
        if 0 in lengths:
            name, what = "nan-without-words", "a review without words"
        for text, net in nets(part):
            if 0 in lengths and like_torch(part, net):
                return  # torch's own gives NaN for it
            given = [x.requires_grad_() if x.is_floating_point() else x for x in inputs(part, *lengths)]
            y = call(part, net, *given)
            if not bool(y.isfinite().all()):
                example = f"{text}for lengths {list(lengths)}: {show(y[~y.isfinite()][:2])}."
                raise Mistake(name, f"The result of {what} is not finite.", example, EMPTY_FIX)
            if y.requires_grad:
                student(lambda y=y: y.square().sum().backward())
            named = [(key, x) for (key, _), x in zip(part.arguments, given, strict=False)]
            for key, variable in [*named, *(net.named_parameters() if isinstance(net, nn.Module) else ())]:
                if variable.grad is not None and not bool(variable.grad.isfinite().all()):
                    example = (
                        f"{text}for lengths {list(lengths)}, that of {key} is {show(variable.grad.flatten()[:3])}."
                    )
                    raise Mistake(name, f"The gradient of {what} is not finite.", example, EMPTY_FIX)


def gradients(part: Part) -> None:
    """Every layer is registered, and every parameter receives a gradient."""
    made = [net for _, net in nets(part)]
    used = set().union(*(trained(part, net, *inputs(part, 3, 3, 3, 3)) for net in made))  # CLS is unused without it
    require_registered(made[-1])
    without = [k for k, p in made[0].named_parameters() if p.requires_grad and k not in used]
    without = [k for k in without if (p := made[0].get_parameter(k)).grad is None or p.ndim > 1]  # a bias may have 0
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


def rules(reference: Callable[[Part], None], signature: str) -> list[Rule]:
    """The rules of a module; of a function; of a function of numbers or models, whose signature has no shapes."""
    if ": " not in signature:
        return [Rule("reference", reference)]
    found = [
        Rule("shape", shape),
        Rule("repeatable", repeatable),
        Rule("input-unchanged", unchanged),
        Rule("reference", reference, ("repeatable",)),
        Rule("batch", batch, ("repeatable", "reference")),
        Rule("finite", finite, ("reference", "input-unchanged")),
        Rule("gradients", gradients, ("reference", "input-unchanged")),
    ]
    return found if "(" in signature.partition(":")[0] else found[:-1]
