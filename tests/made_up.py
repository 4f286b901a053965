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
    variants = [made_up_variant(number, names, labels, slices) for number in range(len(names))]
    pairs = [made_up_pair(*two) for two in enumerate(itertools.pairwise(names))]
    probability = {name: (i + 0.5) / len(names) for i, name in enumerate(names)}
    item = {"row": 17, "label": labels[0], "text": text, "probability": probability, "spread": 0.9}
    largest = {"label": labels[0], "share": 0.502, "uneven": len(labels) > 2}
    found = {"split": "test", "metric": "accuracy", "test_set": "packaged: every fifth block"}
    found |= {"fingerprint": "fc45bb824bf15091", "count": 5000, "labels": list(labels)}
    found |= {"items": "reviews", "unit": "words", "largest_class": largest, "slices": slices}
    found |= {"overrides": [], "shared_settings": {"max_tokens": 512}, "chosen_by": ["accuracy"]}
    found |= {"remarks": [], "one_validation": True, "untested": [], "folders": ["runs"]}
    found |= {"variants": variants, "pairs": pairs, "environments": [ENVIRONMENT]}
    found |= {"skipped": [{"folder": "runs/broken", "reason": "it has no metrics.json"}]}
    found |= {"method": {"level": 0.95, "words": {"although": ["although", "though"]}}}
    return found | {"disagreements": [item] * 3 if len(names) > 1 else []}


ENVIRONMENT = {"python": "3.11.7", "platform": "Linux", "cpus": 2, "threads": 1, "gpu": None}
ENVIRONMENT |= {"processor": None, "memory_gb": None, "uncommitted": None}
ENVIRONMENT |= {"torch": "2.13.0", "lightning": "2.6.6"}


def made_up_variant(number, names, labels, slices) -> dict:
    center = 0.76 + 0.1 * (number + 1) / len(names)
    over_seeds = {"mean": center, "sd": 0.001, "values": [center - 0.0005, center + 0.0005]}
    scores = ("validation", "metric", "metric_validation", "test", "macro_f1")
    curve = {"x": [1, 2, 3], "values": [[0.6, 0.8, 0.8], [0.6, 0.8, None]]}
    curves = ("train/accuracy", "train/loss", "val/accuracy", "val/loss")
    name, parent = names[number], names[number - 1] if number else None
    variant = {"label": name, "model": name.split()[0], "extends": parent, "seeds": [1, 2]}
    variant |= {"folders": [f"runs/{name}"], "trained_on": None, "lengths": None, "folds": None}
    variant |= dict.fromkeys(scores, over_seeds)
    variant |= {"interval": [center - 0.009, center + 0.0101], "ece": 0.0312}
    variant |= {"bleu": {"validation": None, "test": None}, "train_seconds": 8.25, "epochs": 8.0}
    variant |= {"parameters": 152 * 7 ** min(number, 4), "tokens_per_s": 158_123.4}
    variant |= {"confusion": [[2000.3] * len(labels)] * len(labels)}
    variant |= {"slices": dict.fromkeys(slices, center), "curves": dict.fromkeys(curves, curve)}
    return variant


def made_up_pair(number, two) -> dict:
    difference, p = ((0.0187, 0.00002), (0.0012, 0.31), (-0.0089, 0.016))[number % 3]
    pair = {"from": two[0], "to": two[1], "difference": difference}
    pair |= {"interval": [difference - 0.005, difference + 0.0061], "metric": "accuracy"}
    pair |= {"only_to_right": 321.5, "only_from_right": 227.0, "mcnemar_p": p / 4}
    pair |= {"p": p / 2, "holm_p": p}
    return pair | {"verdict": ("better", "undecided", "worse")[number % 3]}


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


def row(variant, measure, about, mean):
    made = {"variant": variant, "measure": measure, "about": about, "mean": mean}
    return made | {"interval": [mean - 0.01, mean + 0.01], "reviews": 500, "few": False}


def claim(variant, measure, about, mean):
    made = row(variant, measure, about, mean)
    p = 0.4 if abs(mean) <= 0.01 else 1e-5
    verdict = "undecided" if p == 0.4 else "better" if mean > 0 else "worse"
    return made | {"p": p, "holm_p": p, "verdict": verdict}


def made_up_faithfulness(names):
    """Invented results of variants with these names."""
    numbers, claims = [], []
    for name in names:
        for attribution, mean in MEANS.items():
            numbers += [
                row(name, measure, attribution, mean)
                for measure in ("normalized", "comprehensiveness", "randomized")
            ]
            claims += [claim(name, "comprehensiveness", attribution, mean - MEANS["random"])] * (
                attribution != "random"
            )
        numbers.append(row(name, "pairs", "both", -0.02))
    accuracy = {"mean": 0.86, "sd": 0.01, "values": [0.86]}
    variant = {"seeds": [1, 2, 3], "folders": ["runs/a"], "accuracy": accuracy}
    method = {"fewest": 10, "seed": 0, "level": 0.95, "shares": SHARES}
    found = {"split": "test", "test_set": "packaged: every fifth block", "count": 500}
    found |= {"fingerprint": "fc45bb824bf15091", "environments": [ENVIRONMENT]}
    found |= {"method": method | {"search": {"reviews": 50, "beam": 2}}, "folders": ["runs"]}
    found |= {"variants": [variant | {"label": name} for name in names]}
    found |= {"skipped": [{"folder": "runs/mean", "reason": "it has no attention"}]}
    return found | {"numbers": numbers, "claims": claims}


PNG = b"PNG"
