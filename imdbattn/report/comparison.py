"""Compares finished runs: run folders -> values for each test set, which comparison_page displays.

Accuracies and differences are fractions; "count" is the number of reviews or other items.
Suffixes of arrays: N items, T different texts, V variants, S seeds, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.folders.run import Curves, mean_curve
from imdbattn.folders.run_folder import ATTENTION_SHARE, attention_of
from imdbattn.report import statistics
from imdbattn.report.comparison_types import (
    ComparedSet,
    Curve,
    Disagreement,
    Interval,
    LargestClass,
    Skipped,
    Spread,
    VariantPair,
    VariantResults,
)
from imdbattn.report.finished_runs import (
    FinishedRun,
    SplitPredictions,
    as_skipped,
    find_runs,
    grouped,
    join_folds,
    mean_over_runs,
    values_of,
)
from imdbattn.report.variants import (
    Variant,
    group_variants,
    labels_named,
    pairs_to_compare,
    shared_overrides,
)
from imdbattn.settings.command_settings import CompareSettings
from imdbattn.settings.keys import flattened
from imdbattn.tasks.chosen_metric import checked_metric
from imdbattn.tasks.metrics import confusion, is_uneven, macro_f1, short_name

# Settings that a report states if they are equal
SHARED_SETTINGS = (("data", "max_tokens"), ("data", "tokenizer"), ("trainer", "max_epochs"))
CURVES = ("train/accuracy", "train/loss", "val/accuracy", "val/loss")
ENTROPY = "entropy/"  # prefix of an attention's entropy
MIN_OF_LENGTH = 10  # the smallest number of items of one length for its accuracy
# Facts in environment.json that a report states
MACHINE = ("python", "platform", "processor", "memory_gb", "cpus", "threads", "gpu", "uncommitted")


def compare_sets(options: CompareSettings) -> list[ComparedSet]:
    """Compares finished runs. Returns a comparison for each set of items, which JSON can hold.

    Raises UserError if nothing can be compared, or if `against` is unknown or ambiguous.
    """
    runs, skipped = join_folds(*find_runs(options.runs, options.by_folder))
    comparisons = []
    for split, candidates in by_set(runs, options.split):
        predictions, more_skipped = read_predictions(candidates, split)
        skipped += more_skipped
        if predictions:
            comparison = compare_set(predictions, split, options)
            if not options.split:
                comparison["untested"] = [
                    run.path for run in candidates if not run.is_scored("test")
                ]
            comparison["skipped"] = skipped  # all sets share one list
            comparisons.append(comparison)
    if not comparisons:
        raise UserError(
            f"no run can be compared: {skipped[-1]['folder']} ({skipped[-1]['reason']})"
        )
    check_against(options.against, comparisons)
    return comparisons


def check_against(against: str | None, comparisons: Sequence[ComparedSet]) -> None:
    """Raises UserError if no set contains the variant `against`, or if each set that does contains
    several variants of this model.
    """
    if against is None:
        return
    models: dict[str, str] = {}
    for comparison in comparisons:
        of_set = {variant["label"]: variant["model"] for variant in comparison["variants"]}
        if len(labels_named(against, of_set)) == 1:
            return
        models |= of_set
    if several := [f'"{label}"' for label in labels_named(against, models)]:
        raise UserError(
            f"against={against} has several variants; choose one of {', '.join(several)}"
        )
    raise UserError(f"against={against} is not among the runs; choose one of {', '.join(models)}")


def by_set(runs: Sequence[FinishedRun], split: str | None) -> list[tuple[str, list[FinishedRun]]]:
    """Groups the runs by the items that they were scored on. Returns each group with its split."""
    sets = []
    for group in grouped(runs, methodcaller("fingerprint", split or "test")):
        chosen = split or ("test" if all(run.is_scored("test") for run in group) else "validation")
        for same_items in grouped(group, methodcaller("fingerprint", chosen)):
            sets.append((chosen, same_items))
    return sets


def read_predictions(
    runs: Sequence[FinishedRun], split: str
) -> tuple[dict[FinishedRun, SplitPredictions], list[Skipped]]:
    """Returns the predictions of `split`, all for the same items, and the skipped runs."""
    predictions: dict[FinishedRun, SplitPredictions] = {}
    skipped: list[Skipped] = []
    for run in runs:
        try:
            if not run.is_scored(split):
                raise UserError(f"it has no {split} predictions")
            predictions[run] = run.predictions(split)
        except Exception as error:  # a broken file must not stop the comparison
            skipped.append(as_skipped(run.folder, error))
    if not predictions:
        return {}, skipped
    largest = max(predictions.values(), key=lambda scored: len(scored.rows_N))
    for run, scored in list(predictions.items()):
        same_rows = np.array_equal(scored.rows_N, largest.rows_N)
        if not same_rows or not np.array_equal(scored.labels_N, largest.labels_N):
            count = len(scored.rows_N)
            reason = f"it was scored on other {run.items} than the other runs ({count:,})"
            skipped.append(as_skipped(run.folder, reason))
            del predictions[run]
    return predictions, skipped


@dataclass(frozen=True)
class ScoredVariant:
    """A variant, and the predictions of its seeds.

    Attributes:
        seeds: the predictions of each seed.
        right_NS: 1 where the prediction of a seed is correct, else 0.
        value_TS: the values whose means are compared: for accuracy `right_NS` by text, else the
            pseudo-values of the metric for groups of texts.
    """

    variant: Variant
    seeds: list[SplitPredictions]
    right_NS: np.ndarray
    value_TS: np.ndarray


def compare_set(
    predictions: Mapping[FinishedRun, SplitPredictions], split: str, options: CompareSettings
) -> ComparedSet:
    """Returns the comparison of runs that were scored on the same items.

    Raises UserError for a metric that cannot be computed.
    """
    runs = list(predictions)
    first = runs[0]
    reference = predictions[first]
    texts = first.texts(split, reference.rows_N)
    text_index_N, _ = pd.factorize(np.array(texts, dtype=object))  # equal texts have one number
    counts_N = np.array([len(text.split()) for text in texts])  # the same for all tokenizers
    unit = "symbols" if first.items == "strings" else "words"
    masks = statistics.length_slices(counts_N, unit) | statistics.word_slices(texts, options.words)
    variants = group_variants(runs)
    scored = []
    for variant in variants:
        seeds = [predictions[run] for run in variant.runs]
        right_NS = np.stack([seed.right_N for seed in seeds], axis=1).astype(float)
        value_TS = values_by_text(options.metric, seeds, right_NS, text_index_N)
        scored.append(ScoredVariant(variant, seeds, right_NS, value_TS))
    pairs, remarks = pairs_to_compare(variants, options.against)
    validation_sets = {str(run.fingerprint("validation")) for run in runs}
    return {
        "split": split,
        "metric": short_name(options.metric),
        "test_set": first.metrics["test_set"],
        "fingerprint": str(first.fingerprint(split)),
        "items": first.items,
        "unit": unit,
        "count": len(texts),
        "labels": first.labels,
        "largest_class": largest_class(reference.labels_N, first.labels),
        "overrides": shared_overrides(runs),
        "shared_settings": shared_settings(runs),
        "chosen_by": sorted({run.settings.get("choose_by") or "accuracy" for run in runs}),
        "one_validation": len(validation_sets) == 1,
        "environments": environments(runs),
        "folders": paths_of(runs),
        "method": {"level": statistics.LEVEL, "words": options.words},
        "slices": {name: int(mask_N.sum()) for name, mask_N in masks.items()},
        "variants": [variant_results(variant, masks, options.metric) for variant in scored],
        "pairs": compare_pairs(scored, pairs, text_index_N, options.metric),
        "remarks": remarks,
        "disagreements": disagreements(scored, texts, first.labels, options.disagreements),
        "untested": [],
        "skipped": [],
    }


def values_by_text(
    name: str, seeds: Sequence[SplitPredictions], right_NS: np.ndarray, text_index_N: np.ndarray
) -> np.ndarray:
    """Returns the values of a metric, `ScoredVariant.value_TS`.

    text_index_N: the number of the text of each item. Raises UserError for a metric that fails.
    """
    if name == "accuracy":
        return statistics.by_text(right_NS, text_index_N)
    metric = checked_metric(name, "metric")
    probabilities = [seed.probabilities_NC for seed in seeds if seed.probabilities_NC is not None]
    if len(probabilities) < len(seeds):
        raise UserError(f"metric={name} needs probabilities of classes, as classifiers have")
    with wrapping_errors(f"metric={name} failed"):
        return statistics.pseudo_values(metric, seeds[0].labels_N, probabilities, text_index_N)


def interval_of(metric: str, value_TS: np.ndarray, labels_N: np.ndarray) -> Interval:
    """Returns the interval of a metric, given its values."""
    if metric == "accuracy":
        return statistics.estimate_share(value_TS).interval
    if metric == "macro_f1":
        # The number of items of equally large classes whose mean recall has the same variance
        _, sizes_C = np.unique(labels_N, return_counts=True)
        effective = float(len(sizes_C) ** 2 / (1 / sizes_C).sum())
        return statistics.estimate_share(value_TS, effective).interval
    return statistics.estimate_mean(value_TS).interval


def largest_class(labels_N: np.ndarray, names: Sequence[str]) -> LargestClass | None:
    """Returns the label of the largest class, its share, which is the accuracy of a model that
    always answers it, and whether classes are uneven; None without classes.
    """
    if not names:
        return None
    sizes_C = np.bincount(labels_N, minlength=len(names))
    share = float(sizes_C.max() / len(labels_N))
    label = str(names[int(sizes_C.argmax())])
    return {"label": label, "share": share, "uneven": is_uneven(share, len(names))}


def shared_settings(runs: Sequence[FinishedRun]) -> dict[str, object]:
    """Returns the settings in SHARED_SETTINGS that are equal in all runs, as {"max_epochs": 8}."""
    shared: dict[str, object] = {}
    for group, name in SHARED_SETTINGS:
        first, *others = (run.settings.get(group, {}).get(name) for run in runs)
        if first is not None and all(value == first for value in others):
            shared[name] = first
    return shared


def variant_results(
    scored: ScoredVariant, masks: Mapping[str, np.ndarray], metric: str
) -> VariantResults:
    """Returns the results of a variant's runs. masks: which items are in each slice."""
    variant = scored.variant
    runs = variant.runs
    first = scored.seeds[0]
    calibration_S = []
    confusions = []  # (C, C) of each seed; none for an encoder-decoder
    for seed in scored.seeds:
        calibration_S.append(statistics.calibration_error(seed.confidence_N, seed.right_N))
        if seed.predicted_N is not None:
            confusions.append(confusion(seed.labels_N, seed.predicted_N, len(runs[0].labels)))
    return {
        "label": variant.label,
        "model": variant.model,
        "extends": variant.extends,
        "seeds": [run.metrics["seed"] for run in runs],
        "folders": paths_of(runs),
        "validation": spread_over_runs(runs, "val_accuracy"),
        "test": spread_over_runs(runs, "test_accuracy"),
        "folds": spread_over_folds(runs),
        "bleu": {
            "validation": spread_over_runs(runs, "val_bleu"),
            "test": spread_over_runs(runs, "test_bleu"),
        },
        "parameters": mean_over_runs(runs, "parameters"),
        "tokens_per_s": mean_over_runs(runs, "tokens_per_s"),
        "train_seconds": mean_over_runs(runs, "train_seconds"),
        "epochs": mean_over_runs(runs, "epochs"),
        "ece": mean(calibration_S),
        "confusion": np.mean(confusions, axis=0).tolist() if confusions else [],
        "macro_f1": spread(list(map(macro_f1, confusions))) if confusions else None,
        "slices": {name: float(scored.right_NS[mask_N].mean()) for name, mask_N in masks.items()},
        "trained_on": runs[0].settings["data"].get("lengths", []),
        "lengths": {} if confusions else by_length(scored.right_NS, first.lengths_N),
        "curves": curves_over_seeds(runs),
        "metric": spread(scored.value_TS.mean(0).tolist()),
        "metric_validation": spread_over_runs(runs, f"val_{short_name(metric)}"),
        "interval": interval_of(metric, scored.value_TS, first.labels_N),
    }


def spread_over_runs(runs: Sequence[FinishedRun], name: str) -> Spread | None:
    """Returns the spread of a value of metrics.json; None where a run does not have it."""
    values = values_of(runs, name)
    return spread(values) if values else None


def spread_over_folds(runs: Sequence[FinishedRun]) -> Spread | None:
    """Returns the spread of accuracies over folds, each a mean over seeds; None without folds."""
    folds = [run.metrics["fold_accuracies"] for run in runs if "fold_accuracies" in run.metrics]
    return spread([mean(fold) for fold in zip(*folds, strict=True)]) if folds else None


def paths_of(runs: Sequence[FinishedRun]) -> list[str]:
    """Returns the folders of the runs, for display; for a cross-validation, each fold's folder."""
    return [fold.path for run in runs for fold in run.folds or [run]]


def spread(values: Sequence[float]) -> Spread:
    """Returns the mean and the standard deviation of values."""
    return {
        "mean": mean(values),
        "sd": stdev(values) if len(values) > 1 else None,
        "values": values,
    }


def curves_over_seeds(runs: Sequence[FinishedRun]) -> dict[str, Curve]:
    """Returns the curves by name; a value is None after the last epoch of a shorter run."""
    by_run = [compared_curves(run.curves) for run in runs]
    by_name: dict[str, Curve] = {}
    for name in dict.fromkeys(name for curves in by_run for name in curves):
        seeds = [curves[name] for curves in by_run if name in curves]
        epochs = sorted(set().union(*seeds))
        by_name[name] = {"x": epochs, "values": [list(map(seed.get, epochs)) for seed in seeds]}
    return by_name


def compared_curves(curves: Curves) -> Curves:
    """Returns the curves in CURVES, and the entropy of each attention, averaged over heads, as
    `entropy/layer1`. It is a share of the entropy of equal weights.
    """
    heads: dict[str, list[dict[int, float]]] = {}
    for name, values in curves.items():
        if name.startswith(ATTENTION_SHARE):
            attention = attention_of(name.removeprefix(ATTENTION_SHARE))
            heads.setdefault(attention, []).append(values)
    compared = {name: curves[name] for name in CURVES if name in curves}
    return compared | {ENTROPY + name: mean_curve(of_heads) for name, of_heads in heads.items()}


def by_length(right_NS: np.ndarray, lengths_N: np.ndarray) -> Curve:
    """Returns the lengths of at least MIN_OF_LENGTH items, and their accuracies."""
    groups = pd.DataFrame(right_NS).groupby(lengths_N)
    accuracies = groups.mean()[groups.size() >= MIN_OF_LENGTH]
    return {"x": accuracies.index.tolist(), "values": accuracies.T.to_numpy().tolist()}


def compare_pairs(
    scored: Sequence[ScoredVariant],
    pairs: Sequence[tuple[str, str]],
    text_index_N: np.ndarray,
    metric: str,
) -> list[VariantPair]:
    """Returns the difference, its interval, and tests for each pair of variants.

    The interval and p are computed from the same variance, and p decides the verdict.
    McNemar's test is about the right answers of these trained models only.

    pairs: labels (from, to). text_index_N: the number of the text of each item.
    """
    by_label = {variant.variant.label: variant for variant in scored}
    bounded = metric == "accuracy"
    estimates = [
        statistics.estimate_difference(by_label[new].value_TS, by_label[old].value_TS, bounded)
        for old, new in pairs
    ]
    holm_p = statistics.holm([estimate.p for estimate in estimates])
    compared = []
    for (old, new), estimate, corrected in zip(pairs, estimates, holm_p, strict=True):
        old_N = by_label[old].right_NS.mean(1)
        new_N = by_label[new].right_NS.mean(1)
        pair: VariantPair = {
            "from": old,
            "to": new,
            "metric": short_name(metric),
            "difference": estimate.mean,
            "interval": estimate.interval,
            "only_to_right": float((new_N * (1 - old_N)).sum()),
            "only_from_right": float((old_N * (1 - new_N)).sum()),
            "p": estimate.p,
            "holm_p": corrected,
            "verdict": statistics.verdict(corrected, estimate.mean),
            "mcnemar_p": statistics.mcnemar(np.bincount(text_index_N, new_N - old_N)),
        }
        compared.append(pair)
    return compared


def disagreements(
    scored: Sequence[ScoredVariant], texts: Sequence[str], labels: Sequence[str], count: int
) -> list[Disagreement]:
    """Returns up to `count` items on which the variants differ, most first, measured by the
    standard deviation of the probability of the label.

    labels: names of the classes; empty for an encoder-decoder: its label is the reference.
    """
    first = scored[0].seeds[0]
    means = []  # each variant's probability of the label (N,)
    for variant in scored:
        means.append(np.mean([seed.label_probability_N for seed in variant.seeds], axis=0))
    probability_NV = np.stack(means, axis=1)
    spread_N = probability_NV.std(1)
    names = [variant.variant.label for variant in scored]
    items: list[Disagreement] = []
    for n in np.argsort(-spread_N, kind="stable")[:count]:
        if spread_N[n] == 0:
            break
        label = labels[first.labels_N[n]] if labels else first.labels_N[n]
        item: Disagreement = {
            "row": int(first.rows_N[n]),
            "label": str(label),
            "text": texts[n],
            "probability": dict(zip(names, probability_NV[n].tolist(), strict=True)),
            "spread": float(spread_N[n]),
        }
        items.append(item)
    return items


def as_rows(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Returns the rows of a table of variants or pairs, without lists and curves: of a Spread, mean
    and standard deviation; of other groups, a column for each value.
    """
    rows = []
    for entry in entries:
        row: dict[str, object] = {}
        for name, value in flattened(entry).items():
            if name == "interval":
                row["low"], row["high"] = value or (None, None)
            elif name.endswith(".sd"):
                row[f"{name.removesuffix('.sd')}_sd"] = value
            elif not isinstance(value, list | dict):
                row[name.removesuffix(".mean")] = value
        if "seeds" in entry:
            row["seeds"] = len(entry["seeds"])
        rows.append(row)
    return rows


def environments(runs: Sequence[FinishedRun]) -> list[dict[str, object]]:
    """Returns the distinct machines and versions of the runs."""
    distinct: list[dict[str, object]] = []
    for fold in (fold for run in runs for fold in run.folds or [run]):
        machine = fold.opened.environment
        versions = machine.get("versions") or {}
        facts: dict[str, object] = {name: machine.get(name) for name in MACHINE}
        facts |= {name: versions.get(name) for name in ("torch", "lightning")}
        if machine and facts not in distinct:
            distinct.append(facts)
    return distinct
