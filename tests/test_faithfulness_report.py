"""The tests of faithfulness become files and a page with the same numbers, whatever was not measured.

The numbers are invented.
"""

import pytest

from imdbattn.faithfulness import report
from imdbattn.faithfulness.figures import SCORES

SHARES = [0.01, 0.05, 0.1, 0.2, 0.5]
MEANS = {  # comprehensiveness
    "rollout": 0.12,
    "last_layer": 0.1,
    "all_layers": 0.11,
    "gradient": 0.16,
    "integrated_gradients": 0.2,
    "leave_one_out": 0.24,
    "random": 0.03,
}


def made_up(names=("base", "residual"), seeds=(1, 2, 3), known=False, fingerprint="fc45bb824bf15091"):
    """Invented results in which everything was measured."""

    def mean_of(center, spread=0.01, **more):
        return {"mean": center, "interval": [center - spread, center + spread], "values": [center] * len(seeds)} | more

    def score(name, place):
        center = MEANS[name] * (1 + place / 5)
        shares = {"by_share": [center * factor for factor in (0.2, 0.6, 1, 1.4, 1.8)]}
        found = {"comprehensiveness": mean_of(center) | shares, "sufficiency": mean_of(0.3 - center) | shares}
        found |= {"seeds": mean_of(0.5 + center) if len(seeds) > 1 else None, "epochs": mean_of(0.6 + center)}
        known_words = mean_of(0.15 + 3 * center), {"1": 0.9, "2": 0.8}
        auprc, precision = known_words if known else (None, None)
        return found | {"auprc": auprc, "precision": precision, "reviews_per_s": 1e4 * center}

    units = [f"layer {layer}" for layer in range(1, 4)]
    units += [f"all but {unit}" for unit in units]
    changes = dict(zip(units, (-0.002, -0.054, 0.001, -0.12, -0.01, -0.08), strict=True))
    bins = [{"low": k / 5, "high": (k + 1) / 5, "reviews": 100, "quartiles": [0.01, 0.02, 0.03]} for k in range(5)]
    rungs, claims = [], []
    for place, name in enumerate(names):
        ablation = [
            {"unit": unit, "accuracy": 0.86 + x, "change": x, "interval": [x - 0.004, x + 0.005]}
            for unit, x in changes.items()
        ]
        rungs.append(
            {"label": name, "model": name.split()[0], "seeds": list(seeds), "folders": [f"runs/{name}"]}
            | {"accuracy": mean_of(0.86) | {"sd": 0.003 if len(seeds) > 1 else None}}
            | {"scores": {score_name: score(score_name, place) for score_name in SCORES}, "ablation": ablation}
            | {"permutation": mean_of(0.05, by_weight=bins), "adversary": mean_of(0.5, reviews=100)}
        )
        quantities = ("comprehensiveness", "sufficiency", *(["auprc"] if known else []))
        for score_name in list(SCORES)[:-1]:
            claims += [claim(name, MEANS[score_name] - 0.03, quantity, score_name) for quantity in quantities]
        for one, verdict in zip(ablation, ("removable", "needed", "undecided"), strict=False):
            decided = {"interval": one["interval"], "verdict": verdict}
            claims.append(claim(name, one["change"], "ablation", unit=one["unit"]) | decided)
    machine = {"python": "3.11.7", "platform": "Linux", "cpus": 2, "threads": 1, "gpu": None}
    method = {"resamples": 10000, "seed": 0, "level": 0.95, "shares": SHARES, "permutations": 20, "steps": 32}
    method |= {"epsilon": 0.01, "margin": 0.01, "adversary_reviews": 100, "epoch_reviews": 200}
    return {
        "split": "test",
        "test_set": "packaged: every fifth block",
        "fingerprint": fingerprint,
        "reviews": 500,
        "labels": ["neg", "pos"],
        "known_rationales": known,
        "method": method,
        "environments": [machine | {"torch": "2.13.0", "lightning": "2.6.6"}],
        "folders": ["runs"],
        "rungs": rungs,
        "claims": claims,
        "skipped": [{"folder": "runs/mean", "reason": "it has no attention"}],
    }


def claim(rung, difference, quantity, score=None, unit=None):
    low, high = difference - 0.01, difference + 0.01
    verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
    p = 0.4 if verdict == "undecided" else 1e-5
    return {"rung": rung, "score": score, "quantity": quantity, "unit": unit, "difference": difference} | {
        "interval": [low, high],
        "p": p,
        "holm_p": min(1, 10 * p),
        "verdict": verdict,
    }


def with_claims(differences):
    """Results with one claim for each rung and score: differences[rung][score]."""
    summary = made_up(tuple(differences))
    summary["claims"] = [
        claim(rung, value, "comprehensiveness", score)
        for rung, scores in differences.items()
        for score, value in scores.items()
    ]
    return summary


@pytest.mark.parametrize(
    ("differences", "answer"),
    [
        ({"a": {"rollout": 0.1}}, "yes: * matter more than random words in a"),
        ({"a": {"rollout": -0.1}}, "no: * matter less than random words in a"),
        ({"a": {"rollout": 0.001}}, "undecided: * do not differ clearly from random words in a"),
        (
            {"a": {"rollout": 0.0}, "b": {"rollout": 0.001}},
            "undecided: * do not differ clearly from random words in any of 2 rungs",
        ),
        (
            {"a": {"rollout": 0.1, "gradient": 0.2}},
            "partly: * matter more than random words in a; another score finds words that matter more",
        ),
        (
            {"a": {"rollout": 0.1, "gradient": 0.2}, "b": {"rollout": 0.1, "leave_one_out": 0.11}},
            "partly: * matter more than random words in 2 of 2 rungs; in 1, another score finds words that matter more",
        ),
        ({"a": {"rollout": 0.1}, "b": {"rollout": 0.3}}, "yes: * matter more than random words in 2 of 2 rungs"),
        (
            {"a": {"rollout": 0.1}, "b": {"last_layer": -0.1}, "c": {"rollout": 0.0}},
            "partly: * matter more than random words in 1 of 3 rungs, less than random words in 1, undecided in 1",
        ),
        (
            {"a": {"rollout": -0.1}, "b": {"rollout": 0.0}},
            "no: * matter less than random words in 1 of 2 rungs, undecided in 1",
        ),
        (
            {"a": {"gradient": 0.1}},
            "not tested: no rung has word scores from attention that could be compared with random words",
        ),
        ({"a": {"rollout": 0.1, "last_layer": -0.1}}, "yes: * matter more than random words in a"),
    ],
)
def test_the_answer_follows_from_the_claims(differences, answer):
    found = report.headline(with_claims(differences))
    assert found == f"{report.QUESTION} " + answer.replace("*", "the words that attention scores highest")


def test_the_sentences_have_the_numbers_with_their_intervals():
    summary = made_up(("base",), known=True)
    rung = summary["rungs"][0]
    known = {"mean": 0.1234, "interval": [0.1, -0.0001], "values": [0.1234]}
    rung["scores"]["rollout"] |= {"comprehensiveness": known | {"by_share": [0.1] * 5}, "sufficiency": known}
    rung["scores"]["rollout"] |= {"auprc": known, "precision": {"1": 0.5}, "seeds": known, "epochs": known}
    rung |= {"permutation": known | {"by_weight": []}, "adversary": known | {"reviews": 100}}
    found = dict(one.split(": ", 1) for one in report.sentences(summary))
    numbers = {name: text.count("0.123 (0.100 to 0.000) in base") for name, text in found.items()}
    assert numbers == dict(zip(numbers, (2, 1, 1, 1, 0, 2), strict=True))
    assert (
        "1 of 3 layers can be removed: layer 1 of base (−0.2, −0.6 to +0.3); 1 needed; 1 undecided."
        in found["Ablation"]
    )
    assert "The highest comprehensiveness is that of leave one out." in found["Erasure"]
