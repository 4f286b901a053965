"""The tests of faithfulness become files and a page with the same numbers, whatever was not
measured.
"""

import pytest

from imdbattn.tools.faithfulness import page

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


def made_up(names=("base", "residual"), fingerprint="fc45bb824bf15091"):
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


@pytest.mark.parametrize(
    ("differences", "answer"),
    [
        ({"a": {"rollout": 0.1}}, "yes: * better in 1 of 1 rungs"),
        ({"a": {"rollout": -0.1}}, "no: * worse in 1 of 1 rungs"),
        (
            {"a": {"rollout": 0.1, "gradient": 0.2}},
            "partly: * better in 1 of 1 rungs; another score is better than attention in 1",
        ),
        (
            {"a": {"rollout": 0.1}, "b": {"last_layer": -0.1}, "c": {"rollout": 0.0}},
            "partly: * better in 1, worse in 1, undecided in 1 of 3 rungs",
        ),
        (
            {"a": {"gradient": 0.1}},
            "not tested: no rung has attention weights that could be compared with random words",
        ),
        ({"a": {"rollout": 0.1, "last_layer": -0.1}}, "yes: * better in 1 of 1 rungs"),
    ],
)
def test_the_answer_follows_from_the_claims(differences, answer):
    summary = made_up(tuple(differences))
    summary["claims"] = [
        claim(rung, "comprehensiveness", score, value)
        for rung, scores in differences.items()
        for score, value in scores.items()
    ]
    words = answer.replace("*", "compared with random words, attention is")
    assert page.headline(summary) == f"{page.QUESTION} {words}"


def test_tables_have_a_row_for_each_score_and_a_column_for_each_rung():
    found = {section.title: section for section in page.report_of(made_up()).sections}
    table = found["Normalized AOPC"].table
    assert table[0] == ["Normalized AOPC", "reviews", "base", "residual"]
    assert table[1] == [
        "attention rollout",
        "500",
        "0.120 (0.110 to 0.130)",
        "0.120 (0.110 to 0.130)",
    ]
    assert len(table) == 1 + len(MEANS)
    assert (found["Raw AOPC"].folded, found["Normalized AOPC"].folded) == (True, False)
    assert found["Edited reviews"].table[1][2] == "−0.020 (−0.030 to −0.010)"


def test_sentences_name_changed_orders_and_scores_that_do_not_change():
    summary = made_up()
    # another order than that of AOPC, and the same
    moved = {("norms", "residual"): 0.01, ("rollout", "base"): 0.01}
    for one in [one for one in summary["numbers"] if one["measure"] == "normalized"]:
        searched = {("norms", "base"): 0.01, ("rollout", "base"): 0.02}.get(
            (one["about"], one["rung"]), 0
        )
        summary["numbers"].append(
            row(one["rung"], "searched", one["about"], one["mean"] + searched)
        )
        one["mean"] += moved.get((one["about"], one["rung"]), 0)
    summary["numbers"].append(row("base", "randomized", "rollout", 0.9))
    text = "\n".join(page.sentences(summary))
    assert (
        "norms and value zeroing 0.150 (norms, all layers), all scores 0.240 (leave one out)."
        in text
    )
    assert "order of models by norms, all layers: base > residual; now residual > base." in text
    assert text.count("order of models") == 1
    failed = "Fails the randomization test (correlation above 0.5), 500 reviews: attention rollout"
    assert f"{failed} in base." in text


def test_numbers_of_few_reviews_are_marked_and_claim_nothing():
    summary = made_up()
    for one in summary["numbers"]:
        one |= {"reviews": 4, "few": True}
    summary["claims"] = []
    made = page.report_of(summary)
    assert made.title == f"{page.QUESTION} not tested: a claim needs at least 10 reviews"
    assert made.points == ["Numbers of fewer than 10 reviews are listed, but claim nothing."]
    found = {section.title: section for section in made.sections}
    assert found["Randomized weights"].short[1][1:3] == ["4", "0.120 (too few reviews)"]
