"""The student's part, calls of it, `diagnose`, which names a mistake, and the rules that hold for every part.

These are: shape, same results, finite numbers, gradients, unchanged inputs.
"""

import inspect
import itertools
import re
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.check.report import result_of
from imdbattn.errors import in_line

WIDTH, HEADS, HIDDEN = 8, 2, 10
VOCABULARY, VECTORS, CLASSES = 37, 16, 3  # of a Classifier: words, the width of their vectors, and classes
GAIN = 1.6  # of a Classifier; with 1, plain layers make words so similar that mistakes have small effects
SIZES = {"1": 1, "D": WIDTH, "E": 6, "C": CLASSES}
MADE_WITH = {"width": WIDTH, "heads": HEADS, "query_width": SIZES["E"], "key_width": WIDTH, "hidden": HIDDEN}
MAY_RETURN_WEIGHTS = ("MultiHeadAttention", "scaled_dot_product_attention", "DecoderAttention")
OPTIONS: list[dict[str, Any]] = [{}, {"positions": "sinusoidal"}, {"cls": True}]
OPTIONS += [OPTIONS[1] | OPTIONS[2]]


class Mistake(Exception):
    """A rule does not hold. Has the finding, sentence, example and fix of a result."""


class NotChecked(Exception):
    """The rule does not apply to this solution. The message is the reason."""


class StudentError(Exception):
    """Holds an exception that the student's code raised."""


class Part(NamedTuple):
    """A class or function of the student's file. signature: its line of PARTS. own: all of the file's names."""

    name: str
    make: Any
    signature: str
    file: str
    own: dict[str, Any]

    @property
    def arguments(self) -> list[tuple[str, list[str]]]:
        """Names of the arguments with their dimensions, and last the result's: [("mask", ["B", "T"]), ...]."""
        found = re.findall(r"(\w+|->) \(([^)]*)\)", self.signature.partition(": ")[2])
        return [(name, re.findall(r"\w", dimensions)) for name, dimensions in found]

    @property
    def made_with(self) -> list[str] | None:
        """Names of the arguments of a class; None for a function."""
        start = self.signature.partition(": ")[0]
        return re.findall(r"\w+", start.partition("(")[2]) if "(" in start else None


class Rule(NamedTuple):
    """test: raises Mistake; its docstring is the sentence if the rule holds. needs: rules that must hold first."""

    name: str
    test: Callable[[Part], None]
    needs: tuple[str, ...] = ()
    option: str | None = None  # an argument without which the rule does not apply


def run(rules: list[Rule], part: Part) -> Iterator[dict[str, Any]]:
    """Messages: {"doing": [part, rule]} before each rule, and {"result": ...} afterwards.

    All rules need the first one, which is tried in float64 and then in float32.
    """
    failed: set[str] = set()
    torch.set_default_dtype(torch.float64)
    for rule in rules:
        yield {"doing": [part.name, rule.name]}
        result = attempt(rule, part, failed & {rules[0].name, *rule.needs})
        if rule == rules[0] and not result["held"] and result["finding"] != "not-written-yet":
            torch.set_default_dtype(torch.float32)  # the file may use float32 whatever the input is
            result = attempt(rule, part, set())
        if result["held"] is False or result["finding"] == "blocked":
            failed.add(rule.name)
        yield {"result": result}


def accepts(make: Any, option: str) -> bool:
    given = inspect.signature(make).parameters
    return option in given or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())


def attempt(rule: Rule, part: Part, failed: set[str]) -> dict[str, Any]:
    """The result of the rule. failed: rules that must hold before this one."""
    result = partial(result_of, part.name, rule.name)
    if rule.option and not accepts(part.make, rule.option):
        return result(None, None, f"There are no checks of {rule.option}: {part.name} has no such argument.")
    if failed:
        return result(None, "blocked", f"Not checked before {' and '.join(sorted(failed))} hold.")
    torch.default_generator.manual_seed(0)
    try:
        rule.test(part)
    except Mistake as mistake:
        return result(False, *mistake.args)
    except NotChecked as error:
        return result(None, None, in_line(error))
    except StudentError as error:
        return result(False, *explain(error.args[0], part))
    except Exception as error:  # of the checker itself
        reason = f"{rule.name} was not checked: the checker raised {type(error).__name__}: {in_line(error)}."
        return result(None, "not-checked", reason)
    return result(True, None, in_line((rule.test.__doc__ or "").partition("\n")[0]))


def student(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of the student's code for copies of its arguments. Raises StudentError for every exception."""
    try:
        return call(*(a.clone() if isinstance(a, Tensor) else a for a in arguments), **options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        raise StudentError(error) from error


def explain(error: BaseException, part: Part) -> tuple[str, str, str, str]:
    """Finding, sentence, example and fix for an exception of the student's code."""
    if isinstance(error, NotImplementedError):
        return "not-written-yet", f"{part.name} is not written yet.", "", f"Write {part.signature}."
    message = f"{type(error).__name__}: {in_line(error)}"
    if isinstance(error, SystemExit):
        return "raises", "The file ends Python.", message, 'Put such code under if __name__ == "__main__".'
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        sentence = "A check needed more memory than the limit."
        return "too-much-memory", sentence, message, "Make no large tensors; --memory changes the limit."
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(f.lineno, f.filename[len(part.file) :]) for f in frames if part.file and f.filename.startswith(part.file)]
    if lines:
        return "raises", f"Line {lines[-1][0]}{lines[-1][1]} raises an exception.", message, "Correct that line."
    if isinstance(error, TypeError):
        sentence = f"{part.name} cannot be called as documented."
        return "wrong-signature", sentence, message, f"Its signature is {part.signature}."
    return "raises", f"{part.name} raises an exception.", message, "Correct the call that raises it."


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same in both default types."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.get_default_dtype())


def same(first: Tensor, second: Tensor, tolerance: float = 1e-3) -> bool:
    """Whether the numbers differ by at most the tolerance times the largest one. NaN equals NaN."""
    if first.shape != second.shape:
        return False
    size = second.nan_to_num(0, 0, 0).abs().max() if second.numel() else 0
    return bool(
        (((first - second).abs() <= tolerance * size) | (first == second) | (first != first) & (second != second)).all()
    )


def show(values: Any, digits: int = 3) -> str:
    """Numbers as in [[0.7, 0.4], [0.3, 0.6]]."""
    if isinstance(values, Tensor):
        values = values.detach().tolist()
    if isinstance(values, list):
        return f"[{', '.join(show(value, digits) for value in values)}]"
    return f"{0 if abs(values) < 1e-12 else values:.{digits}g}"


# --- findings and references ------------------------------------------------------------------------------------------


def read_findings() -> dict[str, list[str]]:
    """Name of a finding -> its sentence, example and fix."""
    blocks = Path(__file__).with_name("findings.txt").read_text().split("\n\n")[1:]
    return {block.split("\n")[0]: block.strip().split("\n")[1:] for block in blocks}


FINDINGS = read_findings()


def mistake(finding: str, *tensors: Tensor, **values: Any) -> Mistake:
    """The finding with the texts of findings.txt. tensors: shown from their first difference on, with enough digits."""
    flat = [x.detach().flatten() for x in tensors]
    start = 0
    if len(flat) > 1:
        start = int(((flat[0] - flat[1]).abs().nan_to_num(1) > 1e-4 * (1 + flat[1].abs())).nonzero()[:1].sum()) // 3 * 3
    shown = [[show(x[start : start + 3], digits) for x in flat] for digits in range(3, 10)]
    numbers = next((row for row in shown if len(set(row)) == len(row)), shown[-1])
    return Mistake(finding, *(text.format(*numbers, **values) for text in FINDINGS[finding]))


class Table(NamedTuple):
    """A reference and its variants, of references.txt. steps: name -> expression; the last one is the result."""

    fix: str
    steps: dict[str, str]
    variants: list[tuple[str, str, dict[str, str]]]  # finding, sentence, steps that are replaced


def read_tables() -> dict[str, Table]:
    found: dict[str, Table] = {}
    current: list[Table] = []
    for line in Path(__file__).with_name("references.txt").read_text().splitlines():
        if line.startswith("["):
            names, _, fix = line[1:].partition("]")
            current = [found.setdefault(name, Table(fix.strip(), {}, [])) for name in names.split()]
        elif line and line[0] != "#":
            *mistake, formula = line.split(" | ", 2)
            steps = dict(step.split(" = ", 1) for step in formula.split("; "))
            for table in current:
                table.variants.append((mistake[0], mistake[1], steps)) if mistake else table.steps.update(steps)
    return found


TABLES = read_tables()
Names = dict[str, Any]  # what the expressions of a table use
TOOLS: Names = {"torch": torch, "F": F, "inf": float("inf")}


def evaluate(steps: dict[str, str], names: Names) -> Tensor | None:
    """The result of the steps in their order; None if one cannot be computed for tensors of these shapes."""
    names = TOOLS | names
    try:
        for name, expression in steps.items():
            names[name] = eval(expression, names)
    except (RuntimeError, IndexError):
        return None
    return names[name]


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
    bound = [(name, text, [bind(*inputs) for inputs in batches.values()]) for name, text, bind in bindings]
    rights = [names for finding, _, names in bound if not finding]

    def difference(steps: dict[str, str], bound: list[Names], keep: Callable[..., Tensor] = keep) -> Any:
        """The first batch for which the steps give another result, with both results; None if there is none."""
        for (text, inputs), y, names in zip(batches.items(), given, bound, strict=True):
            z = evaluate(steps, names)
            if z is None or not same(z := keep(z, *inputs), y := keep(y, *inputs)):
                return text, y, z
        return None

    if any(difference(table.steps, names) is None for names in rights):
        return True
    wrong = [(finding, text, table.steps, names) for finding, text, names in bound if finding]
    wrong += [
        (finding, text, table.steps | steps, names) for finding, text, steps in table.variants for names in rights
    ]
    whole = lambda y, *_: y  # noqa: E731
    for kept, (name, sentence, steps, names) in itertools.product((whole, keep), wrong):
        if difference(steps, names, kept) is None:  # results for padding may tell which of two mistakes it is
            found = difference(table.steps, names if steps is not table.steps or not rights else rights[0])
            example = f"For {len(given)} inputs the result is that of this mistake."
            if found:
                example = mistake("variant", *found[1:], text=found[0]).args[2]
            raise Mistake(name, sentence, example, table.fix)
    if otherwise and rights:
        if "(B" in part.signature:
            batch(part)
        text, y, z = difference(table.steps, rights[0])
        raise mistake(otherwise, y, z, part=part.name, text=text, fix=table.fix)
    return False


# --- calls of a part --------------------------------------------------------------------------------------------------


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
    if part.made_with is None:
        return part.make
    if part.name == "Classifier":
        gain, arguments = GAIN, [vectors_VD() if vectors is None else vectors, CLASSES]
    else:
        gain, arguments = 1.0, [MADE_WITH[name] for name in part.made_with]
    if part.name == "MultiHeadAttention" and "batch_first" in inspect.signature(part.make).parameters:
        options["batch_first"] = True
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    module = student(part.make, *arguments, **options)
    if not isinstance(module, nn.Module):
        raise mistake("not-a-module", type=type(module).__name__)
    if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        call(part, module, *inputs(part, 1))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.ndim and parameter.is_floating_point():
            torch.default_generator.manual_seed(seed + zlib.crc32(name.encode()))  # the same with other options
            nn.init.normal_(parameter, std=gain * parameter.shape[-1] ** -0.5)
    if like_torch(part, module):
        forward = module.forward
        module.forward = lambda *given: forward(*given[:-1], key_padding_mask=~given[-1])[0]
    return module.eval()


def like_torch(part: Part, net: Any) -> bool:
    """Whether it is called as torch.nn.MultiheadAttention, whose key_padding_mask is True on padding."""
    return part.name == "MultiHeadAttention" and "key_padding_mask" in inspect.signature(type(net).forward).parameters


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


def call(part: Part, net: Callable[..., Any], *given: Tensor) -> Any:
    """The result for the documented arguments; without the weights that some parts may return, too."""
    y = student(net, *given)
    return y[0] if isinstance(y, tuple) and y and part.name in MAY_RETURN_WEIGHTS else y


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value


# --- rules of every part ----------------------------------------------------------------------------------------------


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
    student(lambda: net(*given))
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


def rules_of(reference: Callable[[Part], None], signature: str) -> list[Rule]:
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
