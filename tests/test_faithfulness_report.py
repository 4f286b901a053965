"""The tests of faithfulness become files and a page with the same numbers, whatever was not measured.

The numbers are invented.
"""

import io
import json
import re

import pytest

from imdbattn.faithfulness import report
from imdbattn.faithfulness.attributions import ATTENTION
from imdbattn.faithfulness.figures import SCORES, drawings
from imdbattn.faithfulness.report import report_of
from imdbattn.pages import markdown, print_reports, terminal, write_report
from tests.test_report import Page, drawn_page, files_in, markdown_tables, names_of, words

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


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Results in which everything was measured, and the folder into which they were written."""
    summary = made_up(known=True)
    page = write_report(report_of(summary), tmp_path_factory.mktemp("faithfulness") / "new" / "folder")
    assert page.name == "faithfulness.html"
    return summary, page.parent


def test_everything_is_written_and_nothing_else(written):
    summary, folder = written
    drawn = ("erasure", "comprehensiveness", "sufficiency", "rationales", "permutation", "ablation")
    drawn += ("stability_seeds", "stability_epochs")
    texts = {f"faithfulness.{extension}" for extension in ("json", "md", "html")}
    assert files_in(folder).keys() == texts | {f"figures/{name}.png" for name in drawn}
    assert json.loads((folder / "faithfulness.json").read_text()) == summary


def test_the_page_gives_the_answer_in_words_first(written):
    text = words((written[1] / "faithfulness.html").read_text())
    answer = report.headline(written[0])
    tests = ("Erasure:", "Known rationales:", "Permutation:", "Adversary:", "Ablation:", "Stability:")
    places = [text.index(part) for part in (answer, *(f" {test} " for test in tests), "Rungs", "Claims", "Method")]
    assert places == sorted(places)
    assert text.startswith(f"{answer} {answer} "), "the title, then the heading"
    assert (written[1] / "faithfulness.md").read_text().replace("\\", "").startswith(f"# {answer}\n")


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


def test_layers_and_heads_are_counted_separately_and_few_are_named():
    summary = made_up(("a",))
    units = [f"layer 1, head {head}" for head in range(1, 6)] + ["layer 2", "all but layer 2"]
    summary["claims"] = [claim("a", 0.0, "ablation", unit=unit) | {"verdict": "removable"} for unit in units]
    text = report.sentences(summary)[-2]
    assert "1 of 1 layer can be removed: layer 2 of a (+0.0, −1.0 to +1.0). At" in text
    assert "5 of 5 heads can be removed: layer 1, head 1 of a" in text
    assert "head 3 of a (+0.0, −1.0 to +1.0) and 2 more." in text
    summary["claims"] = [claim("a", -0.2, "ablation", unit="layer 1") | {"verdict": "needed"}]
    assert "none of 1 layer can be removed; 1 needed." in report.sentences(summary)[-2]


def test_tables_show_numbers_and_verdicts(written):
    summary, folder = written
    tables = markdown_tables((folder / "faithfulness.md").read_text())
    scores, claims, ablated = tables[1], tables[2], tables[4]
    assert scores[0] == [
        "rung",
        "score",
        "comprehensiveness",
        "sufficiency",
        "AUPRC",
        "precision at 1",
        "precision at 2",
    ]
    assert [row[1] for row in scores[2:9]] == [f"`{shown}`" for shown, *_ in SCORES.values()]
    assert claims[2] == [
        *("`base`", "`attention rollout`", "`comprehensiveness`"),
        *("+0.090", "+0.080 to +0.100", "better", "p \\< 0.001"),
    ]
    assert len(claims) - 2 == sum(one["quantity"] != "ablation" for one in summary["claims"])
    assert ablated[3] == ["`base`", "`layer 2`", "80.6", "−5.4", "−5.8 to −4.9", "needed", "p \\< 0.001"]
    page = Page((folder / "faithfulness.html").read_text())
    assert {value for name, value in page.attributes if name == "class"} >= {"better", "removable", "needed"}


def without_attention(summary):
    for rung in summary["rungs"]:
        for name in ATTENTION:
            del rung["scores"][name]
    summary["claims"] = [one for one in summary["claims"] if one["score"] not in ATTENTION]


def without_tests(summary):
    for rung in summary["rungs"]:
        rung |= {"scores": {}, "permutation": None, "adversary": None, "ablation": []}
    summary["claims"] = []


def with_little(summary):
    rung = summary["rungs"][0]
    del rung["scores"]["leave_one_out"], rung["scores"]["random"]
    rung |= {"permutation": None, "adversary": None, "ablation": []}


@pytest.mark.parametrize("change", [without_attention, without_tests, with_little, lambda summary: None])
@pytest.mark.parametrize("names", [("base",), ("base", "residual")])
def test_what_was_not_measured_is_omitted(change, names):
    change(summary := made_up(names, seeds=(1,), known=True))
    one = report_of(summary)
    print_reports([one], console := terminal(file=io.StringIO(), width=80))
    shown = console.file.getvalue()
    for text in (words(drawn_page(one)), markdown(one), shown):
        assert not re.search(r"\bnan\b|None|undefined| \.|,,|\(\)", text)
        assert report.QUESTION in text.replace("\n", " ")
    assert max(map(len, shown.splitlines())) <= 80
    if change is without_tests:
        assert (names_of(one), one.points, [section.title for section in one.sections]) == ([], [], ["Rungs"])


def test_figures_draw_the_numbers():
    summary = made_up()
    drawn = {name: draw() for name, draw in drawings(summary).items()}
    for axes, rung in zip(drawn["erasure"].axes, summary["rungs"], strict=True):
        for line, score in zip(axes.lines, rung["scores"].values(), strict=False):
            assert list(line.get_xdata()) == pytest.approx([1, 5, 10, 20, 50])
            assert list(line.get_ydata()) == pytest.approx(score["comprehensiveness"]["by_share"])
    intervals = [list(line.get_xdata()) for line in drawn["sufficiency"].axes[0].lines]
    for rung in summary["rungs"]:
        for score in rung["scores"].values():
            assert score["sufficiency"]["interval"] in intervals
    shown = [text.get_text() for text in drawn["comprehensiveness"].legends[0].get_texts()]
    assert shown == [text for text, *_ in SCORES.values()]
