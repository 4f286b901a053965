"""The rules of each part, and the check of all parts of a file."""

from collections.abc import Iterator, Mapping

import imdbattn.tools.check.classifier as classifier
import imdbattn.tools.check.decoder as decoder
import imdbattn.tools.check.lab as lab
import imdbattn.tools.check.lengths as lengths
import imdbattn.tools.check.model as model
import imdbattn.tools.check.rules as rules
import imdbattn.tools.check.source as source
from imdbattn.errors import UserError
from imdbattn.tools.check.in_file import find, names_of, parts_of, sheet_of, similar
from imdbattn.tools.check.instead import instead
from imdbattn.tools.check.part import Own, Part
from imdbattn.tools.check.references import reference
from imdbattn.tools.check.report import Message, result_of
from imdbattn.tools.check.running import Rule, explain, run
from imdbattn.tools.check.settling import notes, settle
from imdbattn.tools.check.sheets import (
    Sheet,
    choose,
    load,
)
from imdbattn.tools.check.tables import PARTS, SIGNATURES
from imdbattn.tools.check.trying import (
    model_entry,
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


def check(file: str, names: Mapping[str, str], sheet: str | None = None) -> Iterator[Message]:
    """Messages: {"parts": names of their checks, "near": names that other parts may have}, and
    those of running.run. sheet: its name; None for the one that the names in the file belong to.

    Last comes {"done": True}, or {"error": message} for a UserError.
    """
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
    yield from check_parts(parts, page, own, names)
    if page and (entry := model_entry(page)):
        for name, reason in unmatched(parts, own, entry, file):
            yield {"result": result_of(name, "sheet", None, None, f"It was not checked: {reason}.")}
    yield {"done": True}


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
) -> Iterator[Message]:
    """The messages of these parts. own: the names of the file, where wrong parts are replaced."""
    checks = {part.name: names_of_rules(part) for part in parts}
    yield {"parts": checks}
    if page:
        yield {"sheet": page.title, "expected": list({**dict.fromkeys(names_of(page)), **checks})}
    first = ["masked_softmax", "scaled_dot_product_attention", "MultiHeadAttention"]
    order = [*first, "MultiHeadSelfAttention", *SIGNATURES]  # what others use comes first
    for part in sorted(parts, key=lambda part: order.index(part.kind)) if page else parts:
        is_wrong = False
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
            is_wrong |= message.get("result", {}).get("held") is False
        if is_wrong:
            # it is not found again in the parts that use it
            replace(own, part, names)


def replace(own: Own, part: Part, names: Mapping[str, str]) -> None:
    """Puts a right part in the place of a wrong one, under each of its names."""
    right = instead(part)
    if right is part.make:
        return
    own[names.get(part.name, part.name)] = right
    for name, thing in list(own.items()):
        if thing is part.make:
            own[name] = right
