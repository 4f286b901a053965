"""The results of all runs on the same reviews, as a dict of plain values that report and figures display.

Intervals are those of comparison/statistics.Bootstrap. Claims are tested as in a comparison: by a p-value over reviews,
which applies to these trained models only and is corrected for the number of claims, and by an interval that also
covers other seeds.

Suffixes of arrays: N reviews, S seeds, K shares of the words, P pairs of explanations.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from imdbattn.comparison.compare import environments, folders_of, spread
from imdbattn.comparison.runs import Run, Variant, variants
from imdbattn.comparison.statistics import LEVEL, Bootstrap, holm, verdict
from imdbattn.faithfulness.attributions import ATTRIBUTIONS
from imdbattn.faithfulness.erasure import SHOWN
from imdbattn.faithfulness.measure import LAST
from imdbattn.settings.schema import Faithfulness

Tables = dict[str, pa.Table]  # name of the part -> its table
Quantity = tuple[str, str]  # its name, and the score or the unit that it is about
BINS = 5  # of reviews, by their largest attention weight
QUARTILES = (0.25, 0.5, 0.75)
RANDOM = "random"
LOG_2 = float(np.log(2))  # the largest Jensen-Shannon divergence
LIMITS = {"auprc": (0, 1), "permutation": (0, 1)}  # of values; of the others they are -1 and 1
SIGNS = {"comprehensiveness": 1, "sufficiency": -1, "auprc": 1}  # 1 if more is better
REMOVABLE = {"better": "removable", "worse": "needed", "undecided": "undecided"}


def summarize(measured: Sequence[tuple[Run, Tables]], fingerprint: str, cfg: Faithfulness) -> dict[str, Any]:
    """measured: runs on the same reviews, and their tables. fingerprint: of the split."""
    tables = {run.folder: one for run, one in measured}
    runs = [run for run, _ in measured]
    ladder = [Rung(one, [tables[run.folder] for run in one.runs], cfg) for one in variants(runs)]
    values = [(rung, quantity, value_NS) for rung in ladder for quantity, value_NS in rung.quantities()]
    bootstrap = Bootstrap([value_NS for *_, value_NS in values], cfg.resamples, cfg.seed)
    for number, (rung, quantity, value_NS) in enumerate(values):
        rung.estimates[quantity] = estimate(value_NS, bootstrap.interval(number), LIMITS.get(quantity[0], (-1, 1)))
    method = cfg.model_dump(include={"shares", "steps", "permutations", "margin", "epoch_reviews", "resamples", "seed"})
    method |= {"epsilon": cfg.adversary.epsilon, "adversary_reviews": cfg.adversary.reviews, "level": LEVEL}
    return {
        "split": cfg.split,
        "test_set": runs[0].metrics["test_set"],
        "fingerprint": fingerprint,
        "reviews": len(bootstrap.mean_NV),
        "labels": runs[0].labels,
        "known_rationales": any(name == "auprc" for rung in ladder for name, _ in rung.estimates),
        "method": method,
        "environments": environments(runs),
        "folders": folders_of(runs),
        "rungs": [rung.summary() for rung in ladder],
        "claims": claims(values, cfg.margin),
    }


def estimate(value_NS: np.ndarray, interval: Sequence[float], limits: tuple[float, float]) -> dict[str, Any]:
    """limits: of possible values, to which the interval is clipped."""
    low, high = np.clip(interval, *limits).tolist()
    return {"mean": float(value_NS.mean()), "interval": [low, high], "values": value_NS.mean(0).tolist()}


class Rung:
    """Runs that differ in their seed only, and their tables. estimates: of its `quantities`, with their intervals."""

    def __init__(self, variant: Variant, tables: Sequence[Tables], cfg: Faithfulness):
        self.variant, self.tables, self.cfg = variant, tables, cfg
        self.estimates: dict[Quantity, dict[str, Any]] = {}
        self.parts = [name for name in tables[0] if all(name in each for each in tables)]
        self.scores = [name for name in ATTRIBUTIONS if name in self.parts]
        columns = tables[0]["ablation"].column_names if "ablation" in self.parts else []
        self.units = [name for name in columns if name not in ("row", "model")]

    def column(self, part: str, name: str) -> np.ndarray:
        """(N, S), or (N, S, K) for a column of lists."""
        return np.stack([np.array(table[part][name].to_pylist(), dtype=float) for table in self.tables], axis=1)

    def quantities(self) -> Iterator[tuple[Quantity, np.ndarray]]:
        """Names and values (N, S) of the quantities with an interval over reviews and seeds.

        A gain is the difference from random words, positive if the score is better.
        """
        for score in self.scores:
            for name, sign in SIGNS.items():
                if name in self.tables[0][score].column_names:
                    own_NS = area(self.column(score, name))
                    yield (name, score), own_NS
                    if score != RANDOM:
                        yield (f"{name} gain", score), sign * (own_NS - area(self.column(RANDOM, name)))
        if "permutation" in self.parts:
            yield ("permutation", ""), self.column("permutation", "distance")
        for unit in self.units:
            yield ("ablation", unit), self.column("ablation", unit) - self.column("ablation", "model")

    def interval(self, value_NS: np.ndarray) -> tuple[float, float]:
        """Of one quantity that was measured on other reviews than the `quantities`."""
        return Bootstrap([value_NS], self.cfg.resamples, self.cfg.seed).interval(0)

    def summary(self) -> dict[str, Any]:
        runs, permutation = self.variant.runs, self.estimates.get(("permutation", ""))
        changes = {unit: self.estimates["ablation", unit] for unit in self.units}
        return {
            "label": self.variant.label,
            "model": self.variant.model,
            "after": self.variant.after,
            "seeds": [run.metrics["seed"] for run in runs],
            "folders": folders_of(runs),
            "accuracy": spread(self.column(RANDOM, "right").mean(0).tolist()),
            "scores": {score: self.score_summary(score) for score in self.scores},
            "permutation": permutation and permutation | {"by_weight": self.by_weight()},
            "adversary": self.adversary(),
            "ablation": [
                {"unit": unit, "accuracy": float(self.column("ablation", unit).mean())}
                | {"change": change["mean"], "interval": change["interval"]}
                for unit, change in changes.items()
            ],
        }

    def score_summary(self, score: str) -> dict[str, Any]:
        auprc = self.estimates.get(("auprc", score))
        best = [table[score]["scores"].to_pylist() for table in self.tables]
        best_and_last = [
            (scores, table[LAST + score]["scores"].to_pylist())
            for scores, table in zip(best, self.tables, strict=True)
            if LAST + score in table  # the best epoch is not the last one
        ]
        erasure = {
            name: self.estimates[name, score] | {"by_share": self.column(score, name).mean((0, 1)).tolist()}
            for name in ("comprehensiveness", "sufficiency")
        }
        return erasure | {
            "auprc": auprc,
            "precision": auprc and {str(k): float(self.column(score, f"precision_{k}").mean()) for k in SHOWN},
            "seeds": self.correlation([*combinations(best, 2)]),
            "epochs": self.correlation(best_and_last),
            "reviews_per_s": 1 / max(float(self.column(score, "seconds").mean()), 1e-9),
        }

    def by_weight(self) -> list[dict[str, Any]]:
        """Quartiles of the distance, for reviews grouped by their largest weight."""
        weight_NS, distance_NS = (self.column("permutation", name) for name in ("weight", "distance"))
        bounds = np.unique(np.quantile(weight_NS, np.linspace(0, 1, BINS + 1)))
        groups = []
        for low, high in pairwise(bounds):
            inside_NS = (weight_NS >= low) & ((weight_NS < high) | (high == bounds[-1]))
            if inside_NS.any():
                quartiles = np.quantile(distance_NS[inside_NS], QUARTILES).tolist()
                number = round(inside_NS.sum() / len(self.tables))
                groups.append({"low": float(low), "high": float(high), "reviews": number, "quartiles": quartiles})
        return groups

    def adversary(self) -> dict[str, Any] | None:
        if "adversary" not in self.parts:
            return None
        value_NS = self.column("adversary", "divergence")
        return estimate(value_NS, self.interval(value_NS), (0, LOG_2)) | {"reviews": len(value_NS)}

    def correlation(self, pairs: Sequence[tuple[list[list[float]], list[list[float]]]]) -> dict[str, Any] | None:
        """Rank correlation between two scores of each word of a review, mean over reviews and pairs.

        pairs: scores of all reviews, twice; the second may be of fewer reviews. None if no correlation is defined.
        The interval covers other reviews only, because pairs share seeds.
        """
        values = [[spearman(*both) for both in zip(*pair, strict=False)] for pair in pairs]
        value_NP = np.array(values).T
        value_NP = value_NP[np.isfinite(value_NP).all(-1)]
        if not value_NP.size:
            return None
        mean_N1 = value_NP.mean(1, keepdims=True)
        interval = list(self.interval(mean_N1))
        return {"mean": float(mean_N1.mean()), "interval": interval, "pairs": len(pairs), "reviews": len(mean_N1)}


def area(values: np.ndarray) -> np.ndarray:
    """The mean over shares of the words (N, S, K): the AOPC of DeYoung et al. 2020, without the share 0; else as is."""
    return values.mean(-1) if values.ndim == 3 else values


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """NaN for fewer than two words, or if all scores are equal."""
    from scipy.stats import rankdata

    ranks = [rankdata(scores) for scores in (first, second)]
    if len(first) < 2 or not all(np.ptp(each) for each in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def claims(values: Sequence[tuple[Rung, Quantity, np.ndarray]], margin: float) -> list[dict[str, Any]]:
    """Gains over random words, and changes of accuracy by ablation, which are compared with -margin."""
    made = []
    for rung, (name, about), value_NS in values:
        quantity, gain, _ = name.partition(" gain")
        if not gain and quantity != "ablation":
            continue
        estimate = rung.estimates[name, about]
        removed = quantity == "ablation"
        p = p_of_mean(value_NS.mean(1) + margin * removed)
        if removed and estimate["mean"] > -margin:
            p = max(p, (1 - margin) ** len(value_NS))  # the probability that a loss of `margin` affects none of them
        made.append(
            {
                "rung": rung.variant.label,
                "score": None if removed else about,
                "quantity": quantity,
                "unit": about if removed else None,
                "difference": estimate["mean"],
                "interval": estimate["interval"],
                "p": p,
            }
        )
    for claim, p in zip(made, holm([claim["p"] for claim in made]), strict=True):
        shift = margin if claim["unit"] else 0
        result = verdict(p, *(end + shift for end in claim["interval"]))
        claim |= {"holm_p": p, "verdict": REMOVABLE[result] if claim["unit"] else result}
    return made


def p_of_mean(value_N: np.ndarray) -> float:
    """The two-sided p-value of a t-test that the mean is 0; 1 if all values are 0, or if there is only one."""
    from scipy import stats

    if not np.ptp(value_N):
        return float(len(value_N) == 1 or not value_N.any())
    return float(stats.ttest_1samp(value_N, 0).pvalue)
