"""Groups finished runs into variants, names them, and selects the pairs to compare."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from imdbattn.errors import UserError
from imdbattn.report.finished_runs import FinishedRun, grouped
from imdbattn.settings.keys import (
    HARDWARE,
    NO_EFFECT,
    SOURCES,
    as_text,
    flat,
    hexdigest,
    within,
    without,
)

# Settings that the files of conf/model set: they belong to a rung, unless the command line has them
OF_RUNGS = (
    "model",
    "optim",
    "embedding_lr",
    "init",
    "patience",
    "data.extra",
    "data.word_dropout",
    "trainer.max_epochs",
    "trainer.gradient_clip_val",
)
# Overrides that short labels omit: the label begins with the model's name
NOT_IN_LABELS = ("experiment=", "model.name=", "model.after=")
IGNORED = ("seed", "task", "digest", "data.fold", *NO_EFFECT, *HARDWARE, *SOURCES)
# facts in metrics.json -> what differs if they do
FACTS = {
    "vectors": "the word vectors",
    "tokenizer": "the code of the tokenizer",
    "train_fingerprint": "the training reviews",
}


@dataclass
class Variant:
    """Runs that differ only in seed and hardware.

    overrides: those of all its runs that other variants do not have.
    """

    model: str
    overrides: list[str]
    runs: list[FinishedRun]
    label: str = ""

    @property
    def after(self) -> str | None:
        return self.runs[0].settings["model"].get("after")

    @property
    def owner(self) -> list[str]:
        """The folder that its runs were found in, with a colon; [] unless folders are compared."""
        owner = self.runs[0].owner
        return [f"{owner}:"] if owner else []


def variants(runs: Sequence[FinishedRun]) -> list[Variant]:
    """Groups the runs by all but seed and hardware; variants of a model are in the order of their
    overrides.

    A label is the model's name and the overrides whose values not all runs have: `residual
    layers=6`, `residual_pe score=Dot`. Where that is the same, whole names and the experiment are
    given, then the digest of `init`, at last their own.
    """
    common = {*shared_overrides(runs), *equal_settings(runs)}
    ladder = []
    for group in grouped(runs, lambda run: run.identity):
        own = [override for override in shared_overrides(group) if override not in common]
        by_seed = sorted(group, key=lambda run: run.metrics["seed"])
        ladder.append(Variant(group[0].model, own, by_seed))
    order = models_in_order(ladder)
    ladder.sort(key=lambda one: (order.index(one.model), list(map(sort_key, one.overrides))))
    for overrides_of in (
        shortened,
        attrgetter("overrides"),
        overrides_and_init,
        overrides_and_digest,
    ):
        times = Counter(variant.label for variant in ladder)
        for variant in ladder:
            if not variant.label or times[variant.label] > 1:
                variant.label = " ".join([*variant.owner, variant.model, *overrides_of(variant)])
    return ladder


def models_in_order(ladder: Sequence[Variant]) -> list[str]:
    """Returns the models, each after those that it extends, then by the number of parameters."""
    extended = {variant.model: variant.after for variant in ladder}
    parameters: dict[str, float] = {}
    for variant in ladder:
        own = variant.runs[0].metrics.get("parameters") or math.inf
        parameters[variant.model] = min(own, parameters.get(variant.model, math.inf))

    def place(model: str) -> tuple[int, float, str]:
        before: list[str] = []
        parent = extended[model]
        while parent is not None and parent not in before:  # a circle would have no end
            before.append(parent)
            parent = extended.get(parent)
        return len(before), parameters[model], model

    return sorted(extended, key=place)


# --- labels ---------------------------------------------------------------------------------------


def shortened(variant: Variant) -> list[str]:
    """Returns the overrides in short, without the experiment."""
    overrides = [
        override for override in variant.overrides if not override.startswith(NOT_IN_LABELS)
    ]
    short = list(map(in_short, overrides))
    times = Counter(override.partition("=")[0] for override in short)
    for index, override in enumerate(short):
        if times[override.partition("=")[0]] > 1:  # two settings of the same last name
            short[index] = overrides[index]
    return short


def overrides_and_init(variant: Variant) -> list[str]:
    """Returns the overrides, and the digest of `init` if the model starts from another."""
    digest = variant.runs[0].metrics.get("init_digest")
    return [*variant.overrides, *([f"init={digest}"] if digest else [])]


def overrides_and_digest(variant: Variant) -> list[str]:
    """Returns the overrides, and a digest that no other variant has."""
    return [*variant.overrides, f"#{hexdigest({'': variant.runs[0].identity})}"]


def shared_overrides(runs: Sequence[FinishedRun]) -> list[str]:
    """Returns the overrides that all runs have."""
    return sorted(set.intersection(*(set(run.overrides) for run in runs)))


def equal_settings(runs: Sequence[FinishedRun]) -> set[str]:
    """Returns the overrides of any run whose settings have the same value in all runs, such as
    `trainer.max_epochs=3` where an experiment sets it for the others.
    """
    every = [flat(run.settings) for run in runs]
    overrides = {override for run in runs for override in run.overrides}
    equal = set()
    for override in overrides:
        setting = override.partition("=")[0]
        if all(
            setting in settings and settings[setting] == every[0].get(setting) for settings in every
        ):
            equal.add(override)
    return equal


def in_short(override: str) -> str:
    """Returns `lr=0.003` for `optim.lr=0.003`; classes and paths are cut to their last part."""
    setting, _, value = override.partition("=")
    if setting.endswith("._target_"):
        setting = setting.removesuffix("._target_")
        _, _, value = value.rpartition(".")
    elif not value.startswith("["):
        value = value.rstrip("/").rpartition("/")[2]
    return f"{setting.rpartition('.')[2]}={value}"


def sort_key(override: str) -> tuple[str, list[float], str]:
    """Returns the setting, then the numbers in its value."""
    setting, _, value = override.partition("=")
    return setting, list(map(float, re.findall(r"\d+\.?\d*(?:e-?\d+)?", value))), value


# --- pairs ----------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Indices (from, to) of the variants to compare, and sentences on what else pairs differ in, or
    why a variant is compared with none.
    """

    pairs: list[tuple[int, int]]
    remarks: list[str]


def neighbours(ladder: Sequence[Variant], against: str | None = None) -> Pairs:
    """Returns the pairs to compare: [(0, 1), (1, 2)] for mean, base and residual, which extends
    base.

    The first variant of a rung is compared with the rung that it extends (`model.after`), or, if
    that is absent, with the one before it, unless `after` is null. Of several variants of that
    rung, the one that differs least is chosen. The two may differ only in settings that rungs set
    themselves (OF_RUNGS); a sentence names those that the command line changed. Further variants of
    a rung are compared with its first variant, and with the variant of the rung they extend that
    has equal overrides.

    against: the variant that all others are compared with instead, if it is in the ladder
        (`find_variant`).
    """
    if against is not None and (chosen := find_variant(ladder, against)) is not None:
        return Pairs([(chosen, to) for to in range(len(ladder)) if to != chosen], [])
    models = [variant.model for variant in ladder]
    pairs = []
    remarks = []
    for index, to in enumerate(ladder):
        candidates = [i for i, model in enumerate(models) if model == to.after]
        first = models.index(to.model)
        if first < index:
            equal = [i for i in candidates if ladder[i].overrides == to.overrides]
            sources = [i for i in equal if not differences(to, ladder[i]).others][:1]
            pairs += [(i, index) for i in (*sources, first)]
            continue
        if to.after is None or (not candidates and index == 0):
            continue
        if not candidates:
            candidates = [i for i, model in enumerate(models) if model == models[index - 1]]
        by_candidate = {i: differences(to, ladder[i]) for i in candidates}
        # those with the fewest other differences, then with the fewest of rungs
        counts = {i: (len(one.others), len(one.of_rungs)) for i, one in by_candidate.items()}
        nearest = min(counts, key=counts.__getitem__)
        of_rungs, others = by_candidate[nearest]
        if others:
            remarks.append(omission(to, ladder[nearest], others))
            continue
        pairs.append((nearest, index))
        if of_rungs:
            also = " and ".join(of_rungs)
            remarks.append(f"{to.label} and {ladder[nearest].label} also differ in {also}.")
    return Pairs(pairs, remarks)


def find_variant(ladder: Sequence[Variant], name: str) -> int | None:
    """Returns the index of the variant with this label, or else of the only one of this model;
    None if there is neither. Raises UserError if the model has several variants.
    """
    labels = [variant.label for variant in ladder]
    if name in labels:
        return labels.index(name)
    of_model = [index for index, variant in enumerate(ladder) if variant.model == name]
    if len(of_model) > 1:
        listed = ", ".join(f'"{labels[index]}"' for index in of_model)
        raise UserError(f"against={name} has several variants; choose one of {listed}")
    return of_model[0] if of_model else None


class Differences(NamedTuple):
    """In what two variants differ: settings that rungs set themselves and that the command line of
    one of them has, and all others, such as `data.tokenizer (ptb, not basic_english)`.
    """

    of_rungs: list[str]
    others: list[str]


def differences(new: Variant, old: Variant) -> Differences:
    """Returns how `old` differs from `new` beside its rung: `optim.lr (0.001, not 0.003)` if the
    command line of `new` has optim.lr=0.003, and among the others `data.tokenizer (ptb, not
    whitespace)`.

    Settings that only one of the two models has belong to the rung, unless the command line has
    them.
    """
    run = new.runs[0]
    other = old.runs[0]
    settings = without(run.settings, *IGNORED)
    others = without(other.settings, *IGNORED)
    typed = typed_settings(run, other)
    of_rungs = []
    different = []
    for setting in sorted(settings.keys() | others.keys()):
        if settings.get(setting) == others.get(setting):
            continue
        known = setting in settings and setting in others
        named = within(setting, *typed)
        text = f"{setting} ({as_text(others.get(setting))}, not {as_text(settings.get(setting))})"
        if not within(setting, *OF_RUNGS):
            different += [text] if known or named else []
        elif known and named:
            of_rungs.append(text)
    # a rung may have further reviews
    has_extra = settings.get("data.extra") != others.get("data.extra")
    for fact, name in FACTS.items():
        pair = run.metrics.get(fact), other.metrics.get(fact)
        explained = fact == "train_fingerprint" and has_extra
        if None not in pair and pair[0] != pair[1] and not explained:
            different.append(name)
    return Differences(of_rungs, different)


def typed_settings(run: FinishedRun, other: FinishedRun) -> list[str]:
    """Returns the settings in the overrides of only one of two runs.

    A choice of a file, such as `optim=adamw`, stands for all settings in that file
    except those that rungs set themselves.
    """
    overrides = set(run.overrides) ^ set(other.overrides)
    leaves = [*flat(run.settings), *flat(other.settings)]
    typed = []
    for setting in (override.partition("=")[0] for override in overrides):
        inside = [leaf for leaf in leaves if leaf.startswith(f"{setting}.")]
        typed += [leaf for leaf in inside if leaf not in ("optim.lr", "optim.weight_decay")]
        typed += [] if inside else [setting]
    return typed


def omission(new: Variant, nearest: Variant, different: Sequence[str]) -> str:
    """Returns the sentence on a variant that is compared with none. nearest: which it could be."""
    return (
        f"{new.label} is not compared with {nearest.label}, which also differs in"
        f" {' and '.join(different)}; against= compares them."
    )
