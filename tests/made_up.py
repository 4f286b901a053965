"""Comparisons and reports with made-up numbers, and a reader of their pages."""

import itertools
from html.parser import HTMLParser

from imdbattn.report.pages import page

HOSTILE = (
    """<script>alert("1")</script> 'quoted' & <img src="https://example.org/x.png">"""
    """ {{ 7 * 7 }} | `a`"""
)


def made_up(names=("mean", "base", "residual"), labels=("neg", "pos"), text=HOSTILE):
    """A comparison as comparison.compare_set makes it, with invented numbers of two seeds."""
    slices = {"0 to 900 words": 5000, "without “although”": 2950, "with “although”": 2050}
    curve = {"x": [1, 2, 3], "values": [[0.6, 0.8, 0.8], [0.6, 0.8, None]]}
    rungs = []
    for i, name in enumerate(names):
        center = 0.76 + 0.1 * (i + 1) / len(names)
        over_seeds = {"mean": center, "sd": 0.001, "values": [center - 0.0005, center + 0.0005]}
        rungs.append(
            {
                "label": name,
                "model": name.split()[0],
                "after": names[i - 1] if i else None,
                "seeds": [1, 2],
            }
            | {"folders": [f"runs/{name}"], "trained_on": None}
            | {
                "interval": [center - 0.009, center + 0.0101],
                "lengths": None,
                "folds": None,
                "train_seconds": 8.25,
            }
            | {
                "validation": over_seeds,
                "metric": over_seeds,
                "metric_validation": over_seeds,
                "test": over_seeds,
                "bleu": {"validation": None, "test": None},
            }
            | {
                "macro_f1": over_seeds,
                "parameters": 152 * 7 ** min(i, 4),
                "tokens_per_s": 158_123.4,
                "epochs": 8.0,
            }
            | {"ece": 0.0312, "confusion": [[2000.3] * len(labels)] * len(labels)}
            | {"slices": dict.fromkeys(slices, center)}
            | {
                "curves": dict.fromkeys(
                    ("train/accuracy", "train/loss", "val/accuracy", "val/loss"), curve
                )
            }
        )
    pairs = []
    for i, (one, other) in enumerate(itertools.pairwise(names)):
        difference, p = ((0.0187, 0.00002), (0.0012, 0.31), (-0.0089, 0.016))[i % 3]
        pairs.append(
            {
                "from": one,
                "to": other,
                "difference": difference,
                "interval": [difference - 0.005, difference + 0.0061],
            }
            | {"only_to_right": 321.5, "only_from_right": 227.0, "mcnemar_p": p / 4}
            | {"p": p / 2, "holm_p": p, "metric": "accuracy"}
            | {"verdict": ("better", "undecided", "worse")[i % 3]}
        )
    probability = {name: (i + 0.5) / len(names) for i, name in enumerate(names)}
    item = {"row": 17, "label": labels[0], "text": text, "probability": probability, "spread": 0.9}
    machine = {"python": "3.11.7", "platform": "Linux", "cpus": 2, "threads": 1, "gpu": None}
    machine |= {"processor": "Some CPU", "memory_gb": 16.4, "uncommitted": True}
    return {
        **{
            "split": "test",
            "metric": "accuracy",
            "test_set": "packaged: every fifth block",
            "fingerprint": "fc45bb824bf15091",
        },
        **{
            "items": "reviews",
            "unit": "words",
            "reviews": 5000,
            "labels": list(labels),
            "largest_class": {"label": labels[0], "share": 0.502, "uneven": len(labels) > 2},
            "slices": slices,
        },
        **{
            "overrides": [],
            "trained_with": {"max_tokens": 512},
            "chosen_by": ["accuracy"],
            "remarks": [],
            "one_validation": True,
            "untested": [],
        },
        **{"folders": ["runs"], "rungs": rungs, "pairs": pairs},
        "environments": [machine | {"torch": "2.13.0", "lightning": "2.6.6"}],
        "skipped": [{"folder": "runs/broken", "reason": "it has no metrics.json"}],
        "method": {
            "level": 0.95,
            "words": {"although": ["although", "though"]},
        },
        "disagreements": [item] * 3 if len(names) > 1 else [],
    }


class Page(HTMLParser):
    """The tags, the attributes and the text of a page, style left out."""

    def __init__(self, source: str):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:  # <meta> and <img> have no end
            pass

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def words(source: str) -> str:
    return " ".join(" ".join(Page(source).text).split())


def drawn_page(one) -> str:
    return page(
        one, {picture.name: PNG for section in one.sections for picture in section.pictures}
    )


SHARES = [0.01, 0.05, 0.1, 0.2, 0.5]
MEANS = {"rollout": 0.12, "norms": 0.14, "gradient": 0.16, "leave_one_out": 0.24, "random": 0.03}


def row(rung, measure, about, mean):
    return {
        "rung": rung,
        "measure": measure,
        "about": about,
        "mean": mean,
        "interval": [mean - 0.01, mean + 0.01],
    } | {"reviews": 500, "few": False}


def claim(rung, measure, about, mean):
    made = row(rung, measure, about, mean)
    verdict = (
        "better" if made["interval"][0] > 0 else "worse" if made["interval"][1] < 0 else "undecided"
    )
    p = 0.4 if verdict == "undecided" else 1e-5
    return made | {"p": p, "holm_p": p, "verdict": verdict}


def made_up_faithfulness(names=("base", "residual"), fingerprint="fc45bb824bf15091"):
    """Invented results."""
    numbers, claims = [], []
    for name in names:
        for score, mean in MEANS.items():
            numbers += [
                row(name, measure, score, mean)
                for measure in ("normalized", "comprehensiveness", "randomized")
            ]
            claims += [claim(name, "comprehensiveness", score, mean - MEANS["random"])] * (
                score != "random"
            )
        numbers.append(row(name, "pairs", "both", -0.02))
    machine = {"python": "3.11.7", "platform": "Linux", "cpus": 2, "threads": 1, "gpu": None}
    machine |= {"processor": None, "memory_gb": None, "uncommitted": None}
    rung = {
        "seeds": [1, 2, 3],
        "folders": ["runs/a"],
        "accuracy": {"mean": 0.86, "sd": 0.01, "values": [0.86]},
    }
    return {
        "split": "test",
        "test_set": "packaged: every fifth block",
        "fingerprint": fingerprint,
        "reviews": 500,
        "method": {"fewest": 10, "seed": 0, "level": 0.95, "shares": SHARES}
        | {"search": {"reviews": 50, "beam": 2}},
        "environments": [machine | {"torch": "2.13.0", "lightning": "2.6.6"}],
        "folders": ["runs"],
        "rungs": [
            rung | {"label": name, "by_share": {score: [0.1] * 5 for score in MEANS}}
            for name in names
        ],
        "numbers": numbers,
        "claims": claims,
        "skipped": [{"folder": "runs/mean", "reason": "it has no attention"}],
    }


PNG = b"PNG"
