"""Compares finished runs: run folders -> a dict of plain values for each test set, which report.py
displays.

Accuracies and differences are fractions. Items are reviews, strings or sentences; their number is
under "reviews".
Suffixes of arrays: N items, V variants, S seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd

from imdbattn.errors import UserError
from imdbattn.report import statistics
from imdbattn.report.finished_runs import (
    Predictions,
    Run,
    Skipped,
    Variant,
    find_runs,
    grouped,
    join_folds,
    neighbours,
    shared_overrides,
    skip,
    variants,
)
from imdbattn.runs.run import Curves
from imdbattn.runs.run_folder import ATTENTION_SHARE, attention_of
from imdbattn.settings.keys import flat
from imdbattn.tasks.chosen_metric import metric_of
from imdbattn.tasks.per_class import confusion, is_uneven, macro_f1, short_name

# Settings that a report states if they are equal
TRAINING = (("data", "max_tokens"), ("data", "tokenizer"), ("trainer", "max_epochs"))
CURVES = ("train/accuracy", "train/loss", "val/accuracy", "val/loss")
ENTROPY = "entropy/"  # names of `entropies`
FEWEST = 10  # the smallest number of items of one length for its accuracy


def compare_sets(
    folders: Iterable[str | Path],
    split: str | None = None,
    against: str | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Compares the finished runs in `folders`, separately for each set of items; see
    conf/compare.yaml.

    split: None selects test where all runs of a test set have predictions of it, else validation.
    against: applies to the sets with a variant of that label. options: of `compare`. Returns a
    comparison for each set, which JSON can hold. Raises UserError when there is nothing to compare,
    or for an unknown `against`.
    """
    runs, skipped = join_folds(*find_runs(folders))
    comparisons = []
    for chosen, candidates in by_set(runs, split):
        predictions, others = read_predictions(candidates, chosen)
        skipped += others
        if predictions:
            untested = [] if split else [run.place for run in candidates if not run.has("test")]
            comparison = compare(predictions, chosen, against=against, **options)
            comparisons.append(comparison | {"untested": untested, "skipped": skipped})
    if not comparisons:
        raise UserError(
            f"no run can be compared: {skipped[-1]['folder']} ({skipped[-1]['reason']})"
        )
    labels = dict.fromkeys(
        rung["label"] for comparison in comparisons for rung in comparison["rungs"]
    )
    if against not in (None, *labels):
        raise UserError(
            f"against={against} is not among the runs; choose one of {', '.join(labels)}"
        )
    return comparisons


def by_set(runs: Sequence[Run], split: str | None = None) -> list[tuple[str, list[Run]]]:
    """The runs grouped by the items that they were scored on, with the split; see
    `compare_sets`.
    """
    sets = []
    for group in grouped(runs, methodcaller("fingerprint", split or "test")):
        chosen = split or ("test" if all(run.has("test") for run in group) else "validation")
        sets += [(chosen, part) for part in grouped(group, methodcaller("fingerprint", chosen))]
    return sets


def read_predictions(
    runs: Sequence[Run], split: str
) -> tuple[dict[Run, Predictions], list[Skipped]]:
    """The predictions of `split`, all of the same items in the same order, and the runs without
    them.
    """
    predictions: dict[Run, Predictions] = {}
    without = [run.place for run in runs if not run.has(split)]
    skipped = [{"folder": place, "reason": f"it has no {split} predictions"} for place in without]
    for run in (run for run in runs if run.has(split)):
        try:
            predictions[run] = run.predictions(split)
        except Exception as error:  # any exception: a broken file must not stop the comparison
            skipped.append(skip(run.folder, error))
    if not predictions:
        return {}, skipped
    reference = max(predictions.values(), key=lambda one: len(one.rows_N))
    for run, own in list(predictions.items()):
        if not (
            np.array_equal(own.rows_N, reference.rows_N)
            and np.array_equal(own.labels_N, reference.labels_N)
        ):
            reason = f"it was scored on other {run.items} than the other runs ({len(own.rows_N):,})"
            skipped.append({"folder": run.place, "reason": reason})
            del predictions[run]
    return predictions, skipped


def compare(
    predictions: Mapping[Run, Predictions],
    split: str,
    words: Mapping[str, Sequence[str]] | None = None,
    disagreements: int = 20,
    against: str | None = None,
    metric: str = "accuracy",
    trust: str | list[str] | None = None,
    paper: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the comparison of runs that were scored on the same items.

    metric: accuracy, macro_f1, or the dotted path of a function of a package in `trust`, of which
    intervals and differences are. paper: the table and figures for print, as in
    conf/compare.yaml; None omits them. Raises UserError for one that cannot be used.
    """
    runs = list(predictions)
    first, reference = runs[0], predictions[runs[0]]
    ladder = variants(runs)
    outputs = [[predictions[run] for run in one.runs] for one in ladder]
    rights = [np.stack([one.right_N for one in seeds], axis=1).astype(float) for seeds in outputs]
    unit = "symbols" if first.items == "strings" else "words"
    texts = first.texts(split, reference.rows_N)
    counts_N = np.array([len(text.split()) for text in texts])  # the same for all tokenizers
    slices = statistics.length_slices(counts_N, unit) | statistics.word_slices(texts, words or {})
    largest = largest_class(reference.labels_N, first.labels)
    rungs = [describe(one, seeds, slices) for one, seeds in zip(ladder, outputs, strict=True)]
    measured = rights if metric == "accuracy" else measure(metric, trust, outputs)
    for one, rung, value_NS in zip(ladder, rungs, measured, strict=True):
        if metric == "accuracy":
            interval = statistics.share_of(value_NS).interval
        elif metric == "macro_f1":
            sizes_C = np.bincount(reference.labels_N)
            interval = statistics.share_of(value_NS, effective_size(sizes_C)).interval
        else:
            interval = statistics.mean_of(value_NS).interval
        rung["metric"] = spread(value_NS.mean(0).tolist())
        rung["metric_validation"] = over_runs(one.runs, f"val_{short_name(metric)}")
        rung["interval"] = as_list(interval)
        rung["largest_class"] = largest and largest["share"]
    return {
        "split": split,
        "metric": short_name(metric),
        "test_set": first.metrics["test_set"],
        "fingerprint": first.fingerprint(split),
        "items": first.items,
        "unit": unit,
        "reviews": len(reference.rows_N),
        "labels": first.labels,
        "largest_class": largest,
        "overrides": shared_overrides(runs),
        "trained_with": trained_with(runs),
        "one_validation": len({str(run.fingerprint("validation")) for run in runs}) == 1,
        "environments": environments(runs),
        "folders": folders_of(runs),
        "method": {"level": statistics.LEVEL, "words": dict(words or {})},
        "paper": dict(paper or {"columns": [], "width": None, "font": None}),
        "slices": {name: int(mask_N.sum()) for name, mask_N in slices.items()},  # numbers of items
        "rungs": rungs,
        "pairs": compare_pairs(ladder, neighbours(ladder, against), rights, measured, metric),
        "disagreements": largest_disagreements(ladder, outputs, texts, first.labels, disagreements),
    }


def measure(
    name: str, trust: str | list[str] | None, outputs: Sequence[Sequence[Predictions]]
) -> list[np.ndarray]:
    """Returns the pseudo-values (G, S) of a metric for each variant (statistics.pseudo_values)."""
    metric = metric_of(name, trust, "metric")
    measured = []
    for seeds in outputs:
        probabilities = [one.probabilities_NC for one in seeds if one.probabilities_NC is not None]
        if len(probabilities) < len(seeds):
            raise UserError(f"metric={name} needs probabilities of classes, as classifiers have")
        try:
            values = statistics.pseudo_values(metric, seeds[0].labels_N, probabilities)
        except Exception as error:  # any exception of the user's function
            raise UserError(f"metric={name} failed: {type(error).__name__}: {error}") from error
        measured.append(values)
    return measured


def effective_size(sizes_C: np.ndarray) -> float:
    """Returns the number of items of equally large classes whose mean recall has the same variance.

    sizes_C: items of each class.
    """
    found = sizes_C[sizes_C > 0]
    return float(len(found) ** 2 / (1 / found).sum())


def largest_class(labels_N: np.ndarray, names: Sequence[str]) -> dict[str, Any] | None:
    """Returns the label of the largest class, its share, which is the accuracy of a model that
    always answers it, and whether classes are uneven; None without classes.
    """
    if not names:
        return None
    sizes_C = np.bincount(labels_N, minlength=len(names))
    share = float(sizes_C.max() / len(labels_N))
    label = str(names[int(sizes_C.argmax())])
    return {"label": label, "share": share, "uneven": is_uneven(share, len(names))}


def trained_with(runs: Sequence[Run]) -> dict[str, Any]:
    """The settings of TRAINING that all runs share, such as {"max_tokens": 128, "max_epochs":
    8}.
    """
    shared = {}
    for group, name in TRAINING:
        first, *others = (run.settings.get(group, {}).get(name) for run in runs)
        if first is not None and all(value == first for value in others):
            shared[name] = first
    return shared


def describe(
    one: Variant, seeds: Sequence[Predictions], slices: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The results of a variant's runs, without the interval."""
    metrics, classes = [run.metrics for run in one.runs], len(one.runs[0].labels)
    right_NS = np.stack([seed.right_N for seed in seeds], axis=1)
    folds = [run["fold_accuracies"] for run in metrics if "fold_accuracies" in run]
    confusions = [
        confusion(s.labels_N, s.predicted_N, classes) for s in seeds if s.predicted_N is not None
    ]

    def over_seeds(key: str) -> dict[str, Any] | None:
        return over_runs(one.runs, key)

    numbers = {
        key: over_seeds(key) for key in ("parameters", "tokens_per_s", "train_seconds", "epochs")
    }
    return {
        "label": one.label,
        "model": one.model,
        "after": one.after,
        "seeds": [run["seed"] for run in metrics],
        "folders": folders_of(one.runs),
        "validation": over_seeds("val_accuracy"),
        "test": over_seeds("test_accuracy"),
        "folds": spread([mean(fold) for fold in zip(*folds, strict=True)]) if folds else None,
        "bleu": {"validation": over_seeds("val_bleu"), "test": over_seeds("test_bleu")},
        **{key: values and values["mean"] for key, values in numbers.items()},
        "ece": mean(
            statistics.calibration_error(seed.confidence_N, seed.right_N) for seed in seeds
        ),
        "confusion": np.mean(confusions, axis=0).tolist() if confusions else [],
        "macro_f1": spread([macro_f1(counts_CC) for counts_CC in confusions])
        if confusions
        else None,
        "slices": {name: float(right_NS[mask_N].mean()) for name, mask_N in slices.items()},
        # the shortest and longest string of training
        "trained_on": one.runs[0].settings["data"].get("lengths", []),
        "lengths": {} if confusions else by_length(right_NS, seeds[0].lengths_N),
        "curves": curves(one.runs),
    }


def over_runs(runs: Sequence[Run], key: str) -> dict[str, Any] | None:
    """Returns the spread of a value of metrics.json; None where a run does not have it."""
    values = [run.metrics[key] for run in runs if run.metrics.get(key) is not None]
    return spread(values) if len(values) == len(runs) else None


def folders_of(runs: Sequence[Run]) -> list[str]:
    return [one.place for run in runs for one in run.parts or [run]]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation of values; the latter is None for a single one."""
    return {
        "mean": mean(values),
        "sd": stdev(values) if len(values) > 1 else None,
        "values": values,
    }


def curves(runs: Sequence[Run]) -> dict[str, Any]:
    """name -> epochs (x), and a list of values for each seed, None after the last epoch of a
    shorter run.
    """
    by_name, names = {}, dict.fromkeys(CURVES)
    by_run = []
    for run in runs:
        measured = entropies(run.curves)
        names |= dict.fromkeys(measured)
        by_run.append(run.curves | measured)
    for name in names:
        seeds = [one[name] for one in by_run if name in one]
        if seeds:
            epochs = sorted({epoch for values in seeds for epoch in values})
            by_name[name] = {
                "x": epochs,
                "values": [[values.get(epoch) for epoch in epochs] for values in seeds],
            }
    return by_name


def entropies(curves: Curves) -> Curves:
    """The entropy of each attention over epochs, the mean over its heads, as `entropy/layer1`.

    It is a share of the entropy of equal weights.
    """
    heads: dict[str, list[dict[int, float]]] = {}
    for name, values in curves.items():
        if name.startswith(ATTENTION_SHARE):
            attention = attention_of(name.removeprefix(ATTENTION_SHARE))
            heads.setdefault(attention, []).append(values)
    return {
        f"{ENTROPY}{name}": {epoch: mean(one[epoch] for one in several) for epoch in several[0]}
        for name, several in heads.items()
    }


def by_length(right_NS: np.ndarray, lengths_N: np.ndarray) -> dict[str, Any]:
    """The lengths (x) of at least FEWEST items, and for each seed a list of accuracies."""
    groups = pd.DataFrame(right_NS).groupby(lengths_N)
    accuracies = groups.mean()[groups.size() >= FEWEST]
    return {"x": accuracies.index.tolist(), "values": accuracies.T.to_numpy().tolist()}


def compare_pairs(
    ladder: Sequence[Variant],
    pairs: Sequence[tuple[int, int]],
    rights: Sequence[np.ndarray],
    measured: Sequence[np.ndarray],
    metric: str,
) -> list[dict[str, Any]]:
    """Returns the difference, interval and tests of each pair (from, to) of indices.

    rights: (N, S) of each variant, 1 where a seed is right. measured: (N, S) the same, or the
    pseudo-values (G, S) of another metric, which the difference is of. p and the interval are of
    the same model of the uncertainty, and p decides the verdict; McNemar's test is about the right
    answers of these trained models only.
    """
    labels = [one.label for one in ladder]
    share_NV = np.stack([right_NS.mean(1) for right_NS in rights], axis=1)
    bounded = metric == "accuracy"
    estimates = [
        statistics.difference_of(measured[to], measured[old], bounded) for old, to in pairs
    ]
    holm_p = statistics.holm([estimate.p for estimate in estimates])
    compared = []
    for (old, to), estimate, corrected in zip(pairs, estimates, holm_p, strict=True):
        new_N, old_N = share_NV[:, to], share_NV[:, old]
        pair = {
            "from": labels[old],
            "to": labels[to],
            "metric": short_name(metric),
            "difference": estimate.mean,
            "interval": as_list(estimate.interval),
            "only_to_right": float((new_N * (1 - old_N)).sum()),
            "only_from_right": float((old_N * (1 - new_N)).sum()),
            "p": estimate.p,
            "holm_p": corrected,
            "verdict": statistics.verdict(corrected, estimate.mean),
            "mcnemar_p": statistics.mcnemar(new_N - old_N),
        }
        compared.append(pair)
    return compared


def as_list(interval: tuple[float, float] | None) -> list[float] | None:
    """Returns an interval as JSON holds it."""
    return None if interval is None else list(interval)


def largest_disagreements(
    ladder: Sequence[Variant],
    outputs: Sequence[Sequence[Predictions]],
    texts: Sequence[str],
    labels: Sequence[str],
    count: int,
) -> list[dict[str, Any]]:
    """The items on which variants differ most: by the standard deviation of the label's mean
    probability.

    labels: names of the classes; empty where the label is the first reference itself.
    """
    first = outputs[0][0]
    true_NV = np.stack(
        [np.mean([one.true_N for one in seeds], axis=0) for seeds in outputs], axis=1
    )
    spread_N = true_NV.std(1)
    return [
        {
            "row": int(first.rows_N[n]),
            "label": str(labels[first.labels_N[n]] if labels else first.labels_N[n]),
            "text": texts[n],
            "probability": {
                one.label: float(true) for one, true in zip(ladder, true_NV[n], strict=True)
            },
            "spread": float(spread_N[n]),
        }
        for n in np.argsort(-spread_N, kind="stable")[:count]
        if spread_N[n] > 0
    ]


def as_rows(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For a table of rungs or pairs: single numbers and texts, the number of seeds, and the ends of
    the interval.
    """
    rows = []
    for entry in entries:
        row: dict[str, Any] = {}
        for name, value in flat(entry).items():
            if name == "interval":
                row["low"], row["high"] = value or (None, None)  # of a metric without an interval
            elif not isinstance(value, list | dict):
                row[name.removesuffix(".mean").replace(".sd", "_sd")] = value
        rows.append(row | ({"seeds": len(entry["seeds"])} if "seeds" in entry else {}))
    return rows


def environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The different machines and versions of the runs."""
    different = []
    for environment in (
        one.environment for run in runs for one in run.parts or [run] if one.environment
    ):
        one = {
            name: environment.get(name)
            for name in (
                "python",
                "platform",
                "processor",
                "memory_gb",
                "cpus",
                "threads",
                "gpu",
                "uncommitted",
            )
        }
        one |= {
            name: (environment.get("versions") or {}).get(name) for name in ("torch", "lightning")
        }
        if one not in different:
            different.append(one)
    return different
