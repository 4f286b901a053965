"""Turns the results of the tests of faithfulness into a report."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from imdbattn.report import comparison_page as shared
from imdbattn.report.comparison_types import Interval
from imdbattn.report.numbers import decimal, mean_and_sd, p_value, percents
from imdbattn.report.pages import Report, Section, Table
from imdbattn.tools.faithfulness.attributions import ATTRIBUTIONS, RAW
from imdbattn.tools.faithfulness.summary import Claim, MeasuredNumber, Summary

# an attribution fails the randomization test if its correlation is significantly above this
UNCHANGED = 0.5
QUESTION = "Is attention an explanation here? By erasure,"
DIGITS = 3  # decimals of all numbers
TEXTS = OmegaConf.load(Path(__file__).with_name("measures.yaml"))
MEASURES = TEXTS.measures  # name -> title and text
NOTES = TEXTS.notes  # name -> text


def report_of(summary: Summary) -> Report:
    """Returns the report of the tests of faithfulness."""
    claims = summary["claims"]
    text = ", ".join(shared.verdict_counts(claim["verdict"] for claim in claims))
    return Report(
        name="faithfulness",
        title=headline(summary),
        about=f"{shared.set_name(summary)}.",
        lead=f"Of {len(claims):,} claims about attributions: {text}." if claims else "",
        points=failed_attributions(summary),
        sections=sections(summary),
        notes=notes(summary),
        skipped=summary["skipped"],
        content=summary,
        folder=shared.name_of_folder(summary),
    )


def sections(summary: Summary) -> list[Section]:
    """Returns a section for each measure, between the runs and the claims."""
    about = "Accuracy on these reviews, ± standard deviation over seeds."
    differences = "Differences from random words, + is better."
    claims = Section("Claims", differences, claim_table(summary), names=3, folded=True)
    variants = Section("Variants", about, runs_table(summary))
    return [variants, *measure_sections(summary), claims]


def runs_table(summary: Summary) -> Table:
    """Returns a table with a row for each variant."""
    table = [["variant", "seeds", "accuracy %", "first run"]]
    for variant in summary["variants"]:
        accuracy = mean_and_sd(variant["accuracy"])
        seeds = str(len(variant["seeds"]))
        table.append([variant["label"], seeds, accuracy, variant["folders"][0]])
    return table


def measure_sections(summary: Summary) -> list[Section]:
    """Returns a section for each measure: a row for each attribution, a column for each variant."""
    sections = []
    for name, texts in MEASURES.items():
        if numbers := [entry for entry in summary["numbers"] if entry["measure"] == name]:
            table = pivoted(texts.title, numbers)
            folded = texts.get("folded", False)
            section = Section(texts.title, texts.text, table, in_terminal=not folded, folded=folded)
            sections.append(section)
    return sections


def claim_table(summary: Summary) -> Table:
    """Returns a table with a row for each claim."""
    head = "variant, measure, about, reviews, difference, interval, verdict, p (Holm)"
    table = [head.split(", ")]
    for claim in summary["claims"]:
        row = [
            claim["variant"],
            MEASURES[claim["measure"]].title,
            shown(claim["about"]),
            f"{claim['reviews']:,}",
            decimal(claim["mean"], DIGITS, sign=True),
            ends(claim["interval"], sign=True),
            claim["verdict"],
            p_value(claim["holm_p"]),
        ]
        table.append(row)
    return table


def pivoted(title: str, numbers: Sequence[MeasuredNumber]) -> Table:
    """Returns a row for each attribution: its number of reviews, and a column for each variant."""
    cells = {(entry["about"], entry["variant"]): cell(entry) for entry in numbers}
    abouts = list(dict.fromkeys(entry["about"] for entry in numbers))
    variants = list(dict.fromkeys(entry["variant"] for entry in numbers))
    table = [[title, "reviews", *variants]]
    for about in abouts:
        counts = sorted({entry["reviews"] for entry in numbers if entry["about"] == about})
        reviews = f"{counts[0]:,}" + f" to {counts[-1]:,}" * (len(counts) > 1)
        table.append([shown(about), reviews, *(cells.get((about, name), "") for name in variants)])
    return table


def shown(about: str) -> str:
    """Returns the displayed name of an attribution or of a text of a pair."""
    name, comma, rest = about.partition(", ")
    return ATTRIBUTIONS[name][0] + comma + rest if name in ATTRIBUTIONS else about


def cell(entry: MeasuredNumber) -> str:
    """Returns a mean with its interval, if it has one and is of enough reviews."""
    text = decimal(entry["mean"], DIGITS)
    if entry["few"]:
        return f"{text} (too few reviews)"
    return text if entry["interval"] is None else f"{text} ({ends(entry['interval'])})"


def ends(interval: Interval, sign: bool = False) -> str:
    """Returns the ends of an interval; "" without one."""
    return " to ".join(decimal(end, DIGITS, sign) for end in interval or ())


def headline(summary: Summary) -> str:
    """Returns the answer in one sentence, from claims on the comprehensiveness of attention.

    Another attribution is better if its interval is above the interval of attention.
    """
    claims = [claim for claim in summary["claims"] if claim["measure"] == "comprehensiveness"]
    first: dict[str, Claim] = {}
    for name in reversed(RAW):
        first |= {claim["variant"]: claim for claim in claims if claim["about"] == name}
    if not first:
        fewest = summary["method"]["fewest"]
        return f"{QUESTION} not tested: this needs attention weights, and at least {fewest} reviews"
    verdicts = Counter(claim["verdict"] for claim in first.values())
    above = [claim for claim in claims if is_above(claim, first.get(claim["variant"]))]
    beaten = len({claim["variant"] for claim in above})
    answers = {"better": "partly" if beaten else "yes", "worse": "no", "undecided": "undecided"}
    answer = answers[next(iter(verdicts))] if len(verdicts) == 1 else "partly"
    counted = ", ".join(f"{name} in {verdicts[name]}" for name in answers if verdicts[name])
    text = (
        f"{QUESTION} {answer}: compared with random words, attention is {counted} of {len(first)}"
        " variants"
    )
    return f"{text}; another attribution is better than attention in {beaten}" if beaten else text


def is_above(claim: Claim, attention: Claim | None) -> bool:
    """Returns whether another attribution than attention has an interval above `attention`'s."""
    if attention is None or claim["about"] in RAW:
        return False
    if claim["interval"] is None or attention["interval"] is None:
        return False
    return bool(claim["interval"][0] > attention["interval"][1])


def failed_attributions(summary: Summary) -> list[str]:
    """Returns a sentence on the attributions that do not change with random weights.

    The list is empty if none of them was tested on enough reviews.
    """
    numbers = [entry for entry in summary["numbers"] if not entry["few"]]
    randomized = [entry for entry in numbers if entry["measure"] == "randomized"]
    if not randomized:
        return []
    failed = []
    for entry in randomized:
        if entry["interval"] is not None and entry["interval"][0] > UNCHANGED:
            failed.append(f"{shown(entry['about'])} in {entry['variant']}")
    text = f"Fails the randomization test (correlation above {UNCHANGED:g})"
    reviews = min(entry["reviews"] for entry in randomized)
    return [f"{text}, {reviews:,} reviews: {', '.join(failed) or 'no attribution'}."]


def notes(summary: Summary) -> list[str]:
    """Returns how the numbers were computed."""
    method = summary["method"]
    facts = {
        "shares": ", ".join(f"{share:g} %" for share in percents(method["shares"])),
        "beam": method["search"]["beam"],
        "claims": f"{len(summary['claims']):,}",
        "fewest": method["fewest"],
    }
    texts = [text.format(**facts) for text in NOTES.values()]
    return shared.notes(summary, texts)
