"""The rules of each part, and the check of all parts of a file."""

import difflib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch

import imdbattn.tools.check.classifier as classifier
import imdbattn.tools.check.decoder as decoder
import imdbattn.tools.check.lab as lab
import imdbattn.tools.check.lengths as lengths
import imdbattn.tools.check.lines.search as lines
import imdbattn.tools.check.model as model
import imdbattn.tools.check.rules as rules
import imdbattn.tools.check.source as source
from imdbattn.errors import UserError
from imdbattn.tools.check.adapter import Adapter
from imdbattn.tools.check.instead import instead
from imdbattn.tools.check.numbers import Mistake, NotChecked, StudentError
from imdbattn.tools.check.part import HIDDEN, SIZES, Own, Part, net_of
from imdbattn.tools.check.references import agrees, reference
from imdbattn.tools.check.report import Message, result_of
from imdbattn.tools.check.running import Rule, explain, run
from imdbattn.tools.check.settling import is_given_a_mask, rank_of
from imdbattn.tools.check.settling import settle as settle_among
from imdbattn.tools.check.sheets import (
    OWN,
    Entry,
    Match,
    Sheet,
    choose,
    load,
    matches,
    meant,
    parameters_of,
)
from imdbattn.tools.check.tables import PARTS, SIGNATURES
from imdbattn.tools.check.trying import (
    in_either_type,
    layer_entry,
    layers_of,
    model_entry,
    models_of,
    unmatched,
)

FIRST = [
    Rule("shape", rules.shape),
    Rule("repeatable", rules.repeatable),
    Rule("input-unchanged", rules.unchanged),
]
RESULTS = [
    Rule("reference", reference, ("repeatable", "registered")),
    Rule("batch", rules.batch, ("repeatable", "registered", "reference")),
    Rule("finite", rules.finite, ("registered", "reference", "input-unchanged")),
]
REGISTERED = Rule("registered", rules.registered, ("repeatable", "input-unchanged"))
GRADIENTS = Rule("gradients", rules.gradients, ("registered", "reference", "input-unchanged"))
SLOPES = Rule("slopes", rules.slopes, ("reference", "input-unchanged", "gradients"))
FUNCTION = [*FIRST, *RESULTS, SLOPES]
MODULE = [*FIRST, REGISTERED, *RESULTS, GRADIENTS, SLOPES]
CLASSIFIER = [
    *FIRST,
    Rule("logits", classifier.returns_logits, ("repeatable",)),
    Rule("frozen-vectors", classifier.frozen_vectors),
    Rule("ids", classifier.ids, ("repeatable", "frozen-vectors")),
    Rule("mean", classifier.mean, ("ids", "repeatable")),
    Rule("order", classifier.order, ("ids", "repeatable", "mean")),
    Rule("layers", classifier.layers),
    Rule("registered", rules.registered),
    Rule(
        "gradients",
        rules.gradients,
        ("logits", "repeatable", "input-unchanged", "layers", "registered"),
    ),
    Rule(
        "positions", classifier.positions, ("repeatable", "order", "gradients"), option="positions"
    ),
    Rule("cls-trained", classifier.cls_trained, ("repeatable", "ids", "gradients"), option="cls"),
    Rule(
        "cls-read",
        classifier.cls_read,
        ("repeatable", "order", "gradients", "cls-trained"),
        option="cls",
    ),
    Rule("cls-key", classifier.cls_key, ("cls-read",), option="cls"),
    Rule(
        "batch",
        rules.batch,
        ("ids", "repeatable", "mean", "order", "positions", "cls-trained", "cls-read"),
    ),
    Rule("finite", rules.finite, ("batch", "input-unchanged")),
    Rule("slopes", rules.slopes, ("gradients", "frozen-vectors", "cls-trained", "cls-read")),
]


ONE = [Rule("reference", reference)]  # of functions of numbers, or of models
KINDS = {"Classifier": CLASSIFIER, "positional_encoding": ONE, "test_accuracy": ONE}
KINDS |= dict.fromkeys(("masked_mean", "masked_softmax", "scaled_dot_product_attention"), FUNCTION)
RULES = {name: KINDS.get(name, MODULE) for name in PARTS}


MODEL = [
    *FIRST,
    Rule("logits", classifier.returns_logits, ("repeatable",)),
    Rule("padding", model.padding, ("repeatable",)),
    Rule("attention", model.attention, ("repeatable", "padding")),
    Rule("mean", model.mean, ("repeatable", "padding")),
    Rule("vectors", model.vectors, ("repeatable", "padding")),
    Rule("words", model.words, ("repeatable", "logits", "padding", "mean")),
    Rule("layers", model.layers),
    Rule("registered", rules.registered),
    Rule("gradients", rules.gradients, ("logits", "layers", "registered", "padding", "mean")),
    Rule("positions", model.positions, ("repeatable",)),
    Rule("batch", rules.batch, ("repeatable", "logits", "padding", "mean", "positions")),
    Rule("finite", rules.finite, ("batch", "input-unchanged")),
]
FOR_ALL = [
    Rule("shape", decoder.logits_shape),
    Rule("repeatable", decoder.repeatable),
    Rule("registered", decoder.registered, ("repeatable",)),
    Rule("logits", decoder.returns_logits, ("repeatable",)),
    Rule("batch", decoder.batch, ("repeatable", "logits")),
    Rule("encoder", decoder.encoder, ("repeatable", "batch")),
    Rule("steps", decoder.steps, ("repeatable", "batch", "encoder")),
    Rule("state-carried", decoder.state_carried, ("repeatable", "steps", "encoder")),
]
CONTEXT = Rule("context", decoder.context, ("repeatable", "steps", "encoder", "state-carried"))
DECODER = [
    *FOR_ALL,
    CONTEXT,
    Rule("lengths", decoder.lengths, ("repeatable", "batch", "context")),
    Rule("query", decoder.query, ("repeatable", "context", "encoder")),
    Rule("state", decoder.carried, ("repeatable", "steps", "context", "state-carried")),
]
SEQ2SEQ = [
    *FOR_ALL,
    CONTEXT,
    Rule("layers-used", lab.layers_used, ("repeatable",)),
    Rule("context-used", lab.context_used, ("repeatable", "context")),
    Rule(
        "prediction",
        lab.prediction,
        ("steps", "encoder", "context", "state-carried", "layers-used"),
    ),
]
ENCODING = [
    *FIRST,
    Rule("trained", lengths.positions_trained),
    Rule("reference", reference, ("repeatable", "trained")),
    Rule("batch", rules.batch, ("repeatable", "reference")),
]
SHEET_RULES = {
    "Model": MODEL,
    "Decoder": DECODER,
    "Seq2Seq": SEQ2SEQ,
    "PositionalEncoding": ENCODING,
    "DecoderAttention": FUNCTION,  # the method of a model, whose other parameters it does not use
}
NEEDED = ("repeatable", "reference")
EXTRA = {  # that sheets may add, by name
    "lengths-of-queries": Rule("lengths-of-queries", lengths.of_queries, NEEDED),
    "no-lengths": Rule("no-lengths", lengths.none, NEEDED),
    "bilinear": Rule("bilinear", lab.bilinear, NEEDED),
    "attention-mask": Rule("attention-mask", lengths.attention_mask, NEEDED),
    "added-mask": Rule("added-mask", lengths.added_mask, NEEDED),
    "any-mask": Rule("any-mask", lengths.any_mask, NEEDED),
    "sizes": Rule("sizes", lengths.sizes, NEEDED),
}


def rules_of(part: Part) -> list[Rule]:
    """The rules of a part, with those that its sheet adds."""
    if not part.adapter:
        return RULES[part.name]
    return SHEET_RULES.get(part.kind, RULES.get(part.kind, MODULE)) + [
        EXTRA[name] for name in part.adapter.entry.also
    ]


def check(
    file: str, names: Mapping[str, str], sheet: str | None = None, line_seconds: float = 0
) -> Iterator[Message]:
    """Messages: {"parts": names of their checks, "near": names that other parts may have}, and
    those of running.run. sheet: its name; None for the one that the names in the file belong to.

    Then {"done": True}, or {"error": message} for a UserError; and last, for a wrong part, {"line":
    ...} if a line is found whose change makes the part right. line_seconds: processor time after
    which no line is looked for, counted from the start of the checks.
    """
    end = time.process_time() + line_seconds
    try:
        yield {"doing": ["file", "import"]}
        own = vars(source.load(file))
        page = sheet_of(own, names, sheet)
        parts = parts_of(page, own, file, names) if page else find(own, file, names)
    except UserError as error:
        yield {"error": str(error)}
        return
    except (Exception, SystemExit) as error:
        yield {"result": result_of("file", "import", False, *explain(error, "file", file))}
        yield {"done": True}
        return
    near = {} if page else similar(own, {part.name: part for part in parts}, names)
    yield {"near": near}
    wrong = yield from check_parts(parts, page, own, names)
    if page and (entry := model_entry(page)):
        for name, reason in unmatched(parts, own, entry, file):
            yield {"result": result_of(name, "sheet", None, None, f"It was not checked: {reason}.")}
    yield {"done": True}
    for place, one in enumerate(wrong):
        seconds = (end - time.process_time()) / (len(wrong) - place)
        if seconds > 0 and (line := lines.find(one, own, seconds)):
            yield {"line": {"part": one.part.name, **line._asdict()}}


def check_objects(things: Own, sheet: str | None = None) -> Iterator[Message]:
    """As check, for classes and functions of this process by their names. Raises UserError."""
    plain = {name: thing for name, thing in things.items() if name in PARTS}
    page = load(sheet) if sheet else choose(things, plain, anywhere=True)
    if page is None:
        parts = [Part(name, thing) for name, thing in plain.items()]
    else:
        parts = parts_of(page, things, "", {}, anywhere=True)
    taken = [part.make for part in parts]
    for name, thing in things.items():
        if not any(thing is one for one in taken):
            known = names_of(page) if page else PARTS
            raise UserError(
                f"{name} is none of {', '.join(known)}: write score(SelfAttention={name})"
            )
    yield from check_parts(parts, page, dict(things), {})


def names_of_rules(part: Part) -> list[str]:
    return [rule.name for rule in rules_of(part)]


def check_parts(
    parts: list[Part], page: Sheet | None, own: Own, names: Mapping[str, str]
) -> Generator[Message, None, list[lines.Wrong]]:
    """The messages of these parts. own: the names of the file, where wrong parts are replaced.
    Returns the wrong parts.
    """
    wrong: list[lines.Wrong] = []
    checks = {part.name: names_of_rules(part) for part in parts}
    yield {"parts": checks}
    if page:
        yield {"sheet": page.title, "expected": list({**dict.fromkeys(names_of(page)), **checks})}
    first = ["masked_softmax", "scaled_dot_product_attention", "MultiHeadAttention"]
    order = [*first, "MultiHeadSelfAttention", *SIGNATURES]  # what others use comes first
    for part in sorted(parts, key=lambda part: order.index(part.kind)) if page else parts:
        failed: list[str] = []
        part.others = [other for other in parts if other is not part]
        if part.adapter:
            yield {"doing": [part.name, "shape"]}
            settle(part)
            checks[part.name] = [rule.name for rule in rules_of(part)]
            yield {"parts": checks}
            for note in notes(part):
                yield {"result": result_of(part.name, "sheet", None, None, note)}
        for message in run(rules_of(part), part):
            yield message
            if message.get("result", {}).get("held") is False:
                failed.append(message["result"]["check"])
        if failed:
            wrong.append(lines.Wrong(part, rules_of(part), failed, torch.get_default_dtype()))
            # it is not found again in the parts that use it
            replace(own, part, names)
    return wrong


def replace(own: Own, part: Part, names: Mapping[str, str]) -> None:
    """Puts a right part in the place of a wrong one, under each of its names."""
    right = instead(part)
    if right is part.make:
        return
    own[names.get(part.name, part.name)] = right
    for name, thing in list(own.items()):
        if thing is part.make:
            own[name] = right


def sheet_of(own: Own, names: Mapping[str, str], sheet: str | None) -> Sheet | None:
    """The sheet of this name, or the one that the file is recognized as."""
    if sheet:
        return load(sheet)
    plain = {
        part: own[names.get(part, part)]
        for part in PARTS
        if callable(own.get(names.get(part, part)))
    }
    if names and not set(names) - set(PARTS):
        return None
    page = choose(own, plain)
    for other in () if plain else map(load, OWN):
        entry = model_entry(other)
        is_larger = page is None or {*names_of(page)} <= {one.name for one in other.entries}
        if entry and is_larger and page is not other:
            taken = [thing for _, _, thing in matches(page, own)] if page else []
            if any(models_of(own, taken, entry, "", anywhere=False)):
                return other
    for other in () if plain or page else map(load, OWN):
        entry = layer_entry(other)
        if entry and any(layers_of(own, entry, "", anywhere=False)):
            return other
    return page


def names_of(sheet: Sheet) -> list[str]:
    """The parts of a sheet that a report lists as absent: those with names of their own."""
    return [entry.name for entry in sheet.entries if not (entry.any_name or entry.optional)]


def parts_of(
    sheet: Sheet,
    own: Own,
    file: str,
    names: Mapping[str, str],
    anywhere: bool = False,
) -> list[Part]:
    """The parts of the sheet that the file has. Raises UserError if there is none."""
    for part, name in names.items():
        if not callable(own.get(name)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    named = {part: own[name] for part, name in names.items()}
    parts: dict[str, Part] = {}
    found = matches(sheet, named | own, anywhere)
    for entry, name, thing in with_those_tried(sheet, found, named | own, file, anywhere):
        shown = name if entry.any_name or entry.name in parts else entry.name
        adapter = Adapter(entry, entry.rules[0])
        if shown not in parts:
            parts[shown] = Part(shown, thing, file, own, entry.rules[0], adapter)
    if not parts:
        known = ", ".join(names_of(sheet))
        raise UserError(f"{file or 'it'} has none of {known}: --stub {sheet.name} prints them")
    return list(parts.values())


def with_those_tried(
    sheet: Sheet, found: list[Match], own: Own, file: str, anywhere: bool = False
) -> list[Match]:
    """What is found, with the classes that are models whatever their arguments' names are; layers
    under any name, if nothing is found.
    """
    found = [one for one in found if not is_base(*one, own, file)]
    entry = model_entry(sheet)
    if not found and (layer := layer_entry(sheet)):
        found = [(layer, name, own[name]) for name in layers_of(own, layer, file, anywhere)]
    if entry is None:
        return found
    layers = [thing for one, _, thing in found if one.any_name and one is not entry]
    taken = [thing for _, _, thing in found if not is_one_of(thing, layers)]
    names = list(models_of(own, taken, entry, file, anywhere))
    models = [own[name] for name in names]
    others = [one for one in found if not is_one_of(one[2], models)]
    return others + [(entry, name, own[name]) for name in names]


def is_base(entry: Entry, name: str, thing: Any, own: Own, file: str) -> bool:
    """Whether a class under any name cannot be called by itself, and another class of the file is
    derived from it.
    """
    classes = [one for one in own.values() if isinstance(one, type) and one is not thing]
    if not entry.any_name or not any(issubclass(one, thing) for one in classes):
        return False
    tried = [Part(name, thing, file, own, kind, Adapter(entry, kind)) for kind in entry.rules]
    return all(in_either_type(part) is None for part in tried)


def is_one_of(thing: object, things: Iterable[object]) -> bool:
    """Whether it is one of these objects itself; equality may be a student's own."""
    return any(thing is one for one in things)


def settle(part: Part) -> None:
    """Finds out as which kind, and in which way, the part is called."""
    adapter = part.adapter
    assert adapter is not None
    entry = adapter.entry
    called = part.make
    if isinstance(part.make, type):
        called = partial(getattr(part.make, entry.method or "forward"), None)
    candidates = []
    for kind in entry.rules:
        own = Adapter(entry, kind)
        own.masked = entry.masked and is_given_a_mask(entry, called)
        own.computed = adapter.computed  # the same for all kinds
        candidate = Part(part.name, part.make, part.file, part.own, kind, own)
        candidate.others = part.others
        candidates.append(candidate)
    if part.kind in ("Decoder", "Seq2Seq"):
        return
    made = [in_either_type(candidate) is not None for candidate in candidates]
    if part.kind == "scaled_dot_product_attention" and not entry.sizes:
        allow_equal_widths(candidates)
    if part.kind == "AdditiveAttention":
        try_equal_widths(candidates[0])
    is_callable = any(made) or any(in_either_type(one) is not None for one in candidates)
    if not is_callable and (user := user_of(part, must_run=not entry.any_name)):
        adapter.unchecked = f"It is called by {user} with other arguments, and is checked there."
        return
    tried: list[Callable[[Part], object]] = [rules.shape, rules.numbers, rules.padding]
    if part.kind in ("Model", "PositionalEncoding"):
        tried.append(rules.batch)
    if part.kind != "Model":
        tried += [agrees, reference]
    best = settle_among(candidates, entry, called, tried)
    vars(part).update(vars(best))


def user_of(part: Part, must_run: bool) -> str:
    """The name of another part of the file that has a module of this class; "" if there is none.

    must_run: whether only a part counts that can be called.
    """
    for other in part.others:
        if isinstance(other.make, type):
            with suppress(StudentError, NotChecked, Mistake):
                if not may_run(other) and must_run:
                    continue
                if any(type(module) is part.make for module in net_of(other).modules()):
                    return other.name
    return ""


def may_run(part: Part) -> bool:
    """Whether the part can be called; a decoder, too, whose result may be wrong."""
    if part.kind in ("Decoder", "Seq2Seq"):
        return rank_of(decoder.logits_shape, part) >= 0
    return in_either_type(part) is not None


def allow_equal_widths(candidates: list[Part]) -> None:
    """Values are as wide as keys, if the function raises an exception for others in every way."""
    for part in candidates:
        assert part.adapter is not None
        for way in part.adapter.entry.ways:
            part.adapter.way = way
            if rank_of(rules.shape, part) >= 0:
                return
    for part in candidates:
        assert part.adapter is not None
        part.adapter.widths = {"E": SIZES["D"]}


def try_equal_widths(part: Part) -> None:
    """Queries, keys, values and hidden units have the same width, if the class raises an exception
    for others, and has no arguments for the widths of queries and keys or a known mistake.
    """
    assert part.adapter is not None
    if rank_of(rules.shape, part) >= 0:
        return
    part.adapter.widths = dict.fromkeys("DEF", HIDDEN)
    if rank_of(rules.shape, part) < 3:
        part.adapter.widths = {}
        return
    wanted = part.adapter.entry.make
    asked = {wanted.get(meant(name, wanted) or "") for name in parameters_of(part.make)}
    if {"D", "E"} <= asked and rank_of(reference, part) != 2:
        part.adapter.widths = {}


def notes(part: Part) -> Iterator[str]:
    """What was found out about the part, if it could have been otherwise."""
    assert part.adapter is not None
    entry = part.adapter.entry
    if part.adapter.unchecked:
        return
    if part.adapter.way.says:
        yield f"Found: {part.adapter.way.says}."
    needs_mask = any(
        "mask" in v or "lengths" in v for w in entry.ways for v in w.arguments.values()
    )
    if entry.masked and needs_mask and not part.adapter.masked:
        yield "It is given no mask and no lengths: padding was not checked."
    if len(entry.rules) > 1:
        yield f"Checked as {part.kind}."


def similar(own: Own, checks: Mapping[str, object], names: Mapping[str, str]) -> dict[str, str]:
    """Parts that are absent -> names of classes and functions of the file that may be meant."""
    mine = [
        name
        for name, v in own.items()
        if callable(v) and getattr(v, "__module__", "") == "_checked_file"
    ]
    plain = {
        n.replace("_", "").lower(): n for n in mine if n not in PARTS and n not in names.values()
    }
    absent = [part for part in PARTS if part not in checks]
    found = {
        part: difflib.get_close_matches(part.replace("_", "").lower(), plain, 1, 0.75)
        for part in absent
    }
    near = {part: plain[names[0]] for part, names in found.items() if names}
    return {
        part: name
        for part, name in near.items()
        if isinstance(own[name], type) == part[0].isupper()
    }


def find(own: Own, file: str, names: Mapping[str, str]) -> list[Part]:
    """The parts in the order of PARTS. Raises UserError if one of the names, or every part, is
    missing.
    """
    for part, name in names.items():
        if not callable(own.get(name)):
            raise UserError(f"--name {part}={name}: {file} has no class or function {name}")
    makes = {part: own.get(names.get(part, part)) for part in PARTS}
    foreign = [
        p for p, make in makes.items() if str(getattr(make, "__module__", "")).startswith("torch")
    ]
    foreign = [p for p in foreign if not isinstance(makes[p], torch.jit.ScriptFunction)]
    makes = {
        p: make for p, make in makes.items() if callable(make) and (p in names or p not in foreign)
    }
    if not makes:
        raise UserError(
            f"{file} has none of {', '.join(PARTS)}: --stub prints a file with all of them"
        )
    return [Part(name, make, file, own) for name, make in makes.items()]
