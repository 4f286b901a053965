"""The results of all runs on the same reviews: a row for each number, and the tested claims.

Claims are tested as in a comparison: the interval and the p-value come from one model of the
uncertainty over reviews and seeds (report/statistics), and p is corrected for the number of claims.

Suffixes of arrays: N reviews, S seeds.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from imdbattn.report.comparison import environments, paths_of, spread
from imdbattn.report.comparison_types import Interval, ScoredItems, Skipped, Spread
from imdbattn.report.finished_runs import FinishedRun
from imdbattn.report.statistics import LEVEL, estimate_mean, estimate_share, holm, verdict
from imdbattn.report.variants import Variant, group_variants
from imdbattn.settings.command_settings import FaithfulnessSettings

Tables = dict[str, pa.Table]  # name of the measurement -> its table
RANDOM = "random"
SHARES = ("pairs",)  # measures from 0 to 1, often exactly 0 or 1
MIN_REVIEWS = 10  # reviews of a claim
# Measures of attributions that are compared with random words; 1 if more is better.
BETTER = {"comprehensiveness": 1, "sufficiency": -1, "auprc": 1, "human": 1}


class VariantFacts(TypedDict):
    label: str
    seeds: list[int]
    folders: list[str]
    accuracy: Spread


class MeasuredNumber(TypedDict):
    """about: an attribution, or a text of a pair. few: if the reviews are too few for a claim."""

    variant: str
    measure: str
    about: str
    mean: float
    interval: Interval
    p: float
    reviews: int
    few: bool


class Claim(MeasuredNumber):
    """A difference from random words. holm_p: p, corrected for the number of claims."""

    holm_p: float
    verdict: str


class Summary(ScoredItems):
    """The content of faithfulness.json. method: the settings, and what the tests assume."""

    method: dict[str, Any]
    environments: list[dict[str, object]]
    folders: list[str]
    variants: list[VariantFacts]
    numbers: list[MeasuredNumber]
    claims: list[Claim]
    skipped: list[Skipped]


class MeasuredVariant:
    """Runs that differ in their seed only, and their tables."""

    def __init__(self, variant: Variant, tables: Sequence[Tables]):
        self.variant = variant
        self.tables = tables
        # name of the measurement -> names of its columns after the row
        self.columns = {name: table.column_names[1:] for name, table in tables[0].items()}
        self.attributions = [name for name, columns in self.columns.items() if "right" in columns]

    def column(self, measurement: str, name: str) -> np.ndarray:
        """Returns (N, S): the mean over shares of the words where a review has several numbers."""
        seeds = []
        for tables in self.tables:
            seeds.append(np.array(tables[measurement][name].to_pylist(), dtype=float))
        value = np.stack(seeds, axis=1)
        return value.mean(-1) if value.ndim == 3 else value

    def quantities(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yields a measure, the attribution or text that it is about, and its values (N, S)."""
        normalized = self.normalized()
        for attribution in self.attributions:
            for name in self.columns[attribution]:
                if name not in ("right", "attributions"):
                    yield name, attribution, self.column(attribution, name)
            if attribution in normalized:
                yield "normalized", attribution, normalized[attribution]
            if f"human-{attribution}" in self.columns:
                yield "human", attribution, self.column(f"human-{attribution}", "human")
            randomized = f"randomized-{attribution}"
            stages = self.columns.get(randomized, [])
            for name in stages:
                about = f"{attribution}, {name}"
                yield "randomized_by_part", about, self.column(randomized, name)
            if stages:  # after the last stage, all weights except the embedding's are random
                yield "randomized", attribution, self.column(randomized, stages[-1])
        for name in self.columns.get("pairs", ()):
            yield "pairs", name, self.column("pairs", name)

    def normalized(self) -> dict[str, np.ndarray]:
        """Returns (N, S) for each attribution: where its AOPC is between 0, the lowest that the
        search or an attribution found, and 1, the highest.

        NaN where all orders have the same AOPC, and in the reviews that a costly attribution omits.
        """
        if "extremes" not in self.columns:
            return {}
        low_NS = self.column("extremes", "low")
        high_NS = self.column("extremes", "high")
        aopc = {attribution: np.full_like(low_NS, np.nan) for attribution in self.attributions}
        for attribution, aopc_NS in aopc.items():
            measured_NS = self.column(attribution, "comprehensiveness")[: len(aopc_NS)]
            aopc_NS[: len(measured_NS)] = measured_NS
            low_NS = np.fmin(low_NS, aopc_NS)
            high_NS = np.fmax(high_NS, aopc_NS)
        with np.errstate(invalid="ignore"):
            return {name: (aopc_NS - low_NS) / (high_NS - low_NS) for name, aopc_NS in aopc.items()}

    def facts(self) -> VariantFacts:
        """Returns the label, the runs and the accuracy."""
        return {
            "label": self.variant.label,
            "seeds": [run.metrics["seed"] for run in self.variant.runs],
            "folders": paths_of(self.variant.runs),
            "accuracy": spread(self.column(RANDOM, "right").mean(0).tolist()),
        }


def summarize(
    measured: Sequence[tuple[FinishedRun, Tables]],
    fingerprint: str,
    options: FaithfulnessSettings,
    skipped: list[Skipped],
) -> Summary:
    """Returns the content of faithfulness.json for runs on the same reviews.

    A claim needs MIN_REVIEWS; numbers of fewer reviews are listed without a claim.

    Args:
        measured: the runs and their tables.
        fingerprint: the fingerprint of the split.
    """
    tables = {run.folder: of_run for run, of_run in measured}
    runs = [run for run, _ in measured]
    variants = []
    for variant in group_variants(runs):
        variants.append(MeasuredVariant(variant, [tables[run.folder] for run in variant.runs]))
    numbers: list[MeasuredNumber] = []
    differences: list[MeasuredNumber] = []
    for measured_variant in variants:
        quantities = list(measured_variant.quantities())
        random = {measure: value_NS for measure, about, value_NS in quantities if about == RANDOM}
        for measure, about, value_NS in quantities:
            estimate = partial(estimated, measured_variant.variant.label, measure, about)
            numbers += estimate(value_NS)
            if measure in BETTER and about != RANDOM:
                gain_NS = BETTER[measure] * (value_NS - random[measure][: len(value_NS)])
                differences += [gain for gain in estimate(gain_NS) if not gain["few"]]
    claims: list[Claim] = []
    corrected = holm([difference["p"] for difference in differences])
    for difference, p in zip(differences, corrected, strict=True):
        claims.append({**difference, "holm_p": p, "verdict": verdict(p, difference["mean"])})
    kept = {"split", "seed", "reviews", "shares", "costly_reviews", "search", "random_reviews"}
    return {
        "split": options.split,
        "test_set": runs[0].metrics["test_set"],
        "fingerprint": fingerprint,
        "count": len(variants[0].column(RANDOM, "right")),
        "method": {"level": LEVEL, "fewest": MIN_REVIEWS, **options.model_dump(include=kept)},
        "environments": environments(runs),
        "folders": paths_of(runs),
        "variants": [variant.facts() for variant in variants],
        "numbers": numbers,
        "claims": claims,
        "skipped": skipped,
    }


def estimated(label: str, measure: str, about: str, value_NS: np.ndarray) -> list[MeasuredNumber]:
    """Returns a row with the mean of a measure, its interval, p and the number of reviews.

    Reviews for which the value is undefined are omitted; the list is empty if it is undefined for
    every review.
    """
    defined_NS = value_NS[np.isfinite(value_NS).all(1)]
    reviews = len(defined_NS)
    if not reviews:
        return []
    estimate = estimate_share(defined_NS) if measure in SHARES else estimate_mean(defined_NS)
    interval = estimate.interval
    if interval is not None:
        interval = (max(interval[0], -1.0), min(interval[1], 1.0))
    number: MeasuredNumber = {
        "variant": label,
        "measure": measure,
        "about": about,
        "mean": estimate.mean,
        "interval": interval,
        "p": estimate.p,
        "reviews": reviews,
        "few": reviews < MIN_REVIEWS,
    }
    return [number]
