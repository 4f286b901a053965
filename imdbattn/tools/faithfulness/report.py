"""The tests of faithfulness (the dict that summary makes) as a pages.Report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from imdbattn.report import comparison_page as shared
from imdbattn.report.comparison_figures import COLORS, finish, percents, small_multiples
from imdbattn.report.pages import Picture, Report, Section, Table
from imdbattn.tools.faithfulness.scores import RAW, SCORES, WITH_VALUES

# a score fails the randomization test if its correlation is significantly above this
UNCHANGED = 0.5
QUESTION = "Is attention an explanation here? By erasure,"
DASHES = ("-", "--", ":", "-.")  # with COLORS: 28 different lines
TEXTS = OmegaConf.load(Path(__file__).with_name("measures.yaml"))
MEASURES, NOTES = TEXTS.measures, TEXTS.notes  # name -> title and text; name -> text


def report_of(summary: dict[str, Any]) -> Report:
    claims = summary["claims"]
    text = ", ".join(shared.by_verdict(claims, ("better", "worse", "undecided")))
    return Report(
        name="faithfulness",
        title=headline(summary),
        about=f"{shared.set_name(summary)}.",
        lead=f"Of {len(claims):,} claims about scores: {text}." if claims else "",
        points=sentences(summary),
        sections=sections(summary),
        notes=notes(summary),
        skipped=summary["skipped"],
        content=summary,
        folder=shared.folder_name(summary),
    )


def sections(summary: dict[str, Any]) -> list[Section]:
    """One for each measure, with a row for each score and a column for each rung."""
    table = [["rung", "seeds", "accuracy %", "first run"]]
    for rung in summary["rungs"]:
        accuracy, seeds = shared.mean_and_sd(rung["accuracy"]), str(len(rung["seeds"]))
        table.append([rung["label"], seeds, accuracy, rung["folders"][0]])
    found = [Section("Rungs", "Accuracy on these reviews, ± standard deviation over seeds.", table)]
    folded = False
    for name, (title, text) in ((name, one.values()) for name, one in MEASURES.items()):
        if rows := [row for row in summary["numbers"] if row["measure"] == name]:
            by_score = pivoted(title, rows)
            short = () if folded else by_score
            found.append(Section(title, text, by_score, short=short, folded=folded))
        folded |= name == "incompleteness"
    shares = Picture(
        "erasure", partial(erasure, summary), "Loss of probability by share of removed words."
    )
    found.append(Section("Erasure by share of the words", pictures=[shares], folded=True))
    head = "rung, measure, about, reviews, difference, interval, verdict, p (Holm)"
    table = [head.split(", ")]
    for claim in summary["claims"]:
        names = [claim["rung"], MEASURES[claim["measure"]].title, shown(claim["about"])]
        ends = " to ".join(number(end, "+") for end in claim["interval"] or ())
        difference, p = number(claim["mean"], "+"), shared.p_value(claim["holm_p"])
        reviews = f"{claim['reviews']:,}"
        table.append([*names, reviews, difference, ends, claim["verdict"], p])
    return [
        *found,
        Section(
            "Claims", "Differences from random words, + is better.", table, names=3, folded=True
        ),
    ]


def pivoted(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table with a row for each score, the number of its reviews, and a column for each
    rung.
    """
    cells = {(row["about"], row["rung"]): cell(row) for row in rows}
    abouts = list(dict.fromkeys(row["about"] for row in rows))
    rungs = list(dict.fromkeys(row["rung"] for row in rows))
    table = [[title, "reviews", *rungs]]
    for about in abouts:
        numbers = sorted({row["reviews"] for row in rows if row["about"] == about})
        reviews = f"{numbers[0]:,}" + f" to {numbers[-1]:,}" * (len(numbers) > 1)
        table.append([shown(about), reviews, *(cells.get((about, rung), "") for rung in rungs)])
    if all(row["measure"] == "speed" for row in rows):  # a number of each seed
        table = [[line[0], *line[2:]] for line in table]
    return table


def shown(about: str) -> str:
    name, comma, rest = about.partition(", ")
    return SCORES[name][0] + comma + rest if name in SCORES else about


def number(value: float, sign: str = "") -> str:
    if abs(value) >= 10:
        return shared.count(value)
    return f"{round(value, 3) + 0.0:{sign}.3f}".replace("-", "−")  # + 0.0: no −0.000


def cell(row: Mapping[str, Any]) -> str:
    """Returns a mean with its interval; without one if it has none, or is of too few reviews."""
    text = number(row["mean"])
    if row["few"]:
        return f"{text} (too few reviews)"
    if row["measure"] == "speed" or row["interval"] is None:
        return text
    low, high = map(number, row["interval"])
    return f"{text} ({low} to {high})"


def erasure(summary: dict[str, Any]) -> Figure:
    """A panel for each rung: comprehensiveness over the share of removed words, a line for each
    score.
    """
    rungs, at = summary["rungs"], percents(summary["method"]["shares"])
    names = list(dict.fromkeys(score for rung in rungs for score in rung["by_share"]))
    figure, panels = small_multiples([rung["label"] for rung in rungs])
    for axes, rung in zip(panels, rungs, strict=True):
        for place, name in enumerate(names):
            values, line = (
                rung["by_share"].get(name, [np.nan] * len(at)),
                DASHES[place % len(DASHES)],
            )
            label = shown(name) if axes is panels[0] else None  # one legend for all panels
            axes.plot(
                at, values, ".", ls=line, color=COLORS[place % len(COLORS)], lw=1.3, label=label
            )
        axes.set_xlabel("removed words (%)", fontsize=8)
    figure.supylabel("loss of probability", fontsize=9)
    figure.set_figheight(figure.get_figheight() + 0.13 * len(names))  # for the legend
    return finish(figure, "Erasure of the words with the largest scores", legend=2)


def headline(summary: dict[str, Any]) -> str:
    """The answer in one sentence, from the claims about comprehensiveness: attention against random
    words.

    Another score is better if its interval is above that of attention.
    """
    claims = [claim for claim in summary["claims"] if claim["measure"] == "comprehensiveness"]
    first = {
        claim["rung"]: claim for name in reversed(RAW) for claim in claims if claim["about"] == name
    }
    if not first:
        few = any(row["few"] for row in summary["numbers"] if row["about"] in RAW)
        reason = "no rung has attention weights that could be compared with random words"
        if few:
            reason = f"a claim needs at least {summary['method']['fewest']} reviews"
        return f"{QUESTION} not tested: {reason}"
    verdicts = Counter(claim["verdict"] for claim in first.values())
    beaten = len({claim["rung"] for claim in claims if is_above(claim, first.get(claim["rung"]))})
    answers = {"better": "partly" if beaten else "yes", "worse": "no", "undecided": "undecided"}
    answer = answers[next(iter(verdicts))] if len(verdicts) == 1 else "partly"
    counted = ", ".join(f"{name} in {verdicts[name]}" for name in answers if verdicts[name])
    text = (
        f"{QUESTION} {answer}: compared with random words, attention is {counted} of {len(first)}"
        " rungs"
    )
    return f"{text}; another score is better than attention in {beaten}" if beaten else text


def is_above(claim: Mapping[str, Any], attention: Mapping[str, Any] | None) -> bool:
    """Whether a claim about another score has an interval above that of attention."""
    if attention is None or claim["about"] in RAW:
        return False
    if claim["interval"] is None or attention["interval"] is None:
        return False
    return bool(claim["interval"][0] > attention["interval"][1])


Means = dict[tuple[str, str], float]  # (score, rung) -> mean


def means_of(rows: Sequence[Mapping[str, Any]], measure: str) -> Means:
    """Returns the means of one measure."""
    return {(row["about"], row["rung"]): row["mean"] for row in rows if row["measure"] == measure}


def order_by(means: Means, score: str) -> str:
    """Returns the rungs from the highest to the lowest mean of one score."""
    ordered = sorted((-mean, rung) for (name, rung), mean in means.items() if name == score)
    return " > ".join(rung for _, rung in ordered)


def sentences(summary: dict[str, Any]) -> list[str]:
    """What a reader of the tables could miss: attention beside the best scores, changed orders,
    failed tests.
    """
    rows, found = [row for row in summary["numbers"] if not row["few"]], []
    raw, normalized = means_of(rows, "searched"), means_of(rows, "normalized")
    names = list(dict.fromkeys(name for name, _ in normalized))
    rungs = list(dict.fromkeys(rung for _, rung in normalized))
    groups = {"attention weights": RAW, "norms and value zeroing": WITH_VALUES, "all scores": names}
    for rung in rungs:
        best = {}
        for group, some in groups.items():
            best[group] = max((normalized.get((name, rung), -1), name) for name in some)
        parts = [
            f"{group} {number(mean)} ({shown(name)})"
            for group, (mean, name) in best.items()
            if mean > -1
        ]
        reviews = min(
            row["reviews"] for row in rows if (row["measure"], row["rung"]) == ("normalized", rung)
        )
        found.append(f"{rung}, highest normalized AOPC of {reviews:,} reviews: {', '.join(parts)}.")
    for name in names:
        before, after = order_by(raw, name), order_by(normalized, name)
        if before != after and name != "random":
            found.append(
                f"Normalization changes the order of models by {shown(name)}: {before}; now"
                f" {after}."
            )
    if randomized := [row for row in rows if row["measure"] == "randomized"]:
        failed = [
            f"{shown(row['about'])} in {row['rung']}"
            for row in randomized
            if row["interval"] is not None and row["interval"][0] > UNCHANGED
        ]
        text = f"Fails the randomization test (correlation above {UNCHANGED:g})"
        reviews = min(row["reviews"] for row in randomized)
        found.append(f"{text}, {reviews:,} reviews: {', '.join(failed) or 'no score'}.")
    if len(rows) < len(summary["numbers"]):
        fewest = summary["method"]["fewest"]
        found.append(f"Numbers of fewer than {fewest} reviews are listed, but claim nothing.")
    return found


def notes(summary: dict[str, Any]) -> list[str]:
    """How the numbers were computed."""
    beam, claims = summary["method"]["search"]["beam"], f"{len(summary['claims']):,}"
    shares = ", ".join(f"{share:g} %" for share in percents(summary["method"]["shares"]))
    fewest = summary["method"]["fewest"]
    facts = {"shares": shares, "beam": beam, "claims": claims, "fewest": fewest}
    return shared.notes(summary, [text.format(**facts) for text in NOTES.values()])
