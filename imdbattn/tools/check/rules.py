"""The student's part, calls of it, and the rules that hold for every part.

These are: shape, same results, finite numbers, registered weights, gradients, unchanged inputs.
"""

import inspect
import re
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from imdbattn.errors import in_line
from imdbattn.tools.check.report import result_of
from imdbattn.tools.check.tables import PARTS, describe

WIDTH, HEADS, HIDDEN, QUERY_WIDTH = 8, 2, 10, 6
# of a Classifier: words, the width of their vectors, and classes
VOCABULARY, VECTORS, CLASSES = 37, 16, 3
# of a Classifier; with 1, plain layers make words so similar that mistakes have small effects
GAIN = 1.6
SIZES = {"1": 1, "D": WIDTH, "E": QUERY_WIDTH, "C": CLASSES}
MADE_WITH = {
    "width": WIDTH,
    "heads": HEADS,
    "query_width": QUERY_WIDTH,
    "key_width": WIDTH,
    "hidden": HIDDEN,
}
MAY_RETURN_WEIGHTS = ("MultiHeadAttention", "scaled_dot_product_attention", "DecoderAttention")
# of a tensor, to find slopes; rounding affects small ones, and a ReLU large ones
STEPS = (1e-3, 1e-6, 1e-5, 1e-4)
OPTIONS: list[dict[str, Any]] = [{}, {"positions": "sinusoidal"}, {"cls": True}]
OPTIONS += [OPTIONS[1] | OPTIONS[2]]


class Mistake(Exception):
    """A rule does not hold. Has the finding, sentence, example and what to change."""


class NotChecked(Exception):
    """The rule does not apply to this solution. The message is the reason."""


class StudentError(Exception):
    """Holds an exception that the student's code raised."""


class Part:
    """A class or function of a file. own: all names of the file."""

    def __init__(
        self, name: str, make: Any, file: str = "", own: dict[str, Any] | None = None
    ) -> None:
        self.name, self.make, self.file = name, make, file
        self.own = getattr(make, "__globals__", {}) if own is None else own
        self.signature = PARTS[name]
        forward = getattr(make, "forward", None)
        given = (
            [*inspect.signature(forward).parameters][1:]
            if name == "MultiHeadAttention" and forward
            else []
        )
        if given and (len(given) < 3 or "mask" in given[1]):  # x, mask
            self.signature = PARTS["SelfAttention"].replace(
                "SelfAttention(width)", "MultiHeadAttention(width, heads)"
            )
        start, _, call = self.signature.partition(": ")
        # names of arguments; of a class
        self.made_with = re.findall(r"\w+", start)[1:] if "(" in start else None
        # Names of the arguments with their dimensions, and last the result's: [("mask", ["B",
        # "T"]), ...].
        self.arguments = [
            (argument, re.findall(r"\w", dimensions))
            for argument, dimensions in re.findall(r"(\w+|->) \(([^)]*)\)", call)
        ]

    def accepts(self, option: str) -> bool:
        given = inspect.signature(self.make).parameters
        return option in given or any(
            one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values()
        )


class Rule(NamedTuple):
    """test: raises Mistake; returns the sentence if the rule holds, or None for that of its
    docstring.
    """

    name: str
    test: Callable[[Part], str | None]
    needs: tuple[str, ...] = ()  # rules that must hold first
    option: str | None = None  # an argument without which the rule does not apply


def sentence(test: Callable[..., Any]) -> str:
    """Returns the first paragraph of a rule's docstring, on one line."""
    return " ".join(str(test.__doc__).partition("\n\n")[0].split())


def run(rules: list[Rule], part: Part) -> Iterator[dict[str, Any]]:
    """Messages: {"doing": [part, rule]} before each rule, and {"result": ...} afterwards.

    All rules need the first one, which is tried in float64 and then in float32.
    """
    failed: set[str] = set()
    torch.set_default_dtype(torch.float64)
    for rule in rules:
        yield {"doing": [part.name, rule.name]}
        found = attempt(rule, part, failed & {rules[0].name, *rule.needs})
        if rule == rules[0] and not found[0] and found[1] != "not-written-yet":
            torch.set_default_dtype(torch.float32)  # the file may use float32 whatever the input is
            found = attempt(rule, part, set())
        if found[0] is False or found[1] == "blocked":
            failed.add(rule.name)
        yield {"result": result_of(part.name, rule.name, *found)}


def attempt(rule: Rule, part: Part, failed: set[str]) -> tuple[Any, ...]:
    """What result_of is given. failed: rules that must hold before this one."""
    if rule.option and not part.accepts(rule.option):
        return (
            None,
            None,
            f"{rule.option} was not checked: {part.name} has no argument {rule.option}.",
        )
    if failed:
        return None, "blocked", f"Not checked before {' and '.join(sorted(failed))} hold."
    torch.default_generator.manual_seed(0)
    torch.set_grad_enabled(True)  # the file may have changed it
    try:
        return True, None, rule.test(part) or sentence(rule.test)
    except Mistake as mistake:
        return False, *mistake.args
    except NotChecked as error:
        return None, None, str(error)
    except StudentError as error:
        return False, *explain(error.args[0], part.name, part.file)
    except Exception as error:  # of the checker itself
        reason = (
            f"{rule.name} was not checked: the checker raised {type(error).__name__}:"
            f" {in_line(error)}."
        )
        return None, "not-checked", reason


def student(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of the student's code for copies of its arguments. Raises StudentError for every
    exception.
    """
    try:
        return call(*(a.clone() if isinstance(a, Tensor) else a for a in arguments), **options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        raise StudentError(error) from error


def explain(error: BaseException, part: str, file: str) -> list[str]:
    """The finding for an exception of the student's code."""
    values = {
        "part": part,
        "signature": PARTS.get(part),
        "message": f"{type(error).__name__}: {in_line(error)}",
    }
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"Line {f.lineno}{f.filename[len(file) :]}"
        for f in frames
        if file and f.filename.startswith(file)
    ]
    if isinstance(error, NotImplementedError):
        return describe("not-written-yet", **values)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return describe("too-much-memory", **values)
    if isinstance(error, TypeError) and not lines:
        return describe("wrong-signature", **values)
    where = [part, *lines][-1]
    fix = "Correct that line." if lines else "Correct the call that raises it."
    if isinstance(error, SystemExit):
        fix = 'Put code that ends Python under if __name__ == "__main__".'
    return describe("raises", where=where, fix=fix, **values)


# --- numbers --------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same in both default types."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(
        torch.get_default_dtype()
    )


def same(first: Tensor, second: Tensor, tolerance: float = 1e-3) -> bool:
    """Whether the numbers differ by at most the tolerance times the largest one. NaN equals NaN."""
    if first.shape != second.shape:
        return False
    size = second.nan_to_num(0, 0, 0).abs().max() if second.numel() else 0
    equal = (first == second) | (first != first) & (second != second)
    return bool((((first - second).abs() <= tolerance * size) | equal).all())


def show(values: Any, digits: int = 3) -> str:
    """Numbers as in [[0.7, 0.4], [0.3, 0.6]]."""
    if isinstance(values, list):
        return f"[{', '.join(show(value, digits) for value in values)}]"
    return f"{0 if abs(values) < 1e-12 else values:.{digits}g}"


def mistake(finding: str, *tensors: Tensor, **values: Any) -> Mistake:
    """The finding with the texts of findings.txt. tensors: shown from their first difference on,
    with enough digits.
    """
    flat = [x.detach().flatten().double() for x in tensors]
    start = 0
    if len(flat) > 1:
        start = (
            int(
                ((flat[0] - flat[1]).abs().nan_to_num(1) > 1e-4 * (1 + flat[1].abs()))
                .nonzero()[:1]
                .sum()
            )
            // 3
            * 3
        )
    shown = [[show(x[start : start + 3].tolist(), digits) for x in flat] for digits in range(3, 10)]
    numbers = next((row for row in shown if len(set(row)) == len(row)), shown[-1])
    return Mistake(*describe(finding, *numbers, **values))


def mask(*lengths: int, size: int | None = None) -> Tensor:
    """(B, T) bool, True on the words."""
    return torch.arange(size or max(lengths)) < torch.tensor(lengths)[:, None]


def vectors_VD() -> Tensor:
    return normal(VOCABULARY, VECTORS)


# --- calls of a part ------------------------------------------------------------------------------


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
            made.append(
                ((torch.arange(len(lengths) * max(lengths)) * 5 + 3 + seed) % VOCABULARY).view(
                    shape
                )
            )
        else:
            made.append(normal(*shape, seed=seed + 100 * place))
    return made


def net_of(part: Part, vectors: Tensor | None = None, seed: int = 0, **options: Any) -> Any:
    """A function, or a module in evaluation mode with random parameters. vectors, options: of a
    Classifier.
    """
    if part.made_with is None:
        return part.make
    gain, arguments = 1.0, list[Any](MADE_WITH.get(name) for name in part.made_with)
    if part.name == "Classifier":
        gain, arguments = GAIN, [vectors_VD() if vectors is None else vectors, CLASSES]
    if (
        part.name == "MultiHeadAttention"
        and "batch_first" in inspect.signature(part.make).parameters
    ):
        options["batch_first"] = True
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    module = student(part.make, *arguments, **options)
    if not isinstance(module, nn.Module):
        raise mistake("not-a-module", type=type(module).__name__)
    if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        call(part, module, *inputs(part, 1))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
            # the same with other options
            torch.default_generator.manual_seed(seed + zlib.crc32(name.encode()))
            nn.init.normal_(parameter, std=gain * (1, *parameter.squeeze().shape)[-1] ** -0.5)
    if like_torch(part, module):
        forward = module.forward
        module.forward = lambda *given: forward(*given[:-1], key_padding_mask=~given[-1])[0]
    return module.eval()


def like_torch(part: Part, net: Any) -> bool:
    """Whether it is called as torch.nn.MultiheadAttention, whose key_padding_mask is True on
    padding.
    """
    return (
        part.name == "MultiHeadAttention"
        and "key_padding_mask" in inspect.signature(type(net).forward).parameters
    )


def nets(part: Part) -> Iterator[tuple[str, Any]]:
    """One for each implemented combination of the options of a Classifier, with their text."""
    for options in OPTIONS if part.name == "Classifier" else [{}]:
        if all(map(part.accepts, options)):
            try:
                made = net_of(part, **options)
            except StudentError as error:
                if isinstance(error.args[0], NotImplementedError) and options:
                    continue
                raise
            yield "".join(f"With {name}={value!r}: " for name, value in options.items()), made


def call(part: Part, net: Callable[..., Any], *given: Any) -> Any:
    """The result for the documented arguments; without the weights that some parts may return,
    too.
    """
    y = student(net, *given)
    return y[0] if isinstance(y, tuple) and y and part.name in MAY_RETURN_WEIGHTS else y


class Recorder(TorchDispatchMode):
    """Keeps the tensors that each operation of torch makes, as they are then."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports dynamo, which takes seconds

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.made += [x.detach().clone() for x in tree_leaves(result) if isinstance(x, Tensor)]
        return result


def record(part: Part, net: Any, *given: Tensor) -> list[Tensor]:
    """The tensors that the operations of a call make, in their order."""
    with Recorder() as recorder:
        call(part, net, *given)
    return recorder.made


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value


# --- rules of every part --------------------------------------------------------------------------


def require_shape(value: Any, right: tuple[int, ...], text: str, part: Part) -> None:
    """Raises Mistake unless value is a tensor of floating-point numbers with this shape."""
    values = {"text": text, "signature": part.signature}
    if not isinstance(value, Tensor):
        raise mistake("not-a-tensor", type=type(value).__name__, **values)
    if tuple(value.shape) != right:
        raise mistake("wrong-shape", shape=tuple(value.shape), right=right, **values)
    if not value.is_floating_point() or (value.dtype != torch.float64 == torch.get_default_dtype()):
        raise mistake("wrong-dtype", dtype=value.dtype, **values)


def shape(part: Part) -> None:
    """The result has the documented shape, also for one review and for one word."""
    net = net_of(part)
    for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
        sizes = SIZES | {"B": reviews, "T": length, "Q": length}
        right = tuple(sizes[letter] for letter in part.arguments[-1][1])
        y = call(part, net, *inputs(part, *[length] * reviews))
        require_shape(y, right, f"For {reviews} reviews of {length} words, the result", part)
    given = [x[1:] for x in inputs(part, 3, 2, 1)]
    right = tuple((SIZES | {"B": 2, "T": 3, "Q": 3})[letter] for letter in part.arguments[-1][1])
    require_shape(
        call(part, net, *given),
        right,
        "For reviews of 2 words and 1 word with 3 positions, the result",
        part,
    )


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    net = net_of(part)
    first, _, again = (call(part, net, *inputs(part, 3, 2, seed=seed)) for seed in (0, 1, 0))
    if not same(again, first, 1e-5):
        raise mistake("random-in-evaluation", first, again)


def unchanged(part: Part) -> None:
    """The input keeps its values."""
    given, net = inputs(part, 3, 0), net_of(part)
    student(lambda: net(*given))
    for (name, _), before, after in zip(part.arguments, inputs(part, 3, 0), given, strict=False):
        if not torch.equal(before, after):
            raise mistake("changes-its-input", before, after, name=name)


def batch(part: Part) -> None:
    """A review gives the same result alone, with padding, and in a batch with other reviews."""
    *dimensions, (_, result) = part.arguments
    for text, net in nets(part):
        if part.name != "Classifier" and isinstance(net, nn.Module):
            for name, module in net.named_modules():
                if isinstance(module, nn.BatchNorm1d):
                    raise mistake("batch-norm", name=name)
        given = inputs(part, 4, 2, 1, 3)
        together = call(part, net, *given)
        for row, length in enumerate((4, 2, 1, 3)):
            one = [x[row : row + 1] for x in given]
            alone = call(
                part,
                net,
                *(cut(x, letters, length) for x, (_, letters) in zip(one, dimensions, strict=True)),
            )
            values = {"text": text, "length": length, "more": 4 - length}
            if not same(padded := cut(call(part, net, *one), result, length), alone, 2e-3):
                raise mistake("depends-on-padding", alone, padded, **values)
            if not same(other := cut(together[row : row + 1], result, length), alone, 2e-3):
                raise mistake("depends-on-batch", alone, other, **values)


def trained(part: Part, net: Any, *given: Tensor) -> set[str]:
    """Names of the parameters that receive a gradient other than 0 from the squares of the
    result.
    """
    if (y := call(part, net, *given)).requires_grad:
        student(lambda: y.square().sum().backward())
    return {name for name, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}


def finite(part: Part) -> None:
    """Padding, and a review without words, have finite results and gradients."""
    for finding, lengths in (("nan-at-padding", (1, 2)), ("nan-without-words", (0, 2))):
        for text, net in nets(part):
            if 0 in lengths and like_torch(part, net):
                return  # torch's own gives NaN for it
            given = [
                x.requires_grad_() if x.is_floating_point() else x for x in inputs(part, *lengths)
            ]
            y = call(part, net, *given)
            if y.requires_grad and bool(y.isfinite().all()):
                student(lambda y=y: y.square().sum().backward())
            named = [(name, x) for (name, _), x in zip(part.arguments, given, strict=False)]
            named += net.named_parameters() if isinstance(net, nn.Module) else []
            gradients = [
                ("gradient", f"the gradient of {name}", x.grad)
                for name, x in named
                if x.grad is not None
            ]
            for what, name, values in [("result", "the result", y), *gradients]:
                if not bool(values.isfinite().all()):
                    raise mistake(
                        finding, values[~values.isfinite()], text=text, what=what, name=name
                    )


def registered(part: Part) -> None:
    """Every layer and every weight is registered."""
    *_, (_, net) = nets(part)
    known = set(net.modules())
    for child in known:
        for key, value in vars(child).items():
            if key not in vars(nn.Module()) and isinstance(value, list | tuple | dict):
                inside = value.values() if isinstance(value, dict) else value
                hidden = [v for v in inside if isinstance(v, nn.Module) and v not in known]
                if count := sum(p.numel() for module in hidden for p in module.parameters()):
                    others = sum(p.numel() for p in net.parameters())
                    values = {"type": type(value).__name__, "key": key, "count": len(hidden)}
                    raise mistake("layers-in-a-list", hidden=count, others=others, **values)
    if part.name == "Classifier":  # its vectors and positions are no weights
        return
    given, others = inputs(part, 3, 2), dict(net_of(part, seed=1).named_buffers())
    before = call(part, net, *given)
    # Buffers that do not depend on the seed, such as positions or an identity, are constants.
    constants = [
        id(x) for name, x in net.named_buffers() if name in others and others[name].equal(x)
    ]
    ours = [child for child in net.modules() if not type(child).__module__.startswith("torch.")]
    for key, value in [
        one for c in ours for one in (*vars(c).items(), *c.named_buffers(recurse=False))
    ]:
        if not isinstance(value, Tensor) or id(value) in constants:
            continue
        if value.is_floating_point() and value.numel() >= WIDTH:
            value.data += 1  # a result that is only stored has no effect
            if not same(after := call(part, net, *given), before, 1e-5):
                raise mistake("not-registered", before, after, key=key, shape=tuple(value.shape))


def gradients(part: Part) -> None:
    """Every parameter receives a gradient."""
    made = [net for _, net in nets(part)]
    # CLS is unused without it
    used = set().union(*(trained(part, net, *inputs(part, 3, 3, 3, 3)) for net in made))
    unused = [(k, p) for k, p in made[0].named_parameters() if p.requires_grad and k not in used]
    # the gradient of a bias may be 0
    without = [k for k, p in unused if p.grad is None or p.ndim > 1]
    if without:
        names = ", ".join(without[:4]) + ", ..." * (len(without) > 4)
        raise mistake("no-gradient", count=len(without), names=names)


def slopes(part: Part) -> None:
    """Gradients are the slopes of the result: no step cuts them."""
    for text, net in nets(part):
        given = inputs(part, 3, 3)
        moved: list[Any] = [(name, x) for (name, _), x in zip(part.arguments, given, strict=False)]
        moved = [(name, [x.requires_grad_()]) for name, x in moved if x.is_floating_point()]
        own = (
            [(k, [p]) for k, p in net.named_parameters() if p.requires_grad]
            if isinstance(net, nn.Module)
            else []
        )
        if part.name == "Classifier":  # one by one would take long
            own = [("all parameters", [p for _, (p,) in own])]
        y = call(part, net, *given)
        weights = normal(*y.shape, seed=1)
        total = (y * weights).sum()
        for name, group in [*moved, *own]:
            directions = [
                normal(x.numel(), seed=place).view(x.shape) for place, x in enumerate(group)
            ]
            found = torch.zeros(())
            if y.requires_grad:
                gradients = torch.autograd.grad(total, group, retain_graph=True, allow_unused=True)
                found = sum(
                    (
                        (g * d).sum()
                        for g, d in zip(gradients, directions, strict=True)
                        if g is not None
                    ),
                    found,
                )
            for step in STEPS:
                results = []
                for move in (step, -2 * step):
                    shift(group, directions, move)
                    results.append((call(part, net, *given).detach() * weights).sum())
                shift(group, directions, step)  # as before
                slope = (results[0] - results[1]) / (2 * step)
                if (slope - found).abs() <= 0.02 * max(
                    slope.abs(), found.abs()
                ) + 1e-4 * total.abs():
                    break
            else:
                raise mistake("gradient-cut", found, slope, text=text, name=name)


def shift(tensors: list[Tensor], directions: list[Tensor], step: float) -> None:
    for x, direction in zip(tensors, directions, strict=True):
        x.data += step * direction
