"""The tests of faithfulness (the dict that summary makes) as a pages.Report."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from imdbattn.comparison import report as shared
from imdbattn.comparison.figures import level, signed
from imdbattn.faithfulness.attributions import ATTENTION
from imdbattn.faithfulness.erasure import SHOWN
from imdbattn.faithfulness.figures import SCORES, UNITS, drawings, measured
from imdbattn.pages import Picture, Report, Section, as_table, render

Row = dict[str, str]  # column -> cell
Found = list[tuple[str, Any, str]]  # label of a rung, an estimate, and the score that it is about
QUANTITIES = {"comprehensiveness": "comprehensiveness", "sufficiency": "sufficiency", "auprc": "AUPRC"}
VERDICTS = ("better", "worse", *filter(None, UNITS))
QUESTION = "Is attention an explanation here? By erasure,"
NAMED = 3  # units that a sentence names


def report_of(summary: dict[str, Any]) -> Report:
    return Report(
        name="faithfulness",
        title=headline(summary),
        about=f"{shared.set_name(summary)}.",
        lead=verdicts(summary),
        points=sentences(summary),
        sections=sections(summary),
        notes=notes(summary),
        skipped=summary["skipped"],
        content=summary,
        folder=shared.folder_name(summary),
    )


def sections(summary: dict[str, Any]) -> list[Section]:
    """Those that have data, each with a table."""
    about = dict(texts(summary))
    drawn = drawings(summary)
    scores = ("comprehensiveness", "sufficiency", "rationales")
    short = as_table(score_rows(summary, means_only))
    parts: list[tuple[str, list[Row], int, tuple[str, ...]]] = [  # title, rows, columns of names, figures
        ("Rungs", rung_rows(summary), 1, ()),
        ("Erasure", score_rows(summary, erasure_cells), 2, ("erasure", *scores)),
        ("Claims", claim_rows(summary), 3, ()),
        ("Counterfactual attention", counterfactual_rows(summary), 1, ("permutation",)),
        ("Ablation", ablation_rows(summary), 2, ("ablation",)),
        ("Stability", score_rows(summary, stability_cells), 2, ("stability_seeds", "stability_epochs")),
        ("Cost", cost_rows(summary), 1, ()),
    ]
    return [
        Section(
            title,
            about[title],
            as_table(rows),
            [Picture(name, drawn[name], about[name]) for name in names if name in drawn],
            columns,
            short if title == "Erasure" else (),
        )
        for title, rows, columns, names in parts
        if rows
    ]


def texts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of each section, figure and note, from texts.txt.jinja."""
    template = Path(__file__).with_name("texts.txt.jinja")
    values = {"shares": shares(summary), "margin": margin(summary), "level": level(summary)}
    lines = render(template, **summary, **values).split("\n")
    return [(name, text) for name, found, text in (line.partition(": ") for line in lines) if found]


def shares(summary: Mapping[str, Any]) -> str:
    return listed([f"{100 * share:g} %" for share in summary["method"]["shares"]])


def margin(summary: Mapping[str, Any]) -> str:
    points = summary["method"]["margin"]
    return f"{100 * points:g} point{'s' * (points != 0.01)}"


# --- numbers as text; "" where there is none -------------------------------------------------------------------------


def number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{round(value, 3) + 0.0:{sign}.3f}".replace("-", "−")  # + 0.0: no −0.000


def with_interval(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return ""
    low, high = map(number, values["interval"])
    return f"{number(values['mean'])} ({low} to {high})"


def listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


# --- tables ----------------------------------------------------------------------------------------------------------


def rung_rows(summary: dict[str, Any]) -> list[Row]:
    return [
        {"rung": rung["label"], "seeds": str(len(rung["seeds"])), "accuracy %": shared.mean_and_sd(rung["accuracy"])}
        for rung in summary["rungs"]
    ]


def score_rows(summary: dict[str, Any], cells: Callable[[dict[str, Any], str], Row]) -> list[Row]:
    """A row for each rung and score whose `cells` are not all empty."""
    return [
        {"rung": rung["label"], "score": shown} | row
        for rung in summary["rungs"]
        for name, (shown, *_) in SCORES.items()
        if any((row := cells(rung, name)).values())
    ]


def erasure_cells(rung: dict[str, Any], name: str) -> Row:
    precision = measured(rung, name, "precision") or {}
    row = {shown: with_interval(measured(rung, name, quantity)) for quantity, shown in QUANTITIES.items()}
    return row | {f"precision at {count}": number(precision.get(str(count))) for count in SHOWN}


def stability_cells(rung: dict[str, Any], name: str) -> Row:
    return {f"between {way}": with_interval(measured(rung, name, way)) for way in ("seeds", "epochs")}


def means_only(rung: dict[str, Any], name: str) -> Row:
    values = {shown: measured(rung, name, quantity) for quantity, shown in QUANTITIES.items()}
    return {shown: number(one["mean"] if one else None) for shown, one in values.items()}


def cost_rows(summary: dict[str, Any]) -> list[Row]:
    return [
        {"rung": rung["label"]}
        | {shown: shared.count(measured(rung, name, "reviews_per_s")) for name, (shown, *_) in SCORES.items()}
        for rung in summary["rungs"]
        if rung["scores"]
    ]


def claim_rows(summary: dict[str, Any]) -> list[Row]:
    return [
        {
            "rung": claim["rung"],
            "score": SCORES[claim["score"]][0],
            "quantity": QUANTITIES[claim["quantity"]],
            "difference": number(claim["difference"], "+"),
            "interval": " to ".join(number(end, "+") for end in claim["interval"]),
            **verdict_cells(claim),
        }
        for claim in summary["claims"]
        if claim["quantity"] in QUANTITIES
    ]


def verdict_cells(claim: Mapping[str, Any]) -> Row:
    p = claim.get("holm_p")
    return {"verdict": claim.get("verdict", ""), "p (Holm)": "" if p is None else shared.p_value(p)}


def counterfactual_rows(summary: dict[str, Any]) -> list[Row]:
    return [
        {
            "rung": rung["label"],
            "permutation": with_interval(rung["permutation"]),
            "adversary (nats)": with_interval(rung["adversary"]),
            "reviews of the adversary": f"{rung['adversary']['reviews']:,}" if rung["adversary"] else "",
        }
        for rung in summary["rungs"]
        if rung["permutation"] or rung["adversary"]
    ]


def ablation_rows(summary: dict[str, Any]) -> list[Row]:
    claims = {(claim["rung"], claim["unit"]): claim for claim in summary["claims"]}
    return [
        {
            "rung": rung["label"],
            "without": unit["unit"],
            "accuracy %": shared.percent(unit["accuracy"]),
            "points": signed(unit["change"]),
            "interval": shared.signed_interval(unit["interval"]),
            **verdict_cells(claims.get((rung["label"], unit["unit"]), {})),
        }
        for rung in summary["rungs"]
        for unit in rung["ablation"]
    ]


# --- sentences -------------------------------------------------------------------------------------------------------


def headline(summary: dict[str, Any]) -> str:
    """The answer in one sentence, from the claims about comprehensiveness: attention against random words.

    Another score is better if its interval is above that of attention.
    """
    claims = attention_claims(summary, "comprehensiveness")
    if not claims:
        return f"{QUESTION} not tested: no rung has word scores from attention that could be compared with random words"
    numbers = Counter(claim["verdict"] for claim in claims)
    beaten = sum(is_beaten(claim, summary["claims"]) for claim in claims)
    where = "" if len(claims) == 1 else f"in all {beaten}, " if beaten == len(claims) else f"in {beaten}, "
    more = f"; {where}another score finds words that matter more" if beaten else ""
    words = "the words that attention scores highest"
    if set(numbers) == {"undecided"}:
        where = claims[0]["rung"] if len(claims) == 1 else f"any of {len(claims)} rungs"
        return f"{QUESTION} undecided: {words} do not differ clearly from random words in {where}{more}"
    answer = "no" if not numbers["better"] else "yes" if numbers["better"] == len(claims) and not beaten else "partly"
    amounts = {"better": "more than random words", "worse": "less than random words"}
    return f"{QUESTION} {answer}: {words} matter {tally(claims, amounts)}{more}"


def of_attention(summary: dict[str, Any], value: Callable[[dict[str, Any], str], Any]) -> Found:
    """(label, value(rung, score), score) of each rung's first score from attention that has a value."""
    firsts = []
    for rung in summary["rungs"]:
        firsts += [(rung["label"], one, name) for name in ATTENTION if (one := value(rung, name))][:1]
    return firsts


def attention_claims(summary: dict[str, Any], quantity: str) -> list[dict[str, Any]]:
    """The claim of each rung about its first score from attention."""
    claims = {(one["rung"], one["score"]): one for one in summary["claims"] if one["quantity"] == quantity}
    return [claim for _, claim, _ in of_attention(summary, lambda rung, name: claims.get((rung["label"], name)))]


def is_beaten(claim: Mapping[str, Any], claims: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the interval of a score that is not from attention is above that of the claim."""
    return any(
        (one["rung"], one["quantity"]) == (claim["rung"], claim["quantity"])
        and one["score"] not in ATTENTION
        and one["interval"][0] > claim["interval"][1]
        for one in claims
    )


def tally(claims: Sequence[Mapping[str, Any]], shown: Mapping[str, str]) -> str:
    """`better in 2 of 3 rungs, undecided in 1`, or `better in residual`. shown: verdict -> words for it."""
    numbers = Counter(claim["verdict"] for claim in claims)
    parts = [f"{shown.get(verdict, verdict)} in {numbers[verdict]}" for verdict in VERDICTS if numbers[verdict]]
    if len(claims) == 1:
        return f"{parts[0].removesuffix('1')}{claims[0]['rung']}"
    return ", ".join([f"{parts[0]} of {len(claims)} rungs", *parts[1:]])


def verdicts(summary: dict[str, Any]) -> str:
    """The number of claims by verdict; "" without claims."""
    total, parts = len(summary["claims"]), ", ".join(shared.by_verdict(summary["claims"], VERDICTS))
    return f"Of {total:,} claim{'s' * (total > 1)} about scores, layers and heads: {parts}." if total else ""


def sentences(summary: dict[str, Any]) -> list[str]:
    """The result of each test that was made, as `Name of the test: result`."""

    def of(quantity: str) -> Found:
        return of_attention(summary, lambda rung, name: measured(rung, name, quantity))

    def by_rung(test: str) -> Found:
        return [(rung["label"], rung[test], "") for rung in summary["rungs"] if rung[test]]

    def against_random(quantity: str) -> str:
        claims = attention_claims(summary, quantity)
        return f" Against random words: {tally(claims, {})}." if claims else ""

    found = []
    if removed := of("comprehensiveness"):
        found.append(
            f"Erasure: Removing the words that {name_of(removed)} scores highest lowers the probability of the "
            f"predicted label by {spread(removed)}, as a mean over removals of {shares(summary)} of the words "
            f"(comprehensiveness, high is good).{against_random('comprehensiveness')}{best_scores(summary)}"
        )
        if kept := of("sufficiency"):
            found[-1] += f" Keeping only these words lowers it by {spread(kept)} (sufficiency, low is good)."
            found[-1] += against_random("sufficiency")
    if rationale := of("auprc"):
        found.append(
            f"Known rationales: The order of words by {name_of(rationale)} finds the words that are known to matter "
            f"with an average precision of {spread(rationale)} (1 is perfect).{against_random('auprc')}"
        )
    if permutation := by_rung("permutation"):
        found.append(
            "Permutation: Permuting the attention weights of a review changes the predicted probabilities by a "
            "distance (total variation, 0 to 1; median over permutations, mean over reviews) of "
            f"{spread(permutation)}. Near 0, decisions do not depend on which words have large weights."
        )
    if adversary := by_rung("adversary"):
        found.append(
            "Adversary: Attention weights that change the predicted probabilities by at most "
            f"{summary['method']['epsilon']:g} can differ from the trained ones by a Jensen–Shannon divergence (nats, "
            f"mean over reviews) of {spread(adversary)}. Near the maximum, 0.693, very different weights give the same "
            "decision."
        )
    if removed_units := removable(summary):
        found.append(f"Ablation: At a loss of less than {margin(summary)} of accuracy, {removed_units}.")
    stability = {way: values for way in ("seeds", "epochs") if (values := of(way))}
    if stability:
        name = name_of(next(iter(stability.values())))
        between = " and ".join(f"between {way} of {spread(values)}" for way, values in stability.items())
        found.append(
            f"Stability: The values of {name} for the words of a review have a rank correlation (Spearman, 1 at best) "
            f"{between}."
        )
    return found


def best_scores(summary: dict[str, Any]) -> str:
    """Which score has the highest comprehensiveness, in rungs with a score that is neither attention nor random."""
    best = Counter[str]()
    for rung in summary["rungs"]:
        means = {name: one["comprehensiveness"]["mean"] for name, one in rung["scores"].items()}
        if set(means) - {*ATTENTION, "random"}:
            best[SCORES[max(means, key=means.__getitem__)][0]] += 1
    if best.total() == 1:
        return f" The highest comprehensiveness is that of {next(iter(best))}."
    names = listed([f"{name} in {rungs}" for name, rungs in best.most_common()]) if best else ""
    return names and f" The highest comprehensiveness is that of {names} of {best.total()} rungs."


def removable(summary: dict[str, Any]) -> str:
    parts = []
    for kind in ("layer", "head"):
        claims = [
            one
            for one in summary["claims"]
            if one["quantity"] == "ablation"
            and not one["unit"].startswith("all but")
            and ("head" in one["unit"]) == (kind == "head")
        ]
        named = [
            f"{one['unit']} of {one['rung']} ({signed(one['difference'])}, {shared.signed_interval(one['interval'])})"
            for one in claims
            if one["verdict"] == "removable"
        ]
        text = f"{len(named) or 'none'} of {len(claims)} {kind}{'s' * (len(claims) > 1)} can be removed"
        if named:
            more = [f"{len(named) - NAMED} more"] * (len(named) > NAMED)
            text += f": {listed([*named[:NAMED], *more])}"
        parts += ["; ".join([text, *shared.by_verdict(claims, ("needed", "undecided"))])] if claims else []
    return ". At the same loss, ".join(parts)


def name_of(values: Found) -> str:
    names = {name for *_, name in values}
    return SCORES[names.pop()][0] if len(names) == 1 else "attention"


def spread(values: Found) -> str:
    """`0.120 (0.100 to 0.140) in residual`; with several rungs, those of the lowest and of the highest mean."""
    ordered = sorted(values, key=lambda one: one[1]["mean"])
    low, high = (f"{with_interval(one)} in {label}" for label, one, _ in (ordered[0], ordered[-1]))
    return low if len(values) == 1 else f"{low} up to {high}"


def notes(summary: dict[str, Any]) -> list[str]:
    """How the numbers were computed: definitions, method, machines."""
    written = [text for name, text in texts(summary) if name == "note"]
    return [shared.interval_note(summary), *written, *shared.machine_notes(summary)]
