"""The tests of faithfulness (the dict that summary makes) as a pages.Report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter
from omegaconf import OmegaConf

from imdbattn.comparison import report as shared
from imdbattn.comparison.figures import COLORS, finish, percents, small_multiples
from imdbattn.comparison.statistics import level
from imdbattn.faithfulness.scores import RAW, SCORES, WITH_VALUES
from imdbattn.pages import Picture, Report, Section, as_table

UNCHANGED = 0.5  # a score fails the randomization test if its correlation is significantly above this
QUESTION = "Is attention an explanation here? By erasure,"
VERDICTS = ("better", "worse", "undecided")

DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))  # with COLORS: 28 different lines
TEXTS = OmegaConf.load(Path(__file__).with_name("measures.yaml"))
MEASURES, NOTES = TEXTS.measures, TEXTS.notes  # name -> title and text; name -> text


def report_of(summary: dict[str, Any]) -> Report:
    claims = summary["claims"]
    text = ", ".join(shared.by_verdict(claims, VERDICTS))
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


# --- tables -----------------------------------------------------------------------------------------------------------


def sections(summary: dict[str, Any]) -> list[Section]:
    """One for each measure, with a row for each score and a column for each rung."""
    rungs = summary["rungs"]
    accuracy = [
        {"rung": rung["label"], "seeds": str(len(rung["seeds"])), "accuracy %": shared.mean_and_sd(rung["accuracy"])}
        | {"first run": rung["folders"][0]}
        for rung in rungs
    ]
    found = [Section("Rungs", "Accuracy on these reviews, ± standard deviation over seeds.", as_table(accuracy))]
    folded = False
    for name, (title, text) in ((name, one.values()) for name, one in MEASURES.items()):
        if numbers := [row for row in summary["numbers"] if row["measure"] == name]:
            size = max(row["reviews"] for row in numbers)
            text += f" {size:,} reviews." if size > 1 else ""
            short = () if folded else pivoted(title, numbers, rungs, lambda row: number(row["mean"]))
            found.append(Section(title, text, pivoted(title, numbers, rungs, cell), short=short, folded=folded))
        folded |= name == "incompleteness"
    shares = Picture("erasure", partial(erasure, summary), "Loss of probability by share of removed words.")
    found.append(Section("Erasure by share of the words", pictures=[shares], folded=True))
    if summary["claims"]:
        text = "Differences from random words, positive where the score is better."
        found.append(Section("Claims", text, as_table(list(map(claim_row, summary["claims"]))), names=3, folded=True))
    return found


def pivoted(title: str, numbers: Sequence[Mapping[str, Any]], rungs: Sequence[Mapping[str, Any]], show: Any) -> Any:
    cells = {(row["about"], row["rung"]): show(row) for row in numbers}
    labels = [rung["label"] for rung in rungs]
    return as_table(
        [
            {title: shown(about)} | {label: cells.get((about, label), "") for label in labels}
            for about in dict.fromkeys(row["about"] for row in numbers)
        ]
    )


def shown(about: str) -> str:
    name, comma, rest = about.partition(", ")
    return SCORES[name][0] + comma + rest if name in SCORES else about


def number(value: float, sign: str = "") -> str:
    if abs(value) >= 10:
        return shared.count(value)
    return f"{round(value, 3) + 0.0:{sign}.3f}".replace("-", "−")  # + 0.0: no −0.000


def cell(row: Mapping[str, Any]) -> str:
    low, high = map(number, row["interval"])
    return number(row["mean"]) if row["measure"] == "speed" else f"{number(row['mean'])} ({low} to {high})"


def claim_row(claim: Mapping[str, Any]) -> dict[str, str]:
    return {
        "rung": claim["rung"],
        "measure": MEASURES[claim["measure"]].title,
        "about": shown(claim["about"]),
        "difference": number(claim["mean"], "+"),
        "interval": " to ".join(number(end, "+") for end in claim["interval"]),
        "verdict": claim["verdict"],
        "p (Holm)": shared.p_value(claim["holm_p"]),
    }


def erasure(summary: dict[str, Any]) -> Figure:
    """A panel for each rung: comprehensiveness over the share of removed words, a line for each score."""
    rungs, at = summary["rungs"], percents(summary["method"]["shares"])
    names = list(dict.fromkeys(score for rung in rungs for score in rung["by_share"]))
    figure, panels = small_multiples([rung["label"] for rung in rungs])
    for axes, rung in zip(panels, rungs, strict=True):
        for place, name in enumerate(names):
            values, line = rung["by_share"].get(name, [float("nan")] * len(at)), DASHES[place % len(DASHES)]
            axes.plot(at, values, ".", ls=line, color=COLORS[place % len(COLORS)], lw=1.3, label=shown(name))
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(at))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("removed words (%)", fontsize=8)
    figure.supylabel("loss of probability", fontsize=9)
    figure.set_figheight(figure.get_figheight() + 0.13 * len(names))  # for the legend
    return finish(figure, "Erasure of the words with the largest scores", legend=2)


# --- sentences --------------------------------------------------------------------------------------------------------


def headline(summary: dict[str, Any]) -> str:
    """The answer in one sentence, from the claims about comprehensiveness: attention against random words.

    Another score is better if its interval is above that of attention.
    """
    claims = [claim for claim in summary["claims"] if claim["measure"] == "comprehensiveness"]
    first = {claim["rung"]: claim for name in reversed(RAW) for claim in claims if claim["about"] == name}
    if not first:
        return f"{QUESTION} not tested: no rung has attention weights that could be compared with random words"
    verdicts = Counter(claim["verdict"] for claim in first.values())
    others = [claim for claim in claims if claim["about"] not in RAW and claim["rung"] in first]
    beaten = len({one["rung"] for one in others if one["interval"][0] > first[one["rung"]]["interval"][1]})
    answers = {"better": "partly" if beaten else "yes", "worse": "no", "undecided": "undecided"}
    answer = answers[next(iter(verdicts))] if len(verdicts) == 1 else "partly"
    text = f"{QUESTION} {answer}: of {len(first)} rung{'s' * (len(first) > 1)}, the words that attention scores "
    text += f"highest matter more than random words in {verdicts['better']}"
    text += "".join(f", {verdict} in {verdicts[verdict]}" for verdict in ("worse", "undecided") if verdicts[verdict])
    return text + (f"; in {beaten}, another score finds words that matter more" if beaten else "")


def sentences(summary: dict[str, Any]) -> list[str]:
    """What a reader of the tables could miss: attention beside the best scores, changed orders, failed tests."""
    rungs, rows = summary["rungs"], summary["numbers"]
    normalized: dict[str, dict[str, float]] = {rung["label"]: {} for rung in rungs}  # rung -> score -> mean
    for row in rows:
        if row["measure"] == "normalized":
            normalized[row["rung"]][row["about"]] = row["mean"]
    found = []
    for rung, means in normalized.items():
        groups = {"attention weights": RAW, "norms and value zeroing": WITH_VALUES, "all scores": means}
        parts = []
        for group, names in groups.items():
            if present := [name for name in names if name in means]:
                best = max(present, key=means.__getitem__)
                parts.append(f"of {group} {number(means[best])} ({shown(best)})")
        found += [f"{rung}: the highest normalized AOPC is, {', '.join(parts)}."] if parts else []
    for score in dict.fromkeys(score for means in normalized.values() for score in means if score != "random"):
        after = {label: means[score] for label, means in normalized.items() if score in means}
        before = {rung["label"]: rung["aopc_of_searched"][score] for rung in rungs if rung["label"] in after}
        raw, now = (" > ".join(sorted(means, key=means.__getitem__, reverse=True)) for means in (before, after))
        if raw != now:
            found.append(f"Normalization changes the order of models by {shown(score)}: {raw}; now {now}.")
    if correlations := [row for row in rows if row["measure"] == "randomized"]:
        failed = [f"{shown(row['about'])} in {row['rung']}" for row in correlations if row["interval"][0] > UNCHANGED]
        text = f"Fails the randomization test (correlation above {UNCHANGED:g})"
        found.append(f"{text}: {', '.join(failed) or 'no score'}.")
    return found


def notes(summary: dict[str, Any]) -> list[str]:
    """How the numbers were computed."""
    method, claims = summary["method"], summary["claims"]
    facts = {
        "shares": ", ".join(f"{100 * share:g} %" for share in method["shares"]),
        "beam": method["search"]["beam"],
        "claims": f"{len(claims):,}",
        "level": level(summary),
    }
    wanted = {"aopc": True, "signs": True, "correlations": True, "claims": claims}
    wanted["one_seed"] = any(len(rung["seeds"]) == 1 for rung in summary["rungs"])
    lines = [NOTES[name].format(**facts) for name, is_wanted in wanted.items() if is_wanted]
    return shared.notes(summary, lines)
