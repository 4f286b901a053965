"""Makes and calls what a sheet asks for as one of the parts that the rules know."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from imdbattn.tools.check.numbers import Mistake, NotChecked
from imdbattn.tools.check.sheets import (
    Entry,
    Way,
    agrees,
    arguments_of,
    evaluate,
    meant,
    parameters_of,
    unknown,
)
from imdbattn.tools.check.tables import SIGNATURES

if TYPE_CHECKING:
    from imdbattn.tools.check.part import Part

# Findings that do not say which mistake it is
GENERAL = (
    "depends-on-padding",
    "depends-on-batch",
    "differs-from-reference",
    "wrong-positions",
    "wrong-wavelengths",
    "wrong-mean",
    "nan-at-padding",
)


class Adapter:
    """An entry of a sheet for one class or function, called in one of its ways."""

    def __init__(self, entry: Entry, kind: str) -> None:
        self.entry, self.way = entry, entry.ways[0]
        call = SIGNATURES[kind].partition(": ")[2].partition(" ->")[0]
        self.given = re.findall(r"(\w+)(?:,|$| \()", re.sub(r"\([^)]*\)", "(", call))
        self.sizes: dict[str, int] = {}
        self.masked = entry.masked
        self.vectors_VD: Tensor | None = None  # given as vectors of the words instead of tokens
        self.settled = False  # whether the way is the solution's
        self.compared: dict[tuple[object, ...], str | Exception] = {}

    def build(self, make: Callable[..., Any], sizes: dict[str, int], **names: Any) -> Any:
        """The module that the sheet describes."""
        if self.entry.free and (other := unknown(make, self.entry.make)):
            raise NotChecked(f"It was not checked: it is not known what {other[0]} is.")
        asked = [
            self.entry.make.get(meant(k, self.entry.make) or "", "") for k in parameters_of(make)
        ]
        if "D // heads" in asked and not any(
            value == "heads" or "n_head" in value for value in asked
        ):
            sizes = sizes | {"heads": 1}  # the class is one head
        given, named = arguments_of(make, self.entry.make, sizes | names)
        module = make(*given, **named)
        is_model = self.given[:1] == ["tokens"] and isinstance(module, nn.Module)
        if is_model and not {"vectors", "vocabulary"} & {*asked}:
            self.vectors_VD = None if has_table(module) else names.get("vectors")
        if self.entry.sizes and isinstance(module, nn.Module):
            asked = [key for key, value in self.entry.make.items() if value == "classes"]
            is_asked = any(meant(name, asked) for name in parameters_of(make))
            classes = sizes["C"] if is_asked else class_count(module, sizes["C"])
            found = {"it": module, "hidden": hidden_size, "classes": classes}
            self.sizes = {k: evaluate(v, found) for k, v in self.entry.sizes.items()}
        return module

    def attach(self, module: nn.Module) -> None:
        """Lets the module be called as the part that the rules know."""
        called = getattr(module, self.entry.method or "forward")
        object.__setattr__(module, "forward", self.called(called))

    def called(self, called: Callable[..., Any]) -> Callable[..., Any]:
        given_names = parameters_of(called)

        def call(*values: Any, **more: Any) -> Any:
            names = dict(zip(self.given, values, strict=False)) | more
            complete(names)
            if self.vectors_VD is not None:
                names["tokens"] = self.vectors_VD[names["tokens"]]
            given, named = arguments_of(called, self.way.arguments, names)
            named |= {name: value for name, value in more.items() if name in given_names}
            y = called(*given, **named)
            if isinstance(y, tuple) and self.way.result == "y":
                y = y[0]
            return evaluate(self.way.result, names | {"y": y})

        return call


def complete(names: dict[str, Any]) -> None:
    """Adds the lengths that belong to a mask, or the mask that belongs to lengths."""
    if "mask" in names:
        mask = names["mask"]
        names["lengths"] = None if mask is None else mask.sum(-1)
        if mask is not None and mask.ndim == 3 and mask.shape[1] == 1:
            names["lengths"] = mask.sum(-1)[:, 0]
    elif "tokens" in names and "lengths" in names:
        places = torch.arange(names["tokens"].shape[1])
        names["mask"] = places < names["lengths"][:, None]


def has_table(module: nn.Module) -> bool:
    """Whether a model may look up the vectors of tokens itself."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    is_embedding = any(isinstance(child, nn.Embedding) for child in module.modules())
    return is_embedding or any(x.ndim == 2 for x in tensors)


def hidden_size(module: nn.Module) -> int:
    """That of the module's first recurrent layer."""
    for child in module.modules():
        if isinstance(child, nn.RNNBase | nn.RNNCellBase):
            return child.hidden_size
    raise NotChecked("It was not checked: the module has no recurrent layer.")


def class_count(module: nn.Module, classes: int) -> int:
    """2 for a model with a Linear of two outputs and none of so many classes, and else classes."""
    outputs = [child.out_features for child in module.modules() if isinstance(child, nn.Linear)]
    return 2 if 2 in outputs and classes not in outputs else classes


def rank_of(rule: Callable[["Part"], object], part: "Part") -> int:
    """3 if the rule holds, 2 for a known mistake, 1 if the rule does not apply.

    0 for another result, and -1 if the student's code or the checker raised an exception.
    """
    torch.default_generator.manual_seed(0)
    try:
        rule(part)
    except Mistake as mistake:
        return 0 if mistake.args[0] in GENERAL else 2
    except NotChecked as reason:
        return 3 if str(reason).startswith("Differs") else 1
    except Exception:
        return -1
    return 3


def settle(
    candidates: "list[Part]",
    entry: Entry,
    called: Callable[..., object],
    rules: list[Callable[["Part"], object]],
) -> "Part":
    """The candidate, with the way to call it, that most of the rules hold for, in their order.

    candidates: the same part for each kind that it may be. A rule is tried only for those ways that
    are the best by the rules before it. The last rule looks for known mistakes, which takes long
    for modules: it is tried only if the others do not decide, and with one way for each kind.
    """
    text = said(called, candidates[0].file, candidates[0].make)
    allowed = [way for way in entry.ways if is_allowed(way, text)] or entry.ways
    allowed = sorted(allowed, key=lambda way: not way.if_said)  # what the solution says, first
    ways = [way for way in allowed if agrees(called, way)]
    ways = ways or [way for way in allowed if may_be_called(called, way)] or allowed
    if is_for_padding(called):
        ways = [way for way in ways if is_given_padding(way)] or ways
    ways = [way for way in ways if is_as_others(way, called, candidates[0])] or ways
    left = [(part, way) for part in candidates for way in ways]
    ranks = [0]
    for rule in rules:
        if rule is rules[-1]:
            if max(ranks) == 3:
                break
            if entry.is_module and len(entry.ways) > 2:
                left = list({id(part): (part, way) for part, way in reversed(left)}.values())[::-1]
        if len(left) == 1:
            break
        ranks = []
        for part, way in left:
            adapter_of(part).way = way
            ranks.append(rank_of(rule, part))
            if rule is rules[-1] and ranks[-1] >= 2:  # the first kind with a known mistake
                break
        left = [one for one, rank in zip(left, ranks, strict=False) if rank == max(ranks)]
    part, way = left[0]
    adapter = adapter_of(part)
    adapter.way = way
    adapter.settled = True
    return part


def adapter_of(part: "Part") -> "Adapter":
    """The adapter of a part of a sheet."""
    assert part.adapter is not None
    return part.adapter


def said(called: object, file: str, made: object = None) -> str:
    """The names of the arguments, the docstrings and the lines of a function.

    made: the class of the method.
    """
    called = getattr(called, "func", called)
    docstrings = [getattr(thing, "__doc__", None) or "" for thing in (called, made)]
    texts = [*parameters_of(called), *docstrings, *comments(made, file)]
    code = getattr(called, "__code__", None)
    if code and Path(file).suffix == ".py":
        last = max(line for *_, line in code.co_lines() if line)
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        texts += lines[code.co_firstlineno - 1 : last]
    return "\n".join(re.sub(r"\w+ ?= ?True", "", text) for text in texts)


def comments(made: object, file: str) -> list[str]:
    """The comments in a class, or before it."""
    if not isinstance(made, type) or Path(file).suffix != ".py":
        return []
    try:
        lines, first = inspect.getsourcelines(made)
    except (OSError, TypeError):
        return []
    above = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[: first - 1]
    found = [line for line in lines if line.lstrip().startswith("#")]
    for line in reversed(above[2:]):
        if not line.startswith("#"):
            break
        found.append(line)
    return found


def is_allowed(way: Way, text: str) -> bool:
    """Whether the text of the solution allows this way to call it."""
    if way.unless_said and re.search(way.unless_said, text, re.IGNORECASE):
        return False
    return not way.if_said or bool(re.search(way.if_said, text, re.IGNORECASE))


def may_be_called(called: Callable[..., object], way: Way) -> bool:
    """Whether the function can be called with these arguments in their order."""
    return len(parameters_of(called)) >= len(way.arguments) >= len(unknown(called, ()))


def is_for_padding(called: Callable[..., object]) -> bool:
    """Whether an argument is a mask that is True on padding, by its name."""
    return any(re.search("pad", name) for name in parameters_of(called))


def is_given_padding(way: Way) -> bool:
    """Whether this way gives a mask that is True, or 1, on padding."""
    return any("~mask" in value and "torch.zeros" not in value for value in way.arguments.values())


def is_as_others(way: Way, called: Callable[..., object], part: "Part") -> bool:
    """Whether the mask is True on words, or on padding, as in the classes of the file that were
    settled before and have an argument of the same name.
    """
    names = [name for name in parameters_of(called) if "mask" in name]
    for other in part.others:
        if other.adapter is None or not other.adapter.settled or part.kind == "Model":
            continue
        forward = getattr(other.make, "forward", other.make)
        is_shared = any(name in parameters_of(forward) for name in names)
        if is_shared and is_given_padding(other.adapter.way) != is_given_padding(way):
            return False
    return True


def is_given_a_mask(entry: Entry, called: Callable[..., object]) -> bool:
    """Whether one of its arguments is a mask, or lengths; also if its arguments are not known."""
    given = parameters_of(called)
    for way in entry.ways:
        if any(meant(name, way.masks) for name in given):
            return True
    return any(not agrees(called, way) for way in entry.ways)
