"""The tests of faithfulness (the dict that summary makes) as files and as text in the terminal."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from imdbattn.comparison import report as shared
from imdbattn.comparison.figures import signed
from imdbattn.faithfulness.attributions import ATTENTION
from imdbattn.faithfulness.erasure import SHOWN
from imdbattn.faithfulness.figures import FIGURES, SCORES, UNITS, figures, measured
from imdbattn.pages import plain, png, render, svg, terminal

Row = dict[str, str]  # column -> cell
TEMPLATES = Path(__file__).parent
QUANTITIES = {"comprehensiveness": "comprehensiveness", "sufficiency": "sufficiency", "auprc": "AUPRC"}
VERDICTS = ("better", "worse", *filter(None, UNITS))
QUESTION = "Is attention an explanation here? By erasure,"
NAMED = 3  # units that a sentence names


class Section(NamedTuple):
    """A part of the page. names: number of columns at the left that hold names. figures: name -> caption."""

    title: str
    text: str
    table: shared.Table
    names: int
    figures: dict[str, str]


# --- files -----------------------------------------------------------------------------------------------------------


def write_sets(summaries: Sequence[dict[str, Any]], out: Path) -> Path:
    """The same for summaries as comparison.report.write_sets for comparisons."""
    pages = list(map(write_all, summaries, shared.folders_of(summaries, out)))
    texts = [f"{headline(one)}. {verdicts(one)}" for one in map(cleaned, summaries)]
    return shared.write_index(summaries, pages, texts, "Results on different sets cannot be compared.", FIGURES)


def write_all(summary: dict[str, Any], out: Path) -> Path:
    """Writes faithfulness.json, .md and .html and figures/*.png, as comparison.report.write_all does."""
    known = cleaned(summary)
    drawn = figures(known)
    texts = {
        "json": shared.as_json(summary),
        "md": markdown(known, drawn),
        "html": page(known, {name: svg(figure) for name, figure in drawn.items()}),
    }
    pictures = {name: png(figure) for name, figure in drawn.items()}
    return shared.write_report(out / "faithfulness.html", texts, pictures, FIGURES)


def cleaned(summary: dict[str, Any]) -> dict[str, Any]:
    """A copy for the page: texts on one line, None for NaN and for estimates without a mean or interval.

    Claims and units of an ablation without a number are omitted.
    """

    def known(value: Any) -> Any:
        if isinstance(value, list):
            return [item for one in value if (item := known(one)) != {}]
        if not isinstance(value, dict):
            return " ".join(value.split()) if isinstance(value, str) else value
        numbers = [value.get(key, 0.0) for key in ("mean", "difference", "change")]
        if None in (*numbers, *(value.get("interval") or ())):
            return None if "mean" in value else {}
        return {key: known(one) for key, one in value.items()}

    copy: dict[str, Any] = known(shared.each(summary, shared.without_nan))
    return copy


def page(summary: dict[str, Any], pictures: Mapping[str, bytes]) -> str:
    """One HTML page with the pictures (name -> SVG) inside."""
    return render(
        TEMPLATES / "page.html.jinja",
        headline=headline(summary),
        verdicts=verdicts(summary),
        sentences=[sentence.split(": ", 1) for sentence in sentences(summary)],
        sections=sections(summary),
        notes=notes(summary),
        skipped=summary["skipped"],
        verdict_names=VERDICTS,
        figures=pictures,
    )


def markdown(summary: dict[str, Any], pictures: Iterable[str]) -> str:
    """The same as Markdown with links to the figures."""
    parts = [f"# {plain(headline(summary))}", verdicts(summary), shared.bullets(sentences(summary))]
    for section in sections(summary):
        parts += [f"## {section.title}", plain(section.text)]
        parts += [shared.markdown_figure(name) for name in section.figures if name in pictures]
        parts += [shared.markdown_table(section.table)]
    return shared.joined([*parts, *shared.markdown_end(notes(summary), summary["skipped"])])


# --- terminal --------------------------------------------------------------------------------------------------------


def print_terminal(*summaries: dict[str, Any], console: Console | None = None) -> None:
    """Prints the answer in words and the means of each summary, then the skipped runs."""
    shared.print_sets(list(map(cleaned, summaries)), print_summary, notes, console or terminal())


def print_summary(summary: dict[str, Any], console: Console) -> None:
    console.print(headline(summary), style="bold")
    if verdicts(summary):
        console.print(verdicts(summary))
    console.print("", *sentences(summary), sep="\n")

    def means(rung: dict[str, Any], name: str) -> Row:
        values = {shown: measured(rung, name, quantity) for quantity, shown in QUANTITIES.items()}
        return {shown: number(one["mean"] if one else None) for shown, one in values.items()}

    if rows := score_rows(summary, means):
        shared.print_table(shared.as_table(rows), console, names=2)


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


def sections(summary: dict[str, Any]) -> list[Section]:
    """The sections of the page that have data, each with a table; their texts are in sections.txt.jinja."""
    texts = dict(line.split(": ", 1) for line in lines("sections.txt.jinja", summary))
    scores = ("comprehensiveness", "sufficiency", "rationales")
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
        Section(title, texts[title], shared.as_table(rows), names, {figure: texts[figure] for figure in shown})
        for title, rows, names, shown in parts
        if rows
    ]


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
    precision = (rung["scores"].get(name, {}).get("rationale") or {}).get("precision") or {}
    row = {shown: with_interval(measured(rung, name, quantity)) for quantity, shown in QUANTITIES.items()}
    return row | {f"precision at {count}": number(precision.get(str(count))) for count in SHOWN}


def stability_cells(rung: dict[str, Any], name: str) -> Row:
    return {f"between {way}": with_interval(measured(rung, name, way)) for way in ("seeds", "epochs")}


def cost_rows(summary: dict[str, Any]) -> list[Row]:
    rows = []
    for rung in summary["rungs"]:
        speeds = {name: score["reviews_per_s"] for name, score in rung["scores"].items()}
        if any(speeds.values()):
            rows.append({"rung": rung["label"]} | {SCORES[name][0]: shared.count(speeds.get(name)) for name in SCORES})
    return rows


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


def of_attention(summary: dict[str, Any], value: Callable[[dict[str, Any], str], Any]) -> list[tuple[str, Any, str]]:
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


def by_verdict(claims: Sequence[Mapping[str, Any]], verdicts: Iterable[str] = VERDICTS) -> list[str]:
    """The number of claims with each verdict, as `2 better`; without zeros."""
    numbers = Counter(claim["verdict"] for claim in claims)
    return [f"{numbers[verdict]:,} {verdict}" for verdict in verdicts if numbers[verdict]]


def verdicts(summary: dict[str, Any]) -> str:
    """The number of claims by verdict; "" without claims."""
    total, parts = len(summary["claims"]), ", ".join(by_verdict(summary["claims"]))
    return f"Of {total:,} claim{'s' * (total > 1)} about scores, layers and heads: {parts}." if total else ""


def sentences(summary: dict[str, Any]) -> list[str]:
    """The result of each test that was made, as `Name of the test: result`."""

    def against_random(quantity: str) -> str:
        claims = attention_claims(summary, quantity)
        return f"Against random words: {tally(claims, {})}." if claims else ""

    return lines(
        "sentences.txt.jinja",
        summary,
        of=lambda quantity: of_attention(summary, lambda rung, name: measured(rung, name, quantity)),
        by_rung=lambda test: [(rung["label"], rung[test], "") for rung in summary["rungs"] if rung[test]],
        against_random=against_random,
        name_of=name_of,
        spread=spread,
        best=best_scores(summary),
        removable=removable(summary),
    )


def best_scores(summary: dict[str, Any]) -> str:
    """Which score has the highest comprehensiveness, in rungs with a score that is neither attention nor random."""
    best = Counter[str]()
    for rung in summary["rungs"]:
        means = {name: values["mean"] for name, one in rung["scores"].items() if (values := one["comprehensiveness"])}
        if set(means) - {*ATTENTION, "random"}:
            best[SCORES[max(means, key=means.__getitem__)][0]] += 1
    if best.total() == 1:
        return f"The highest comprehensiveness is that of {next(iter(best))}."
    names = listed([f"{name} in {rungs}" for name, rungs in best.most_common()]) if best else ""
    return names and f"The highest comprehensiveness is that of {names} of {best.total()} rungs."


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
        parts += ["; ".join([text, *by_verdict(claims, ("needed", "undecided"))])] if claims else []
    return ". At the same loss, ".join(parts)


def name_of(values: Sequence[tuple[str, dict[str, Any], str]]) -> str:
    names = {name for *_, name in values}
    return SCORES[names.pop()][0] if len(names) == 1 else "attention"


def spread(values: Sequence[tuple[str, dict[str, Any], str]]) -> str:
    """`0.120 (0.100 to 0.140) in residual`; with several rungs, those of the lowest and of the highest mean."""
    ordered = sorted(values, key=lambda one: one[1]["mean"])
    low, high = (f"{with_interval(one)} in {label}" for label, one, _ in (ordered[0], ordered[-1]))
    return low if len(values) == 1 else f"{low} up to {high}"


def notes(summary: dict[str, Any]) -> list[str]:
    """How the numbers were computed: definitions, method, data, machines."""
    return lines("notes.txt.jinja", summary, set_name=shared.set_name(summary))


def lines(template: str, summary: dict[str, Any], **values: Any) -> list[str]:
    margin, shares = summary["method"]["margin"], summary["method"]["shares"]
    values["margin"] = f"{100 * margin:g} point{'s' * (margin != 0.01)}"
    values["shares"] = listed([f"{100 * share:g} %" for share in shares])
    text = render(TEMPLATES / template, **summary, **values)
    return [" ".join(line.split()) for line in text.split("\n") if line.strip()]
