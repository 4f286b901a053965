"""The results of all runs on the same reviews: a table with a row for each number, and the claims
that are tested.

Claims are tested as in a comparison: the interval and the p-value are of one model of the
uncertainty over reviews and seeds (report/statistics), and p is corrected for the number of claims.

Suffixes of arrays: N reviews, S seeds.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from imdbattn.report.comparison import as_list, environments, folders_of, spread
from imdbattn.report.finished_runs import Run, Variant, variants
from imdbattn.report.statistics import LEVEL, holm, mean_of, share_of, verdict
from imdbattn.tools.faithfulness.settings import Faithfulness

Tables = dict[str, pa.Table]  # name of the part -> its table
RANDOM = "random"
# of the test with random weights, beside the correlations after each part
FORMS = ("efficient", "smooth")
# else -1 and 1
LIMITS = {"speed": (0, np.inf), "incompleteness": (0, np.inf), "randomized_efficient": (-1, np.inf)}
SHARES = ("pairs",)  # whose values are from 0 to 1, and often at an end
FEWEST = 10  # reviews of a claim
# Measures of scores that are compared with random words; 1 if more is better.
BETTER = {"comprehensiveness": 1, "sufficiency": -1, "auprc": 1, "human": 1}


class Rung:
    """Runs that differ in their seed only, and their tables."""

    def __init__(self, variant: Variant, tables: Sequence[Tables]):
        self.variant, self.tables = variant, tables
        common = set.intersection(*(set(one) for one in tables))
        self.parts = {
            name: one.column_names[1:] for name, one in tables[0].items() if name in common
        }
        self.scores = [name for name, columns in self.parts.items() if "right" in columns]

    def column(self, part: str, name: str) -> np.ndarray:
        """(N, S): the mean over shares of the words where a review has several numbers."""
        value = np.stack(
            [np.array(one[part][name].to_pylist(), dtype=float) for one in self.tables], axis=1
        )
        return value.mean(-1) if value.ndim == 3 else value

    def words(self, score: str) -> list[list[list[float]]]:
        """The scores of the words of each review, for each seed."""
        return [one[score]["scores"].to_pylist() for one in self.tables]

    def quantities(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """A measure; the score or text that it is of; its value (N, S) for each review and seed."""
        searched = self.searched()
        for score in self.scores:
            for name in self.parts[score]:
                if name not in ("right", "seconds", "scores"):
                    yield name, score, self.column(score, name)
            yield (
                "speed",
                score,
                1 / self.column(score, "seconds").mean(0, keepdims=True).clip(1e-9),
            )
            if score in searched:
                yield from zip(
                    ("searched", "normalized"), (score, score), searched[score], strict=True
                )
            if f"human-{score}" in self.parts:
                yield "human", score, self.column(f"human-{score}", "human")
            stages = []
            for name in self.parts.get(f"randomized-{score}", ()):
                value_NS = self.column(f"randomized-{score}", name)
                if name in FORMS:
                    yield f"randomized_{name}", score, value_NS
                else:
                    stages.append(value_NS)
                    yield "randomized_by_part", f"{score}, {name}", value_NS
            if stages:
                yield "randomized", score, stages[-1]
            signed = any(min(scores) < 0 for scores in self.words(score)[0] if scores)
            if signed and score != "leave_one_out" and "leave_one_out" in self.scores:
                seeds = zip(self.words(score), self.words("leave_one_out"), strict=True)
                yield (
                    "wrong_sign",
                    score,
                    np.array([list(map(wrong_sign, *both)) for both in seeds]).T,
                )
        for name in self.parts.get("pairs", ()):
            yield "pairs", name, self.column("pairs", name)

    def searched(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """(N, S) of each score: its AOPC, and where that is between the lowest (0) and the highest
        (1) that the search and all scores found; NaN where all orders have the same, and in the
        reviews that a costly score omits.
        """
        if "extremes" not in self.parts:
            return {}
        low_NS, high_NS = (self.column("extremes", name) for name in ("low", "high"))
        aopc = {score: np.full_like(low_NS, np.nan) for score in self.scores}
        for score, aopc_NS in aopc.items():
            found_NS = self.column(score, "comprehensiveness")[: len(aopc_NS)]
            aopc_NS[: len(found_NS)] = found_NS
            low_NS, high_NS = np.fmin(low_NS, aopc_NS), np.fmax(high_NS, aopc_NS)
        with np.errstate(invalid="ignore"):
            places = {
                score: (aopc_NS - low_NS) / (high_NS - low_NS) for score, aopc_NS in aopc.items()
            }
        return {
            score: (np.where(np.isnan(place), np.nan, aopc[score]), place)
            for score, place in places.items()
        }

    def facts(self) -> dict[str, Any]:
        shares = {}
        for score in self.scores:
            shares[score] = [one[score]["comprehensiveness"].to_pylist() for one in self.tables]
        return {
            "label": self.variant.label,
            "seeds": [run.metrics["seed"] for run in self.variant.runs],
            "folders": folders_of(self.variant.runs),
            "accuracy": spread(self.column(RANDOM, "right").mean(0).tolist()),
            "by_share": {
                score: np.mean(values, axis=(0, 1)).tolist() for score, values in shares.items()
            },
        }


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """NaN for fewer than two words, or if all scores are equal."""
    from scipy.stats import rankdata

    ranks = [rankdata(scores) for scores in (first, second)]
    distinct = all(each.size and np.ptp(each) for each in ranks)
    return float(np.corrcoef(*ranks)[0, 1]) if distinct else float("nan")


def wrong_sign(scores: Sequence[float], truth: Sequence[float]) -> float:
    """The share of words with another sign than in `truth`, without words whose score is 0; NaN if
    there is none.
    """
    product = np.array(scores) * np.array(truth)
    return float(np.mean(product[product != 0] < 0)) if product.any() else float("nan")


def summarize(
    measured: Sequence[tuple[Run, Tables]], fingerprint: str, cfg: Faithfulness
) -> dict[str, Any]:
    """Returns the content of faithfulness.json for runs on the same reviews.

    A claim needs FEWEST reviews; the numbers of those with fewer are listed without a claim.
    measured: the runs and their tables. fingerprint: of the split.
    """
    tables = {run.folder: one for run, one in measured}
    runs = [run for run, _ in measured]
    rungs = []
    for one in variants(runs):
        rungs.append(Rung(one, [tables[run.folder] for run in one.runs]))
    numbers: list[dict[str, Any]] = []
    claims: list[dict[str, Any]] = []
    for rung in rungs:
        found = list(rung.quantities())
        random = {measure: value_NS for measure, about, value_NS in found if about == RANDOM}
        for measure, about, value_NS in found:
            names = {"rung": rung.variant.label, "measure": measure, "about": about}
            numbers += estimated(names, value_NS)
            if measure in BETTER and about != RANDOM:
                gain_NS = BETTER[measure] * (value_NS - random[measure][: len(value_NS)])
                claims += [claim for claim in estimated(names, gain_NS) if not claim["few"]]
    for claim, p in zip(claims, holm([claim["p"] for claim in claims]), strict=True):
        claim |= {"holm_p": p, "verdict": verdict(p, claim["mean"])}
    return {
        "split": cfg.split,
        "test_set": runs[0].metrics["test_set"],
        "fingerprint": fingerprint,
        "reviews": len(rungs[0].column(RANDOM, "right")),
        "method": {"level": LEVEL, "fewest": FEWEST}
        | cfg.model_dump(exclude={"runs", "out", "scores", "pairs_of", "trust", "data"}),
        "environments": environments(runs),
        "folders": folders_of(runs),
        "rungs": [rung.facts() for rung in rungs],
        "numbers": numbers,
        "claims": claims,
    }


def estimated(names: dict[str, Any], value_NS: np.ndarray) -> list[dict[str, Any]]:
    """Returns a row with the mean of a measure, its interval, p and the number of reviews.

    Reviews for which the value is undefined are omitted; the list is empty if it is so for all. The
    measure `speed` is a number of each seed, not of reviews.
    """
    defined_NS = value_NS[np.isfinite(value_NS).all(1)]
    reviews = len(defined_NS)
    if not reviews:
        return []
    measure = names["measure"]
    estimate = share_of(defined_NS) if measure in SHARES else mean_of(defined_NS)
    interval = estimate.interval
    if interval is not None:
        low, high = LIMITS.get(measure, (-1, 1))
        interval = max(interval[0], low), min(interval[1], high)
    few = measure != "speed" and reviews < FEWEST
    facts = {"mean": estimate.mean, "interval": as_list(interval), "p": estimate.p}
    return [names | facts | {"reviews": reviews, "few": few}]
