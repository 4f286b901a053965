"""Groups finished runs into variants, names them, and selects the pairs to compare."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from imdbattn.report.finished_runs import FinishedRun, grouped
from imdbattn.settings.keys import (
    DATA_AND_WEIGHTS,
    MAY_DIFFER_IN_VARIANT,
    NestedDict,
    as_text,
    flat_without,
    flattened,
    is_in_groups,
)

# Facts in metrics.json -> what differs between runs whose facts differ
COMPARED_FACTS = {
    "vectors": "the word vectors",
    "tokenizer": "the code of the tokenizer",
    "train_fingerprint": "the training reviews",
    "extra_fingerprint": "the texts of data.extra",
}
# Settings that files of conf/model set. They belong to a rung unless the command line sets them.
SET_BY_RUNGS = (
    *("model", "optim", "embedding_lr", "init", "patience", "data.extra", "data.word_dropout"),
    *("trainer.max_epochs", "trainer.gradient_clip_val"),
)
# Overrides that short labels omit: a label begins with the model's name
NOT_IN_LABELS = ("experiment", "model.name", "model.extends")


@dataclass
class Variant:
    """Runs that differ only in seed, hardware, logging and paths.

    overrides: the overrides that all its runs share, without those that all runs of the comparison
        share.
    named: the overrides, and the sources that not all runs of the model share.
    """

    model: str
    overrides: list[str]
    named: list[str]
    runs: list[FinishedRun]
    label: str = ""

    @property
    def extends(self) -> str | None:
        return self.runs[0].settings["model"].get("extends")

    @property
    def endings(self) -> list[list[str]]:
        """What can follow the name of the model in a label, the shortest first. The last ending is
        unique.
        """
        return [in_short(self.named), self.named, [*self.overrides, f"in {self.runs[0].path}"]]


def group_variants(runs: Sequence[FinishedRun]) -> list[Variant]:
    """Groups the runs by everything except seed and hardware. Variants of one model are sorted by
    what their labels name, the fewest first; the others are compared with the first one.

    A label is the model's name, the overrides that not all runs share, and the file names of data,
    vectors and first weights that not all runs of the model share: `residual layers=6`,
    `residual_pe score=Dot`. Labels that would be equal contain the whole names of settings and the
    experiment; if they are still equal, the folder of a run.
    """
    common = shared_overrides(runs)
    variants = []
    for of_model in grouped(runs, lambda run: run.model):
        shared_sources = set.intersection(*(set(sources(run)) for run in of_model))
        for group in grouped(of_model, lambda run: run.variant_identity):
            overrides = [override for override in shared_overrides(group) if override not in common]
            by_seed = sorted(group, key=lambda run: run.metrics["seed"])
            differing = [text for text in sources(by_seed[0]) if text not in shared_sources]
            named = {text.partition("=")[0]: text for text in (*overrides, *differing)}
            variants.append(Variant(group[0].model, overrides, list(named.values()), by_seed))
    order = models_in_order(variants)

    def order_of_variant(variant: Variant) -> tuple[int, int, list[tuple[str, list[float], str]]]:
        named = variant.named
        return order.index(variant.model), len(named), list(map(sort_key, named))

    variants.sort(key=order_of_variant)
    for endings in zip(*(variant.endings for variant in variants), strict=True):
        times = Counter(variant.label for variant in variants)
        for variant, ending in zip(variants, endings, strict=True):
            if not variant.label or times[variant.label] > 1:
                group_folder = variant.runs[0].group_folder  # "" unless folders are compared
                label = " ".join([variant.model, *ending])
                variant.label = f"{group_folder}: {label}" if group_folder else label
    return variants


def models_in_order(variants: Sequence[Variant]) -> list[str]:
    """Returns the models, each after the models it extends, then by the number of parameters."""
    extended = {variant.model: variant.extends for variant in variants}
    parameters: dict[str, float] = {}
    for variant in variants:
        count = variant.runs[0].metrics.get("parameters") or math.inf
        parameters[variant.model] = min(count, parameters.get(variant.model, math.inf))

    def order_of_model(model: str) -> tuple[int, float, str]:
        ancestors: list[str] = []
        parent = extended[model]
        while parent is not None and parent not in ancestors:  # models may extend each other
            ancestors.append(parent)
            parent = extended.get(parent)
        return len(ancestors), parameters[model], model

    return sorted(extended, key=order_of_model)


# --- labels ---------------------------------------------------------------------------------------


def in_short(overrides: Sequence[str]) -> list[str]:
    """Returns the shortened overrides, without the experiment. If two short names are equal, the
    overrides remain whole.
    """
    named = [override for override in overrides if override.partition("=")[0] not in NOT_IN_LABELS]
    short = list(map(shortened, named))
    times = Counter(override.partition("=")[0] for override in short)
    return [
        whole if times[override.partition("=")[0]] > 1 else override
        for whole, override in zip(named, short, strict=True)
    ]


def shortened(override: str) -> str:
    """Returns `lr=0.003` for `optim.lr=0.003`; classes and paths are cut to their last part."""
    setting, _, value = override.partition("=")
    if setting.endswith("._target_"):
        setting = setting.removesuffix("._target_")
        _, _, value = value.rpartition(".")
    elif not value.startswith("["):
        value = PurePath(value.strip("'\"")).name  # the command quotes paths
    return f"{setting.rpartition('.')[2]}={value}"


def sort_key(override: str) -> tuple[str, list[float], str]:
    """Returns the setting, then the numbers in its value."""
    setting, _, value = override.partition("=")
    return setting, list(map(float, re.findall(r"\d+\.?\d*(?:e-?\d+)?", value))), value


def shared_overrides(runs: Sequence[FinishedRun]) -> list[str]:
    """Returns the overrides that all runs have."""
    return sorted(set.intersection(*(set(run.overrides) for run in runs)))


def sources(run: FinishedRun) -> list[str]:
    """Returns the settings that name data, vectors or first weights, as overrides, with the last
    part of a path.
    """
    names = (*DATA_AND_WEIGHTS, "data.extra")
    return [
        f"{setting}={PurePath(str(value)).name}"
        for setting, value in flattened(run.settings).items()
        if value is not None and is_in_groups(setting, *names)
    ]


# --- pairs ----------------------------------------------------------------------------------------


def pairs_to_compare(
    variants: Sequence[Variant], against: str | None
) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the labels (from, to) of the pairs to compare, and sentences that state in what else
    they differ, or why a variant is not compared.

    For mean, base, and residual, which extends base: [("mean", "base"), ("base", "residual")]. The
    first variant of a rung is compared with the nearest variant of the rung that it extends
    (`model.extends`), or, if that is absent, of the one before it, unless `extends` is null. The
    two may differ only in settings that rungs set (SET_BY_RUNGS). Each further variant is compared
    with the first, and with the variant of the extended rung that has equal overrides and data.

    against: the variant that all others are compared with instead, if `variants` contain it, or a
        model with one variant.
    """
    models = {variant.label: variant.model for variant in variants}
    named = labels_named(against, models)
    if len(named) == 1:
        return [(named[0], label) for label in models if label != named[0]], []
    pairs = []
    remarks = []
    first_of_model: dict[str, Variant] = {}  # of the models so far, in their order
    for new in variants:
        if new.model in first_of_model:
            equal = [old for old in variants if is_equal_but_for_the_rung(new, old)]
            pairs += [(old.label, new.label) for old in (*equal[:1], first_of_model[new.model])]
            continue
        extended = new.extends
        if first_of_model and extended not in (None, *models.values()):
            extended = list(first_of_model)[-1]  # the model before it
        first_of_model[new.model] = new
        candidates = [old for old in variants if old.model == extended]
        if not candidates:
            continue
        nearest = nearest_variant(new, candidates)
        of_rungs, others = differences(new, nearest)
        if others:
            remarks.append(
                f"{new.label} is not compared with {nearest.label}, which also differs in"
                f" {' and '.join(others)}; against= compares them."
            )
            continue
        pairs.append((nearest.label, new.label))
        if of_rungs:
            differing = " and ".join(of_rungs)
            remarks.append(f"{new.label} and {nearest.label} also differ in {differing}.")
    return pairs, remarks


def nearest_variant(new: Variant, candidates: Sequence[Variant]) -> Variant:
    """Returns the candidate that differs from `new` in the fewest settings that rungs do not set,
    or, of several, in the fewest others.
    """

    def numbers_of_differences(old: Variant) -> tuple[int, int]:
        of_rungs, others = differences(new, old)
        return len(others), len(of_rungs)

    return min(candidates, key=numbers_of_differences)


def is_equal_but_for_the_rung(new: Variant, old: Variant) -> bool:
    """Returns whether `old` is a variant of the extended rung with equal overrides and data."""
    if old.model != new.extends or old.overrides != new.overrides:
        return False
    _, others = differences(new, old)
    return not others


def labels_named(name: str | None, models: Mapping[str, str]) -> list[str]:
    """Returns the label that is `name`, or else the labels of the model with this name.

    models: the model of each label.
    """
    if name is not None and name in models:
        return [name]
    return [label for label, model in models.items() if model == name]


def differences(new: Variant, old: Variant) -> tuple[list[str], list[str]]:
    """Returns how `old` differs from `new`, except for the rung: `optim.lr (0.001, not 0.003)` if
    the command line of `new` contains optim.lr=0.003, or `data.tokenizer (ptb, not whitespace)`.

    The first list has settings that rungs set themselves and that only one command line changes;
    the second has all others. Settings that only one model has belong to the rung, unless they are
    in the command line.
    """
    new_run = new.runs[0]
    old_run = old.runs[0]
    new_settings = compared_settings(new_run)
    old_settings = compared_settings(old_run)
    overrides = {*new_run.overrides} ^ {*old_run.overrides}
    typed = {override.partition("=")[0] for override in overrides}
    of_rungs = []
    others = []
    for setting in sorted(new_settings.keys() | old_settings.keys()):
        value = new_settings.get(setting)
        old_value = old_settings.get(setting)
        if value == old_value:
            continue
        in_both = setting in new_settings and setting in old_settings
        is_typed = is_in_groups(setting, *typed)
        text = f"{setting} ({as_text(old_value)}, not {as_text(value)})"
        if is_in_groups(setting, *SET_BY_RUNGS):
            if in_both and is_typed:
                of_rungs.append(text)
        elif in_both or is_typed:
            others.append(text)
    # If data.extra differs, the difference of its texts is already listed, or belongs to the rung.
    has_extra = new_settings.get("data.extra") != old_settings.get("data.extra")
    for fact, name in COMPARED_FACTS.items():
        pair = new_run.metrics.get(fact), old_run.metrics.get(fact)
        explained = fact == "extra_fingerprint" and has_extra
        if None not in pair and pair[0] != pair[1] and not explained:
            others.append(name)
    return of_rungs, others


def compared_settings(run: FinishedRun) -> NestedDict:
    """Returns the settings that may divide variants, flat, with the class of a custom tokenizer in
    place of its name.
    """
    settings = flat_without(run.settings, "task", *MAY_DIFFER_IN_VARIANT)
    if "data.tokenizer._target_" in settings:
        settings["data.tokenizer"] = settings.pop("data.tokenizer._target_")
    return settings
