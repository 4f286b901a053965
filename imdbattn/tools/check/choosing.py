"""Chooses how a solution is called, as which kind of part it is checked, and in which type.

Each call of the sheet, as each of its kinds, is tried; the one for which most of the rules hold is
chosen.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import IntEnum

import torch

from imdbattn.tools.check import accuracy, attention, decoder, kinds, layers, model, rules
from imdbattn.tools.check.findings import Differs, Mistake, NotChecked
from imdbattn.tools.check.part import Kind, Part
from imdbattn.tools.check.sheets import parameters_of, unknown

KIND_CLASSES: dict[str, type[Kind]] = {  # a part comes before those that use it
    "masked_softmax": kinds.FormulaKind,
    "scaled_dot_product_attention": attention.DotProductKind,
    "MultiHeadAttention": attention.MultiHeadKind,
    "MultiHeadSelfAttention": attention.MultiHeadSelfKind,
    "CausalSelfAttention": attention.CausalKind,
    "SelfAttention": attention.AttentionKind,
    "masked_mean": kinds.MaskedMeanKind,
    "positional_encoding": kinds.PositionsKind,
    "PlainLayer": layers.LayerKind,
    "ResidualLayer": layers.LayerKind,
    "Classifier": model.ClassifierKind,
    "test_accuracy": accuracy.AccuracyKind,
    "AdditiveScore": attention.AdditiveKind,
    "BilinearScore": attention.BilinearKind,
    "DecoderAttention": attention.ContextKind,
    "AdditiveAttention": attention.AdditiveKind,
    "PositionalEncoding": kinds.EncodingKind,
    "Model": model.ModelKind,
    "Decoder": decoder.DecoderKind,
    "Seq2Seq": decoder.Seq2SeqKind,
}
KINDS: dict[str, Kind] = {name: make(name) for name, make in KIND_CLASSES.items()}

Test = Callable[[Part], object]
# Findings that do not say which mistake it is
UNSPECIFIC = ("depends-on-padding", "differs-from-reference", "mask-inverted")


class Agreement(IntEnum):
    """What a rule says about a part that is called in one way, as one kind."""

    RAISES = 1  # the student's code, or the checker, raises an exception
    NOT_CHECKED = 2  # the rule does not apply
    WRONG = 3  # the result is wrong, and the mistake is not known
    KNOWN_MISTAKE = 4
    HOLDS = 5


def choose_call(part: Part) -> Part:
    """Returns the part with the call, and as the kind, for which most of the rules hold. The
    default type becomes the one in which it can be called.

    Each rule is tried only for the calls that are the best by the rules before it. Known mistakes
    are looked for last, if no call gives the results of the formula.
    """
    candidates, shape = in_all_forms(part), part.kind.rules()[0].test
    for dtype in (torch.float64, torch.float32):  # it may use float32 whatever the input is
        torch.set_default_dtype(dtype)
        if any(agreement_of(shape, candidate) is Agreement.HOLDS for candidate in candidates):
            break
    last = rules.batch if part.kind.is_model else kinds.agrees
    agreement = Agreement.HOLDS
    for rule in (shape, rules.repeatable, last):
        if agreement is Agreement.HOLDS:
            enough = Agreement.HOLDS if rule is last else None
            agreement, candidates = best_by(rule, candidates, enough)
    if agreement is Agreement.WRONG and last is kinds.agrees:
        _, candidates = best_by(diagnosed, candidates, Agreement.KNOWN_MISTAKE)
    return candidates[0]


def best_by(
    rule: Test, parts: list[Part], enough: Agreement | None
) -> tuple[Agreement, list[Part]]:
    """Returns the best agreement, and the parts that have it. The first part that has enough, if it
    is given, ends the search.
    """
    if len(parts) == 1:
        return Agreement.HOLDS, parts
    found: dict[Agreement, list[Part]] = defaultdict(list)
    for part in parts:
        agreement = agreement_of(rule, part)
        found[agreement].append(part)
        if enough and agreement >= enough:
            break
    best = max(found)
    return best, found[best]


def in_all_forms(part: Part) -> list[Part]:
    """Returns the part as each of its kinds, with each call whose arguments it has."""
    entry, parameters = part.entry, parameters_of(part.called)
    forms = [form for form in entry.call_forms if not unknown(parameters, form.arguments)]
    forms = forms or entry.call_forms
    if any("pad" in name for name in parameters):
        forms = [form for form in forms if form.is_given_padding] or forms
    return [
        replace(part, kind=KINDS[name], call_form=form) for name in entry.kinds for form in forms
    ]


def diagnosed(part: Part) -> None:
    """The mistake is known."""
    raise part.comparison.finding()


def agreement_of(rule: Test, part: Part) -> Agreement:
    torch.default_generator.manual_seed(0)
    try:
        rule(part)
    except Mistake as mistake:
        return Agreement.WRONG if mistake.finding in UNSPECIFIC else Agreement.KNOWN_MISTAKE
    except Differs:
        return Agreement.HOLDS
    except NotChecked:
        return Agreement.NOT_CHECKED
    except Exception:
        return Agreement.RAISES
    return Agreement.HOLDS


def has_shape(part: Part) -> bool:
    """Returns whether the first rule, that of the shape, holds or does not apply."""
    return agreement_of(part.kind.rules()[0].test, part) in (Agreement.HOLDS, Agreement.NOT_CHECKED)


def notes(part: Part) -> Iterator[str]:
    """Yields what was chosen where the sheet allows several calls or kinds."""
    entry, form = part.entry, part.call_form
    if form.says and (part.is_masked or not form.masks):
        yield f"Found: {form.says}."
    if any(form.masks for form in entry.call_forms) and not part.is_masked:
        yield "It takes neither a mask nor lengths, so padding was not checked."
    if len(entry.kinds) > 1:
        yield f"Checked as {part.kind.name}."
