"""Many run folders -> a comparison for each test set: a dict of plain values, which analysis.report writes and shows.

Accuracies and differences are fractions. What is compared are reviews with their classes, or strings or sentences with
what an encoder-decoder makes of them: "items" says which; the number of them stands under "reviews" for all. Suffixes
of arrays: N items, V variants, S seeds, B resamples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from imdbattn.comparison import statistics
from imdbattn.comparison.figures import signed
from imdbattn.comparison.report import TRAINED, p_value, percents, points
from imdbattn.comparison.runs import (
    REVIEWS,
    Predictions,
    Run,
    Skipped,
    Variant,
    apart_from,
    find_runs,
    neighbours,
    passed_over,
    shown,
    variants,
)
from imdbattn.errors import UserError
from imdbattn.run_folder import FINGERPRINT

LEVEL = 0.95  # of the intervals
RANGE = "data.lengths"  # the setting: shortest and longest string of training
POINTS = 60  # at most, of a line over lengths
FEWEST = 10  # items behind a point of it
ABOUT = ("architectures", "architecture and trained model", TRAINED)  # what is compared, by how many have one seed
CURVES = ("train/accuracy", "train/loss", "val/accuracy", "val/loss")
Masks = dict[str, dict[str, np.ndarray]]  # way of slicing -> name of the slice -> which items are in it


def compare_sets(
    folders: Iterable[str | Path], split: str | None = None, against: str | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Compares the finished runs in `folders`, those of each set of items by themselves; see conf/compare.yaml.

    split: None takes test where all runs of a test set have predictions of it, else validation. against: applies to
    the sets with a variant of that label. options: of `compare`. Returns a comparison for each set, of plain values
    that JSON can hold. Raises UserError when there is nothing to compare, or for an unknown `against`.
    """
    runs, skipped = find_runs(folders)
    comparisons = []
    for chosen, some in by_set(runs, split):
        predictions, more = read_predictions(some, chosen)
        skipped += more
        if kept := [run for run in some if run.folder in predictions]:
            untested = [] if split else [shown(run.folder) for run in some if not run.has("test")]
            comparison = compare(kept, predictions, chosen, against=against, **options)
            comparisons.append(comparison | {"untested": untested, "skipped": skipped})
    if not comparisons:
        raise UserError(f"no run has {chosen} predictions that can be read: {more[0]['reason']}")
    labels = dict.fromkeys(rung["label"] for comparison in comparisons for rung in comparison["rungs"])
    if against not in (None, *labels):
        raise UserError(f"against={against} is not among the runs; choose one of {', '.join(labels)}")
    return comparisons


def by_set(runs: Sequence[Run], split: str | None = None) -> list[tuple[str, list[Run]]]:
    """The runs put together by the items that they were scored on, each time with the split.

    split: None takes test where all runs of a test set have predictions of it, else validation.
    """

    def alike(some: Sequence[Run], name: str) -> Iterable[list[Run]]:
        groups: dict[str | None, list[Run]] = {}
        for run in some:
            groups.setdefault(run.metrics.get(FINGERPRINT[name]), []).append(run)
        return groups.values()

    found = []
    for group in alike(runs, split or "test"):
        chosen = split or ("test" if all(run.has("test") for run in group) else "validation")
        found += [(chosen, some) for some in alike(group, chosen)]
    return found


def compare(
    runs: Sequence[Run],
    predictions: Mapping[Path, Predictions],
    split: str,
    resamples: int = 10_000,
    seed: int = 0,
    words: Mapping[str, Sequence[str]] | None = None,
    disagreements: int = 20,
    against: str | None = None,
) -> dict[str, Any]:
    """The comparison of runs that were scored on the same items, as plain values."""
    found = variants(runs)
    masks, texts = slices(runs, predictions, split, words or {})
    told = [[predictions[run.folder] for run in one.runs] for one in found]
    rights = [np.stack([one.right_N for one in seeds], axis=1) for seeds in told]
    share_NV = np.stack([right_NS.mean(1) for right_NS in rights], axis=1)
    noise_V = np.array([statistics.seed_noise(right_NS) for right_NS in rights])
    means_BV = statistics.review_means(share_NV, resamples, seed)
    shifts_BV = statistics.seed_shifts([right_NS.mean(0) for right_NS in rights], resamples, seed)
    drawn = Resampled(share_NV, noise_V, means_BV, shifts_BV, [len(seeds) for seeds in told])
    first = runs[0]
    classes = first.labels
    points = [] if first.items == REVIEWS else length_points(told[0][0].lengths_N)
    rungs = [
        describe(one, seeds, masks, len(classes))
        | {"interval": list(drawn.interval(v)), "lengths": by_length(seeds, points)}
        for v, (one, seeds) in enumerate(zip(found, told, strict=True))
    ]
    return {
        "split": split,
        "test_set": first.metrics["test_set"],
        "fingerprint": first.metrics[FINGERPRINT[split]],
        "items": first.items,
        "unit": unit(first.items),
        "reviews": len(share_NV),
        "labels": classes,
        "one_validation": len({str(run.metrics.get(FINGERPRINT["validation"])) for run in runs}) == 1,
        "environments": environments(runs),
        "folders": [shown(run.folder) for run in runs],
        "method": {"resamples": resamples, "seed": seed, "level": LEVEL, "words": dict(words or {})},
        "rungs": rungs,
        "pairs": compare_pairs(found, neighbours(found, against), drawn),
        "disagreements": disputed(found, told, texts, classes, disagreements),
    }


def read_predictions(runs: Sequence[Run], split: str) -> tuple[dict[Path, Predictions], list[Skipped]]:
    """Folder -> predictions of `split`, line for line of the same items, and the runs that have none or other ones."""
    found: dict[Path, Predictions] = {}
    skipped = []
    for run in runs:
        try:
            if not run.has(split):
                raise UserError(f"it has no {split} predictions")
            found[run.folder] = run.predictions(split)
        except Exception as error:  # whatever a broken file raises: it is one run of many
            skipped.append(passed_over(run.folder, error))
    if not found:
        return found, skipped
    first = max((run for run in runs if run.folder in found), key=lambda run: len(found[run.folder].rows_N))
    longest = found[first.folder]
    for run in (run for run in runs if run.folder in found):
        one = found[run.folder]
        if not (np.array_equal(one.rows_N, longest.rows_N) and np.array_equal(one.labels_N, longest.labels_N)):
            reason = f"it scored {len(one.rows_N):,} {first.items} only, or others"
        elif len(run.labels) != len(first.labels):
            reason = "it has other labels than the other runs"
        else:
            continue
        skipped.append({"folder": shown(run.folder), "reason": reason})
        del found[run.folder]
    return found, skipped


def describe(one: Variant, seeds: Sequence[Predictions], masks: Masks, classes: int) -> dict[str, Any]:
    """What one variant's runs say, all but the interval and the accuracy by length."""
    metrics = [run.metrics for run in one.runs]
    confidences = [told.confidence_N for told in seeds]
    rights = [told.right_N for told in seeds]
    pooled = statistics.reliability(np.concatenate(confidences), np.concatenate(rights))
    trained_on = one.shared.get(RANGE)
    return {
        "label": one.label,
        "model": one.model,
        "after": one.after,
        "varied": one.varied,
        "trained_on": trained_on if is_range(trained_on) else None,
        "apart_from_range": apart_from(one, RANGE),
        "seeds": [run["seed"] for run in metrics],
        "folders": [shown(run.folder) for run in one.runs],
        "validation": spread([run["val_accuracy"] for run in metrics]),
        "test": spread([run.get("test_accuracy") for run in metrics]),
        "bleu": {
            split: spread([run.get(name) for run in metrics])
            for split, name in (("validation", "val_bleu"), ("test", "test_bleu"))
        },
        **{
            name: average([run.get(name) for run in metrics])
            for name in ("parameters", "tokens_per_s", "train_seconds", "epochs")
        },
        "ece": mean(map(statistics.calibration_error, confidences, rights)),
        "reliability": [group | {"count": group["count"] / len(seeds)} for group in pooled],
        "confusion": confusion(seeds, classes),
        "slices": {
            way: [
                {"name": name, "reviews": int(mask.sum()), "accuracy": float(np.mean([r[mask].mean() for r in rights]))}
                for name, mask in named.items()
                if mask.any()
            ]
            for way, named in masks.items()
        },
        "curves": curves(one.runs),
    }


def confusion(seeds: Sequence[Predictions], classes: int) -> list[list[float]]:
    """(C, C): mean numbers of items over seeds, of each true class (line) and predicted class; [] without classes."""
    found = [
        statistics.confusion(one.labels_N, one.predicted_N, classes) for one in seeds if one.predicted_N is not None
    ]
    return np.mean(found, axis=0).tolist() if found else []


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Mean and standard deviation over seeds; None where a seed has no value."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return {"mean": mean(known), "sd": stdev(known) if len(known) > 1 else None, "values": known}


def average(values: Sequence[float | None]) -> float | None:
    found = spread(values)
    return None if found is None else found["mean"]


def curves(runs: Sequence[Run]) -> dict[str, Any]:
    """Learning curves by name: the epochs, and a list of values a seed, None behind the last epoch of a shorter one."""
    found = {}
    for name in CURVES:
        seeds = [dict(zip(*run.curves[name], strict=True)) for run in runs if name in run.curves]
        if seeds:
            epochs = sorted({epoch for values in seeds for epoch in values})
            found[name] = {"epochs": epochs, "values": [[values.get(epoch) for epoch in epochs] for values in seeds]}
    return found


def slices(
    runs: Sequence[Run], predictions: Mapping[Path, Predictions], split: str, words: Mapping[str, Sequence[str]]
) -> tuple[Masks, list[str] | None]:
    """Slices by length (words between spaces) and by contrast words, and the texts; without texts by tokens read.

    Words that all texts have, or none has, make no slices.
    """
    lengths_N, items = predictions[runs[0].folder].lengths_N, runs[0].items
    texts = next((texts for run in runs if (texts := run.texts(split)) and len(texts) == len(lengths_N)), None)
    if texts is None:
        return {"length": statistics.length_slices(lengths_N, "tokens read" if items == REVIEWS else unit(items))}, None
    counts_N = np.array([len(text.split()) for text in texts])  # whatever tokenizer the runs had
    masks = {"length": statistics.length_slices(counts_N, unit(items))}
    by_word = {name: statistics.word_slices(texts, listed) for name, listed in words.items()}
    return masks | {name: found for name, found in by_word.items() if all(map(np.any, found.values()))}, texts


def unit(items: str) -> str:
    """What the length of an item is counted in."""
    return "symbols" if items == "strings" else "words"


def is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(end) is int and 0 < end < 10**6 for end in value)


def length_points(lengths_N: np.ndarray) -> list[tuple[int, int]]:
    """(shortest, longest) of the groups of lengths behind each point of a line: each length that occurs by itself.

    Lengths with too few items go together with the next longer ones: a group has at least FEWEST items, and at least
    as many as keep the line to POINTS groups. The last group takes what is left.
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


def by_length(seeds: Sequence[Predictions], points: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """For each of the points its shortest, longest and mean length, its items, and the accuracy of each seed."""
    lengths_N, found = seeds[0].lengths_N, []
    for shortest, longest in points:
        mask_N = (lengths_N >= shortest) & (lengths_N <= longest)
        found.append(
            {
                "shortest": shortest,
                "longest": longest,
                "mean": float(lengths_N[mask_N].mean()),
                "reviews": int(mask_N.sum()),
                "accuracies": [float(one.right_N[mask_N].mean()) for one in seeds],
            }
        )
    return found


@dataclass(frozen=True)
class Resampled:
    """What intervals are made of; see analysis.statistics."""

    share_NV: np.ndarray  # of the seeds that are right about an item
    noise_V: np.ndarray
    means_BV: np.ndarray
    shifts_BV: np.ndarray
    seeds: list[int]  # of each variant

    def interval(self, to: int, old: int | None = None) -> tuple[float, float]:
        """Of a variant's accuracy, or of its difference from that of `old`."""
        places, signs = ([to], [1]) if old is None else ([to, old], [1, -1])
        share_N, means_B, shifts_B = (a[:, places] @ signs for a in (self.share_NV, self.means_BV, self.shifts_BV))
        noise = self.noise_V[places].sum() / max(share_N.var(), 1e-12)
        ends = statistics.interval(means_B, shifts_B, self.freedom(*places), noise, LEVEL)
        low, high = np.clip(ends, 0.0 if old is None else -1.0, 1.0)  # no accuracy lies beyond
        return float(low), float(high)

    def freedom(self, *places: int) -> int:
        """Degrees of freedom of the spread over seeds."""
        return sum(self.seeds[place] - 1 for place in places)


def compare_pairs(found: Sequence[Variant], pairs: Sequence[tuple[int, int]], drawn: Resampled) -> list[dict[str, Any]]:
    """Difference, interval, test and words of each pair (from, to) of places in `found`."""
    share_NV = drawn.share_NV
    p_values = [statistics.mcnemar(share_NV[:, to] - share_NV[:, old]) for old, to in pairs]
    compared = []
    for (old, to), p, holm_p in zip(pairs, p_values, statistics.holm(p_values), strict=True):
        low, high = drawn.interval(to, old)
        pair = {
            "from": found[old].label,
            "to": found[to].label,
            "about": ABOUT[sum(drawn.seeds[place] == 1 for place in (old, to))],
            "difference": float((share_NV[:, to] - share_NV[:, old]).mean()),
            "interval": [low, high],
            "only_to_right": float((share_NV[:, to] * (1 - share_NV[:, old])).sum()),
            "only_from_right": float((share_NV[:, old] * (1 - share_NV[:, to])).sum()),
            "mcnemar_p": p,
            "holm_p": holm_p,
            "verdict": statistics.verdict(holm_p, low, high),
        }
        compared.append(pair | {"words": in_words(pair, found[old], found[to], len(pairs))})
    return compared


def in_words(pair: Mapping[str, Any], old: Variant, to: Variant, comparisons: int) -> str:
    """`residual against base: better by 1.9 points (1.4 to 2.4), p < 0.001`, and which models that is about.

    Where the test and the interval disagree, it is said why. comparisons: the number that p is corrected for.
    """
    (low, high), p, decided = pair["interval"], p_value(pair["holm_p"]), pair["verdict"] != "undecided"
    if decided:
        near, far = sorted(map(abs, pair["interval"]))
        said = f"{pair['verdict']} by {percents(abs(pair['difference']))} points ({percents(near)} to {percents(far)})"
    else:
        said = f"no difference shown, {signed(pair['difference'])} points ({points(pair['interval'])})"
    if not decided and pair["holm_p"] < 0.05 and pair["about"] == TRAINED:
        said += f"; {p} but the interval includes 0"
    elif not decided and pair["holm_p"] < 0.05:
        said += f"; {p} is about these trained models only; the interval is about other seeds too and includes 0"
    elif not decided and not low <= 0 <= high:
        many = f"{comparisons:,} comparison{'s' * (comparisons > 1)}"
        said += f"; the interval excludes 0, but {p} (corrected for {many})"
    else:
        said += f", {p}"
    single = [one.label for one in (old, to) if len(one.runs) == 1]
    if len(single) == 2:
        said += " (one seed each: these two trained models only)"
    elif single:
        said += f" (one seed of {single[0]}: that trained model only)"
    return f"{to.label} against {old.label}: {said}"


def disputed(
    found: Sequence[Variant],
    told: Sequence[Sequence[Predictions]],
    texts: Sequence[str] | None,
    labels: Sequence[str],
    count: int,
) -> list[dict[str, Any]]:
    """The items on which variants differ most: by the standard deviation of the label's mean probability.

    labels: names of the classes; none where the label is the first reference itself.
    """
    first = told[0][0]
    true_NV = np.stack([np.mean([one.true_N for one in seeds], axis=0) for seeds in told], axis=1)
    spread_N = true_NV.std(1)
    most = [n for n in np.argsort(-spread_N, kind="stable")[:count] if spread_N[n] > 0]
    return [
        {
            "row": int(first.rows_N[n]),
            "label": str(labels[first.labels_N[n]] if labels else first.labels_N[n]),
            "text": texts[n] if texts is not None else None,
            "probability": {one.label: float(true) for one, true in zip(found, true_NV[n], strict=True)},
            "spread": float(spread_N[n]),
        }
        for n in most
    ]


def environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The distinct machines and versions that the runs were made with."""
    found = []
    for told in (run.environment for run in runs if run.environment):
        one = {name: told.get(name) for name in ("python", "platform", "cpus", "threads", "gpu")}
        one |= {name: told.get("versions", {}).get(name) for name in ("torch", "lightning")}
        if one not in found:
            found.append(one)
    return found
