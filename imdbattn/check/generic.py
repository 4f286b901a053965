"""Rules that hold for every part, whatever it computes: shape, same results, finite numbers, gradients, inputs."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check.core import (
    TABLES,
    Mistake,
    Names,
    Part,
    Rule,
    StudentError,
    Table,
    accepts,
    evaluate,
    mistake,
    normal,
    same,
    show,
    student,
)

WIDTH, HEADS, HIDDEN = 8, 2, 10
VOCABULARY, VECTORS, CLASSES = 37, 16, 3  # of a Classifier: words, the width of their vectors, and classes
GAIN = 1.6  # of a Classifier; with 1, plain layers make words so similar that mistakes have small effects
SIZES = {"1": 1, "D": WIDTH, "E": 6, "C": CLASSES}
MADE_WITH: dict[str, tuple[Any, ...]] = {
    "MultiHeadAttention": (WIDTH, HEADS),
    "AdditiveScore": (6, WIDTH, HIDDEN),
    "BilinearScore": (6, WIDTH),
}
MAY_RETURN_WEIGHTS = ("MultiHeadAttention", "scaled_dot_product_attention", "DecoderAttention")
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


def net_of(part: Part, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Any:
    """A function, or a module in evaluation mode with random parameters. vectors, options: of a Classifier."""
    if not inspect.isclass(part.make) and "(" not in part.signature.partition(":")[0]:
        return part.make
    gain, arguments = 1.0, MADE_WITH.get(part.name, (WIDTH,))
    if part.name == "Classifier":
        arguments, gain = (vectors_VD() if vectors is None else vectors, CLASSES), GAIN
    if part.name == "MultiHeadAttention" and "batch_first" in inspect.signature(part.make).parameters:
        options["batch_first"] = True
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    module = student(part.make, *arguments, **options)
    if not isinstance(module, nn.Module):
        raise mistake("not-a-module", type=type(module).__name__)
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


def require_shape(value: Any, right: tuple[int, ...], text: str, signature: str) -> None:
    """Raises Mistake unless value is a tensor of floating-point numbers with this shape."""
    if not isinstance(value, Tensor):
        raise mistake("not-a-tensor", text=text, type=type(value).__name__, signature=signature)
    if tuple(value.shape) != right:
        raise mistake("wrong-shape", text=text, shape=tuple(value.shape), right=right, signature=signature)
    if not value.is_floating_point() or (value.dtype != torch.float64 == torch.get_default_dtype()):
        raise mistake("wrong-dtype", text=text, dtype=value.dtype)


def shape(part: Part) -> None:
    """The result has the documented shape, also for one review and for one word."""
    net = net_of(part)
    for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
        sizes = SIZES | {"B": reviews, "T": length, "Q": length}
        right = tuple(sizes[letter] for letter in part.arguments[-1][1])
        y = call(part, net, *inputs(part, *[length] * reviews))
        require_shape(y, right, f"For {reviews} reviews of {length} words, the result", part.signature)


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    net = net_of(part)
    first, _, again = (call(part, net, *inputs(part, 3, 2, seed=seed)) for seed in (0, 1, 0))
    if not same(again, first, 1e-5):
        raise mistake("random-in-evaluation", first, again)


def unchanged(part: Part) -> None:
    """The input keeps its values."""
    given, net = inputs(part, 3, 0), net_of(part)
    student(lambda: net(*given[:-1], key_padding_mask=~given[-1]) if like_torch(part, net) else net(*given))
    for (name, _), before, after in zip(part.arguments, inputs(part, 3, 0), given, strict=False):
        if not torch.equal(before, after):
            place = tuple((before != after).nonzero()[0].tolist())
            values = {"before": show(before[place].item()), "after": show(after[place].item())}
            raise mistake("changes-its-input", name=name, place=list(place), **values)


def batch(part: Part) -> None:
    """A review gives the same result alone, with padding, and in a batch with other reviews."""
    *dimensions, (_, result) = part.arguments
    for text, net in nets(part):
        given = inputs(part, 4, 2, 1, 3)
        together = call(part, net, *given)
        for row, length in enumerate((4, 2, 1, 3)):
            one = [x[row : row + 1] for x in given]
            alone = call(part, net, *(cut(x, letters, length) for x, (_, letters) in zip(one, dimensions, strict=True)))
            values = {"text": text, "length": length, "more": 4 - length}
            if not same(padded := cut(call(part, net, *one), result, length), alone, 2e-3):
                raise mistake("depends-on-padding", alone, padded, **values)
            if not same(other := cut(together[row : row + 1], result, length), alone, 2e-3):
                raise mistake("depends-on-batch", alone, other, **values)


def trained(part: Part, net: Any, *given: Tensor) -> set[str]:
    """Names of the parameters that receive a gradient other than 0 from the squares of the result."""
    if (y := call(part, net, *given)).requires_grad:
        student(lambda: y.square().sum().backward())
    return {name for name, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}


def finite(part: Part) -> None:
    """Padding, and a review without words, have finite results and gradients."""
    for finding, lengths in (("nan-at-padding", (1, 2)), ("nan-without-words", (0, 2))):
        for text, net in nets(part):
            if 0 in lengths and like_torch(part, net):
                return  # torch's own gives NaN for it
            given = [x.requires_grad_() if x.is_floating_point() else x for x in inputs(part, *lengths)]
            y = call(part, net, *given)
            if y.requires_grad and bool(y.isfinite().all()):
                student(lambda y=y: y.square().sum().backward())
            named = [(name, x) for (name, _), x in zip(part.arguments, given, strict=False)]
            named += net.named_parameters() if isinstance(net, nn.Module) else []
            gradients = [("gradient", name, x.grad) for name, x in named if x.grad is not None]
            for what, name, values in [("result", "the result", y), *gradients]:
                if not bool(values.isfinite().all()):
                    numbers = show(values[~values.isfinite()][:2])
                    raise mistake(finding, text=text, what=what, name=name, numbers=numbers)


def gradients(part: Part) -> None:
    """Every layer is registered, and every parameter receives a gradient."""
    made = [net for _, net in nets(part)]
    used = set().union(*(trained(part, net, *inputs(part, 3, 3, 3, 3)) for net in made))  # CLS is unused without it
    for child in made[-1].modules():  # are there layers that parameters() does not include?
        for key, value in vars(child).items():
            if key not in vars(nn.Module()) and isinstance(value, list | tuple | dict):
                inside = value.values() if isinstance(value, dict) else value
                hidden = [v for v in inside if isinstance(v, nn.Module) and v not in set(made[-1].modules())]
                if count := sum(p.numel() for module in hidden for p in module.parameters()):
                    others = sum(p.numel() for p in made[-1].parameters())
                    values = {"type": type(value).__name__, "key": key, "count": len(hidden)}
                    raise mistake("layers-in-a-list", hidden=count, others=others, **values)
    without = [k for k, p in made[0].named_parameters() if p.requires_grad and k not in used]
    without = [k for k in without if (p := made[0].get_parameter(k)).grad is None or p.ndim > 1]  # a bias may have 0
    if without:
        names = ", ".join(without[:4]) + ", ..." * (len(without) > 4)
        raise mistake("no-gradient", count=len(without), names=names)


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


Binding = tuple[str, str, Callable[..., Names]]  # finding and sentence of a mistake, or "", and the names of a table


def diagnose(
    part: Part,
    call: Callable[..., Tensor],
    bindings: Iterable[Binding],
    batches: dict[str, Any],
    keep: Callable[..., Tensor] = lambda y, *given: y,
    table: Table | None = None,
    otherwise: str | None = "differs-from-reference",
) -> bool:
    """Whether the reference gives the results of call. Raises Mistake for the variant that gives them.

    bindings: any of them may be right, those with a finding are mistakes. batches: inputs by their description, the
    smallest first. keep: the results that the reference defines. otherwise: the finding if no variant does.
    """
    table, given = table or TABLES[part.name], [call(*inputs) for inputs in batches.values()]
    choices = [(name, text, [bind(*inputs) for inputs in batches.values()]) for name, text, bind in bindings]
    rights = [bound for name, _, bound in choices if not name]

    def equal(steps: dict[str, str], bound: list[Names], selected: bool = True) -> bool:
        for y, names, inputs in zip(given, bound, batches.values(), strict=True):
            z = evaluate(steps, names)
            if z is None or not (same(keep(z, *inputs), keep(y, *inputs)) if selected else same(z, y)):
                return False
        return True

    def first_difference(bound: list[Names]) -> tuple[str, tuple[Tensor, ...]] | None:
        for y, names, (text, inputs) in zip(given, bound, batches.items(), strict=True):
            z = evaluate(table.steps, names)
            if z is not None and not same(*(pair := (keep(y, *inputs), keep(z, *inputs)))):
                return text, pair
        return None

    if any(equal(table.steps, bound) for bound in rights):
        return True
    wrong = [(name, text, table.steps, bound) for name, text, bound in choices if name]
    wrong += [(name, text, table.steps | steps, bound) for name, text, steps in table.variants for bound in rights]
    for selected, (name, sentence, steps, bound) in itertools.product((False, True), wrong):
        if equal(steps, bound, selected):  # results for padding may tell which of two mistakes it is
            example = f"For {len(given)} inputs the result is that of this mistake."
            if found := first_difference(bound if steps != table.steps else [*rights, bound][0]):
                example = mistake("variant", *found[1], text=found[0]).args[2]
            raise Mistake(name, sentence, example, table.fix)
    if otherwise and rights:
        if "(B" in part.signature:
            batch(part)
        if found := first_difference(rights[0]):
            raise mistake(otherwise, *found[1], part=part.name, text=found[0], fix=table.fix)
    return False
