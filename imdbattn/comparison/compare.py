"""Compares finished runs: run folders -> a dict of plain values for each test set, which report.py displays.

Accuracies and differences are fractions. Items are reviews, strings or sentences; their number is under "reviews".
Suffixes of arrays: N items, V variants, S seeds, B resamples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from imdbattn.comparison import statistics
from imdbattn.comparison.folds import join_folds
from imdbattn.comparison.runs import (
    Predictions,
    Run,
    Skipped,
    Variant,
    find_runs,
    grouped,
    neighbours,
    shared_overrides,
    skip,
    variants,
)
from imdbattn.errors import UserError
from imdbattn.per_class import confusion, macro_f1
from imdbattn.settings.keys import flat

RANGE = "data.lengths"  # the setting with the shortest and longest string of training
COMMON = ("data.max_tokens", "data.tokenizer", "trainer.max_epochs")  # settings that the page states if all runs share
TRAINED = "two trained models"  # the subject of a comparison with one seed each
POINTS = 60  # the largest number of points of a curve over lengths
FEWEST = 10  # the smallest number of items per point
ABOUT = ("architectures", "architecture and trained model", TRAINED)  # by the number of variants with a single seed
CURVES = ("train/accuracy", "train/loss", "val/accuracy", "val/loss")
Masks = dict[str, dict[str, np.ndarray]]  # way of slicing -> name of the slice -> mask of its items


def compare_sets(
    folders: Iterable[str | Path], split: str | None = None, against: str | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Compares the finished runs in `folders`, separately for each set of items; see conf/compare.yaml.

    split: None selects test where all runs of a test set have predictions of it, else validation. against: applies to
    the sets with a variant of that label. options: of `compare`. Returns a comparison for each set, which JSON can
    hold. Raises UserError when there is nothing to compare, or for an unknown `against`.
    """
    runs, skipped = join_folds(*find_runs(folders))
    comparisons = []
    for chosen, candidates in by_set(runs, split):
        predictions, unreadable = read_predictions(candidates, chosen)
        skipped += unreadable
        if predictions:
            untested = [] if split else [run.place for run in candidates if not run.has("test")]
            comparison = compare(predictions, chosen, against=against, **options)
            comparisons.append(comparison | {"untested": untested, "skipped": skipped})
    if not comparisons:
        raise UserError(f"no run has {chosen} predictions that can be read: {unreadable[0]['reason']}")
    labels = dict.fromkeys(rung["label"] for comparison in comparisons for rung in comparison["rungs"])
    if against not in (None, *labels):
        raise UserError(f"against={against} is not among the runs; choose one of {', '.join(labels)}")
    return comparisons


def by_set(runs: Sequence[Run], split: str | None = None) -> list[tuple[str, list[Run]]]:
    """The runs grouped by the items that they were scored on, with the split; see `compare_sets`."""
    sets = []
    for group in grouped(runs, methodcaller("fingerprint", split or "test")):
        chosen = split or ("test" if all(run.has("test") for run in group) else "validation")
        sets += [(chosen, part) for part in grouped(group, methodcaller("fingerprint", chosen))]
    return sets


def read_predictions(runs: Sequence[Run], split: str) -> tuple[dict[Run, Predictions], list[Skipped]]:
    """The predictions of `split`, all of the same items in the same order, and the runs without them."""
    predictions: dict[Run, Predictions] = {}
    skipped = []
    for run in runs:
        try:
            if not run.has(split):
                raise UserError(f"it has no {split} predictions")
            predictions[run] = run.predictions(split)
        except Exception as error:  # any exception: a broken file must not stop the comparison
            skipped.append(skip(run.folder, error))
    if not predictions:
        return {}, skipped
    reference = max(predictions.values(), key=lambda one: len(one.rows_N))
    for run, own in list(predictions.items()):
        if not (np.array_equal(own.rows_N, reference.rows_N) and np.array_equal(own.labels_N, reference.labels_N)):
            reason = f"it was scored on other {run.items} than the other runs ({len(own.rows_N):,})"
            skipped.append({"folder": run.place, "reason": reason})
            del predictions[run]
    return predictions, skipped


def compare(
    predictions: Mapping[Run, Predictions],
    split: str,
    resamples: int = 10_000,
    seed: int = 0,
    words: Mapping[str, Sequence[str]] | None = None,
    disagreements: int = 20,
    against: str | None = None,
) -> dict[str, Any]:
    """The comparison of runs that were scored on the same items."""
    runs = list(predictions)
    ladder = variants(runs)
    outputs = [[predictions[run] for run in one.runs] for one in ladder]
    rights = [np.stack([one.right_N for one in seeds], axis=1) for seeds in outputs]
    bootstrap = statistics.Bootstrap(rights, resamples, seed)
    first = runs[0]
    masks, texts = slices(predictions, split, words or {})
    groups = [] if first.is_classifier else length_groups(outputs[0][0].lengths_N)
    return {
        "split": split,
        "test_set": first.metrics["test_set"],
        "fingerprint": first.fingerprint(split),
        "items": first.items,
        "unit": first.unit,
        "reviews": len(bootstrap.mean_NV),
        "labels": first.labels,
        "common": common_settings(runs),
        "overrides": shared_overrides(runs),
        "one_validation": len({str(run.fingerprint("validation")) for run in runs}) == 1,
        "environments": environments(runs),
        "folders": folders_of(runs),
        "method": {"resamples": resamples, "seed": seed, "level": statistics.LEVEL, "words": dict(words or {})},
        "rungs": [
            describe(one, seeds, masks)
            | {"interval": np.clip(bootstrap.interval(v), 0, 1).tolist(), "lengths": accuracy_by_length(seeds, groups)}
            for v, (one, seeds) in enumerate(zip(ladder, outputs, strict=True))
        ],
        "pairs": compare_pairs(ladder, neighbours(ladder, against), bootstrap),
        "disagreements": largest_disagreements(ladder, outputs, texts, first.labels, disagreements),
    }


def describe(one: Variant, seeds: Sequence[Predictions], masks: Masks) -> dict[str, Any]:
    """The results of a variant's runs, except for the interval and the accuracy by length."""
    metrics = [run.metrics for run in one.runs]
    confidences = [seed.confidence_N for seed in seeds]
    rights = [seed.right_N for seed in seeds]
    bins = statistics.reliability(np.concatenate(confidences), np.concatenate(rights))
    trained_on = flat(one.runs[0].settings).get(RANGE)
    classes = len(one.runs[0].labels)
    fold_means = [mean(seeds) for seeds in zip(*(run.fold_accuracies for run in one.runs), strict=True)]
    confusions = [confusion(s.labels_N, s.predicted_N, classes) for s in seeds if s.predicted_N is not None]

    def over_seeds(key: str) -> dict[str, Any] | None:
        """Mean and standard deviation over seeds; None where a seed has no value."""
        values = [run[key] for run in metrics if run.get(key) is not None]
        return spread(values) if len(values) == len(metrics) else None

    return {
        "label": one.label,
        "model": one.model,
        "after": one.after,
        "overrides": one.overrides,
        "trained_on": trained_on,
        "seeds": [run["seed"] for run in metrics],
        "folders": folders_of(one.runs),
        "validation": over_seeds("val_accuracy"),
        "test": over_seeds("test_accuracy"),
        "folds": spread(fold_means) if fold_means else None,
        "bleu": {"validation": over_seeds("val_bleu"), "test": over_seeds("test_bleu")},
        **{
            key: (over_seeds(key) or {}).get("mean")
            for key in ("parameters", "tokens_per_s", "train_seconds", "epochs")
        },
        "ece": mean(map(statistics.calibration_error, confidences, rights)),
        "reliability": [one | {"count": one["count"] / len(seeds)} for one in bins],
        "confusion": np.mean(confusions, axis=0).tolist() if confusions else [],
        "macro_f1": spread([macro_f1(counts_CC) for counts_CC in confusions]) if confusions else None,
        "slices": {
            way: [
                {"name": name, "reviews": int(mask.sum()), "accuracy": float(np.mean([r[mask].mean() for r in rights]))}
                for name, mask in named.items()
            ]
            for way, named in masks.items()
        },
        "curves": curves(one.runs),
    }


def folders_of(runs: Sequence[Run]) -> list[str]:
    return [one.place for run in runs for one in run.parts or [run]]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation of values; the latter is None for a single one."""
    return {"mean": mean(values), "sd": stdev(values) if len(values) > 1 else None, "values": values}


def curves(runs: Sequence[Run]) -> dict[str, Any]:
    """name -> epochs, and a list of values for each seed, None after the last epoch of a shorter run."""
    by_name = {}
    for name in CURVES:
        seeds = [run.curves[name] for run in runs if name in run.curves]
        if seeds:
            epochs = sorted({epoch for values in seeds for epoch in values})
            by_name[name] = {"epochs": epochs, "values": [[values.get(epoch) for epoch in epochs] for values in seeds]}
    return by_name


def slices(
    predictions: Mapping[Run, Predictions], split: str, words: Mapping[str, Sequence[str]]
) -> tuple[Masks, list[str] | None]:
    """Slices by length (words between spaces) and by contrast words, and the texts.

    Without texts there are only slices by tokens read. Words in all texts, or in none, make no slices.
    """
    first, lengths_N = next((run, own.lengths_N) for run, own in predictions.items())
    texts = next((texts for run in predictions if (texts := run.texts(split)) and len(texts) == len(lengths_N)), None)
    if texts is None:
        unit = "tokens read" if first.is_classifier else first.unit
        return {"length": statistics.length_slices(lengths_N, unit)}, None
    counts_N = np.array([len(text.split()) for text in texts])  # the same for all tokenizers
    masks = {"length": statistics.length_slices(counts_N, first.unit)}
    by_word = {name: statistics.word_slices(texts, listed) for name, listed in words.items()}
    return masks | {name: pair for name, pair in by_word.items() if all(map(np.any, pair.values()))}, texts


def length_groups(lengths_N: np.ndarray) -> list[tuple[int, int]]:
    """(shortest, longest) length of the items in each point of a curve over lengths.

    A group is one length, or adjacent ones with at least FEWEST items and 1/POINTS of all; the last takes the rest.
    """
    lengths, counts = np.unique(lengths_N, return_counts=True)
    needed = max(FEWEST, math.ceil(len(lengths_N) / POINTS))
    groups: list[tuple[int, int]] = []
    start, items = 0, 0
    for place, count in enumerate(counts):
        items += count
        if items >= needed:
            groups.append((int(lengths[start]), int(lengths[place])))
            start, items = place + 1, 0
    if items:  # too few
        first = groups.pop()[0] if groups else int(lengths[0])
        groups.append((first, int(lengths[-1])))
    return groups


def accuracy_by_length(seeds: Sequence[Predictions], groups: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    lengths_N = seeds[0].lengths_N
    masks = [(lengths_N >= shortest) & (lengths_N <= longest) for shortest, longest in groups]
    return [
        {
            "shortest": shortest,
            "longest": longest,
            "mean": float(lengths_N[mask_N].mean()),
            "reviews": int(mask_N.sum()),
            "accuracies": [float(one.right_N[mask_N].mean()) for one in seeds],
        }
        for (shortest, longest), mask_N in zip(groups, masks, strict=True)
    ]


def compare_pairs(
    ladder: Sequence[Variant], pairs: Sequence[tuple[int, int]], bootstrap: statistics.Bootstrap
) -> list[dict[str, Any]]:
    """Difference, interval and test of each pair (from, to) of indices."""
    share_NV = bootstrap.mean_NV
    p_values = [statistics.mcnemar(share_NV[:, to] - share_NV[:, old]) for old, to in pairs]
    compared = []
    for (old, to), p, holm_p in zip(pairs, p_values, statistics.holm(p_values), strict=True):
        low, high = np.clip(bootstrap.interval(to, old), -1, 1).tolist()
        pair = {
            "from": ladder[old].label,
            "to": ladder[to].label,
            "about": ABOUT[sum(bootstrap.seeds_V[place] == 1 for place in (old, to))],
            "difference": float((share_NV[:, to] - share_NV[:, old]).mean()),
            "interval": [low, high],
            "only_to_right": float((share_NV[:, to] * (1 - share_NV[:, old])).sum()),
            "only_from_right": float((share_NV[:, old] * (1 - share_NV[:, to])).sum()),
            "mcnemar_p": p,
            "holm_p": holm_p,
            "verdict": statistics.verdict(holm_p, low, high),
        }
        compared.append(pair)
    return compared


def largest_disagreements(
    ladder: Sequence[Variant],
    outputs: Sequence[Sequence[Predictions]],
    texts: Sequence[str] | None,
    labels: Sequence[str],
    count: int,
) -> list[dict[str, Any]]:
    """The items on which variants differ most: by the standard deviation of the label's mean probability.

    labels: names of the classes; empty where the label is the first reference itself.
    """
    first = outputs[0][0]
    true_NV = np.stack([np.mean([one.true_N for one in seeds], axis=0) for seeds in outputs], axis=1)
    spread_N = true_NV.std(1)
    most = [n for n in np.argsort(-spread_N, kind="stable")[:count] if spread_N[n] > 0]
    return [
        {
            "row": int(first.rows_N[n]),
            "label": str(labels[first.labels_N[n]] if labels else first.labels_N[n]),
            "text": texts[n] if texts is not None else None,
            "probability": {one.label: float(true) for one, true in zip(ladder, true_NV[n], strict=True)},
            "spread": float(spread_N[n]),
        }
        for n in most
    ]


def common_settings(runs: Sequence[Run]) -> dict[str, Any]:
    """The settings in COMMON that are equal in all runs."""
    first, *others = [flat(run.settings) for run in runs]
    return {key: first[key] for key in COMMON if key in first and all(one.get(key) == first[key] for one in others)}


def environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The different machines and versions of the runs."""
    different = []
    for environment in (one.environment for run in runs for one in run.parts or [run] if one.environment):
        one = {name: environment.get(name) for name in ("python", "platform", "cpus", "threads", "gpu")}
        one |= {name: (environment.get("versions") or {}).get(name) for name in ("torch", "lightning")}
        if one not in different:
            different.append(one)
    return different
