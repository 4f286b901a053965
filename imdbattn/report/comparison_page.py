"""A comparison (the dict that compare.compare makes) as a pages.Report, and its numbers as text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from imdbattn.errors import in_line
from imdbattn.report.comparison import compare_sets
from imdbattn.report.comparison_figures import (
    accuracies,
    curves_of_seeds,
    entropies_of_seeds,
    entropy_names,
    lengths,
    signed,
)
from imdbattn.report.finished_runs import in_short
from imdbattn.report.pages import (
    Picture,
    Printed,
    Report,
    Section,
    Table,
    as_table,
    folders_of,
    print_reports,
    render,
    write_reports,
)
from imdbattn.report.statistics import ALPHA, in_percent, level

CHARACTERS = 300  # of a text on which rungs disagree
BAND = "Line: mean over seeds; band: from the lowest to the highest seed."


def write_comparison(
    folders: Iterable[str | Path], out: Path, **options: Any
) -> tuple[Path, dict[Path, dict[str, Any]]]:
    """Compares finished runs, writes the reports and prints them. options: of compare_sets.

    Returns the page to open, and folder -> comparison of each set.
    """
    comparisons = compare_sets(folders, **options)
    reports = list(map(report_of, comparisons))
    page = write_reports(reports, out)
    print_reports(reports)
    return page, dict(zip(folders_of(reports, out), comparisons, strict=True))


def report_of(comparison: dict[str, Any]) -> Report:
    paper = comparison["paper"]
    return Report(
        name="comparison",
        title=headline(comparison),
        about=about(comparison),
        lead=verdicts(comparison),
        points=list(map(sentence, comparison["pairs"])),
        sections=sections(comparison),
        notes=notes(comparison),
        skipped=comparison["skipped"],
        content=comparison,
        folder=folder_name(comparison),
        texts={"comparison.tex": latex_table(comparison)} if paper["columns"] else {},
        printed=Printed(paper["width"], paper["font"]) if paper["width"] else None,
    )


def folder_name(summary: Mapping[str, Any]) -> str:
    # never a path
    fingerprint = "".join(letter for letter in summary["fingerprint"] if letter.isalnum())
    return f"{summary['split']}-{fingerprint}"


def sections(comparison: dict[str, Any]) -> list[Section]:
    """Those with data; the page shows the later ones folded."""
    rungs, items, words = comparison["rungs"], comparison["items"], comparison["method"]["words"]
    table = rung_table(comparison)
    short = [
        column for column in zip(*table, strict=True) if column[0] not in ("parameters", "tokens/s")
    ]
    have_lengths = all(rung["lengths"] and rung["lengths"]["x"] for rung in rungs)
    measured = [
        name
        for name in ("accuracy", "loss")
        if any(f"val/{name}" in rung["curves"] for rung in rungs)
    ]
    listed = {
        name: few
        for name, few in words.items()
        if len(few) > 1 and f"with “{name}”" in comparison["slices"]
    }

    figure = Picture(
        "accuracies",
        partial(accuracies, comparison),
        "Blue: mean over seeds with its interval; orange: each seed.",
    )
    caption = f"{BAND} Shaded: training. Lengths of fewer than ten {items} are omitted."
    by_length = [Picture("lengths", partial(lengths, comparison), caption)] * have_lengths
    caption = f"{BAND} Training values are measured during the epoch, with changing weights."
    curves = [
        Picture(f"curves_{name}", partial(curves_of_seeds, comparison, name), caption)
        for name in measured
    ]
    caption = (
        f"{BAND} Mean over heads of the same validation reviews; 100 % is the entropy of equal"
        " weights."
    )
    entropy = [Picture("entropy", partial(entropies_of_seeds, comparison), caption)]
    pairs = (
        f"“Gained” are the {items} that only the first rung gets right, “lost” those that only the"
        " second gets "
    )
    pairs += "right; means over pairs of seeds."
    slices = (
        "Accuracy and expected calibration error (ECE, 15 bins) in percent; in parentheses the"
        f" number of {items}."
    )
    slices += "".join(f" “{name}” is any of {', '.join(few)}." for name, few in listed.items())
    confused = (
        "Mean numbers of reviews over seeds by true label (rows) and predicted label (columns)."
    )
    differ = "The lowest and the highest probability that rungs give the "
    differ += (
        f"{'true label' if comparison['labels'] else 'reference'}, mean over seeds; comparison.json"
        " has those of "
    )
    differ += "all rungs and the whole texts."
    parts = [
        Section("All rungs", table=table, pictures=[figure], short=list(zip(*short, strict=True))),
        Section("Accuracy by length", pictures=by_length),
        Section("Differences", pairs, pair_table(comparison)),
        Section("Learning curves", pictures=curves, folded=True),
        Section(
            "Attention over time",
            pictures=entropy if any(map(entropy_names, rungs)) else [],
            folded=True,
        ),
        Section("Slices", slices, slice_table(comparison), folded=True),
        Section("Confusion", confused, confusion_table(comparison), names=2, folded=True),
        Section("Largest disagreements", differ, disagreement_table(comparison), folded=True),
    ]
    return [part for part in parts if len(part.table) > 1 or part.pictures]


# --- numbers as text; "" where there is none ------------------------------------------------------


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def as_text(value: float, metric: str) -> str:
    """Returns a value of a metric: in percent with one decimal, or with four digits."""
    return percent(value) if in_percent(metric) else f"{value:.4g}".replace("-", "−")


def with_sign(difference: float, metric: str) -> str:
    """Returns a difference of a metric with its sign: in points, or with four digits."""
    if in_percent(metric):
        return signed(difference)
    return f"{difference:+.4g}".replace("-", "−")


def metric_name(metric: str) -> str:
    return {"macro_f1": "macro F1"}.get(metric, metric)


def mean_and_sd(values: Mapping[str, Any] | None, factor: float = 100, form: str = ".1f") -> str:
    """`86.2 ± 0.3`; without ± for a single seed."""
    numbers = [] if values is None else [values["mean"], values["sd"]]
    return " ± ".join(f"{factor * number:{form}}" for number in numbers if number is not None)


def count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:#.3g}"


# --- tables ---------------------------------------------------------------------------------------


def rung_table(comparison: dict[str, Any]) -> Table:
    rungs = comparison["rungs"]
    interval, metric = f"{level(comparison)} interval", comparison["metric"]
    if metric == "macro_f1":
        interval += " (macro F1)"
    elif metric != "accuracy":
        interval += f" ({metric})"
    if comparison["split"] == "validation" and any(rung["test"] for rung in rungs):
        interval += " (validation)"
    over = rungs[0]["folds"]
    folds = f"over {len(over['values'])} folds %" if over else "over folds %"
    class_share = comparison["largest_class"]
    uneven = bool(class_share and class_share["uneven"])
    largest = percent(class_share["share"]) if uneven else ""
    bleu = "test" if any(rung["bleu"]["test"] for rung in rungs) else "validation"
    return as_table(
        [
            {
                "rung": rung["label"],
                "seeds": seeds_of(rung),
                "validation %": mean_and_sd(rung["validation"]),
                "test %": mean_and_sd(rung["test"]),
                folds: mean_and_sd(rung["folds"]),
                metric: "" if in_percent(metric) else mean_and_sd(rung["metric"], 1, ".4g"),
                f"largest class of {comparison['split']} %": largest,
                f"{comparison['split']} macro F1 %": mean_and_sd(rung["macro_f1"])
                if uneven or metric == "macro_f1"
                else "",
                interval: "–".join(as_text(end, metric) for end in rung["interval"] or ()),
                f"{bleu} BLEU": mean_and_sd(rung["bleu"][bleu], factor=1),
                "parameters": count(rung["parameters"]),
                "tokens/s": count(rung["tokens_per_s"]),
                "training min": ""
                if rung["train_seconds"] is None
                else f"{rung['train_seconds'] / 60:.1f}",
            }
            for rung in rungs
        ]
    )


def seeds_of(rung: Mapping[str, Any]) -> str:
    """Returns the number of seeds and their list, such as `3 (1, 2, 3)`."""
    return f"{len(rung['seeds'])} ({', '.join(map(str, rung['seeds']))})"


def pair_table(comparison: dict[str, Any]) -> Table:
    return as_table(
        [
            {
                "comparison": f"{pair['to']} against {pair['from']}",
                comparison["metric"] if comparison["metric"] != "accuracy" else "points": with_sign(
                    pair["difference"], pair["metric"]
                ),
                "interval": " to ".join(
                    with_sign(end, pair["metric"]) for end in pair["interval"] or ()
                ),
                "verdict": pair["verdict"],
                "p (Holm)": p_value(pair["holm_p"]),
                f"{comparison['items']} gained": f"{pair['only_to_right']:,.0f}",
                f"{comparison['items']} lost": f"{pair['only_from_right']:,.0f}",
                "McNemar's test": p_value(pair["mcnemar_p"]),
            }
            for pair in comparison["pairs"]
        ]
    )


def slice_table(comparison: dict[str, Any]) -> Table:
    """Accuracy by slice and calibration error in percent."""
    heads = [f"{name} ({reviews:,})" for name, reviews in comparison["slices"].items()]
    rows = [
        [rung["label"], *map(percent, [*rung["slices"].values(), rung["ece"]])]
        for rung in comparison["rungs"]
    ]
    return [["rung", *heads, "ECE"], *rows]


def confusion_table(comparison: dict[str, Any]) -> Table:
    names = comparison["labels"]
    rows = [
        [rung["label"], name, *(f"{number:,.0f}" for number in row)]
        for rung in comparison["rungs"]
        for name, row in zip(names, rung["confusion"], strict=True)
    ]
    return [["rung", "label", *names], *rows]


def disagreement_table(comparison: dict[str, Any]) -> Table:
    rows = []
    for item in comparison["disagreements"]:
        lowest, *_, highest = sorted(item["probability"].items(), key=lambda one: one[1])
        text = " ".join(item["text"].replace("<br />", " ").split())
        shown = text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
        ends = [f"{percent(value)} % by {name}" for name, value in (lowest, highest)]
        rows.append([str(item["row"]), item["label"], *ends, shown])
    return [["row", "label", "lowest", "highest", "text"], *rows]


# --- sentences ------------------------------------------------------------------------------------


def set_name(comparison: Mapping[str, Any]) -> str:
    scored = f"{comparison['reviews']:,} {comparison['split']} {comparison.get('items', 'reviews')}"
    return f"{scored} of {comparison['test_set']}, fingerprint {comparison['fingerprint']}"


def about(comparison: Mapping[str, Any]) -> str:
    """The items that were scored, the share of their largest class, and the settings of all
    runs.
    """
    words = [
        f"{name}={value}" for name, value in comparison["trained_with"].items() if value is not None
    ]
    words = list(dict.fromkeys([*words, *map(in_short, comparison["overrides"])]))
    text = f"{set_name(comparison)}."
    if largest := comparison["largest_class"]:
        text += f" {largest_class(largest)}."
    return text + (f" All rungs were trained with {', '.join(words)}." if words else "")


def largest_class(largest: Mapping[str, Any]) -> str:
    """Returns `The largest class, pos, has 50.2 %`, in one line."""
    return f"The largest class, {in_line(largest['label'], 40)}, has {percent(largest['share'])} %"


def headline(comparison: dict[str, Any]) -> str:
    """The best rung in one sentence.

    It is selected by validation, so that its value on the test set is unbiased. Where rungs have
    different validation sets, which may be of different difficulty, or no validation values of the
    metric, it is selected by the compared split itself.
    """
    rungs, split = comparison["rungs"], comparison["split"]
    metric = comparison["metric"]
    chosen = all(rung["metric_validation"] for rung in rungs)  # its validation values are known
    by = "validation" if comparison["one_validation"] and chosen else split
    of = "metric_validation" if by == "validation" else "metric"
    best = max(rungs, key=lambda rung: rung[of]["mean"])
    ends = " to ".join(as_text(end, metric) for end in best["interval"] or ())
    reached = as_text(best["metric"]["mean"], metric) + " %" * in_percent(metric)
    if metric != "accuracy":
        reached = f"{metric_name(metric)} {reached}"
    text = (
        f"{best['label']}, the best of {len(rungs)} by {by}," if len(rungs) > 1 else best["label"]
    )
    text += f" reaches {reached} on the {split} set" + f" ({ends})" * bool(ends)
    return text + (
        "; biased upwards, because the same set selected this rung"
        if len(rungs) > 1 and split == by
        else ""
    )


def by_verdict(claims: Sequence[Mapping[str, Any]], verdicts: Iterable[str]) -> list[str]:
    """The number of claims with each verdict, as `2 better`; without zeros."""
    numbers = Counter(claim["verdict"] for claim in claims)
    return [f"{numbers[verdict]:,} {verdict}" for verdict in verdicts if numbers[verdict]]


def verdicts(comparison: dict[str, Any]) -> str:
    """The number of comparisons by verdict; "" without comparisons."""
    pairs = comparison["pairs"]
    if not pairs:
        return ""
    counted = by_verdict(pairs, ("better", "worse", "undecided"))
    return f"Of {len(pairs):,} comparison{'s' * (len(pairs) > 1)}: {', '.join(counted)}."


def sentence(pair: Mapping[str, Any]) -> str:
    """Returns `residual against base: better by 1.9 points (1.4 to 2.4), p < 0.001`.

    The interval, p and the verdict are of one model. p is corrected for the number of comparisons,
    which is said where it is above 0.05 for that reason, beside an interval without 0.
    """
    metric, ends = pair["metric"], pair["interval"] or ()
    unit = "points" if in_percent(metric) else metric_name(metric)
    if metric == "macro_f1":
        unit += " of macro F1"
    if pair["verdict"] == "undecided":
        within = " to ".join(with_sign(end, metric) for end in ends)
        text = f"no difference shown, {with_sign(pair['difference'], metric)} {unit}"
    else:
        # of a worse rung from the end that is nearer to 0, without signs
        sign = 1 if pair["difference"] > 0 else -1
        within = " to ".join(as_text(end, metric) for end in sorted(sign * end for end in ends))
        text = f"{pair['verdict']} by {as_text(abs(pair['difference']), metric)} {unit}"
    text += f" ({within})" * bool(within)
    corrected = "corrected " * (pair["p"] < ALPHA <= pair["holm_p"])
    return f"{pair['to']} against {pair['from']}: {text}, {corrected}{p_value(pair['holm_p'])}"


def notes(comparison: dict[str, Any], others: Sequence[str] = ()) -> list[str]:
    """Sentences on intervals, data and machines, of a comparison or of the tests of faithfulness,
    with the others.
    """
    text = render(
        Path(__file__).with_name("notes.txt.jinja"),
        **comparison,
        level=level(comparison),
        others=others,
    )
    return [*filter(None, text.splitlines())]


# --- the table for a document in LaTeX, with the package booktabs ---------------------------------

ESCAPED = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    | {"±": r"$\pm$", "−": "$-$", "–": "--", "<": "$<$", ">": "$>$"}
)
COLUMNS = {  # name of a column -> its head
    "seeds": "seeds",
    "seed_list": "seeds",
    "validation": r"validation (\%)",
    "test": r"test (\%)",
    "metric": "metric",
    "largest_class": r"largest class (\%)",
    "macro_f1": r"macro F1 (\%)",
    "interval": "interval",
    "difference": "difference",
    "against": "against",
    "p": "$p$",
    "parameters": "parameters",
    "minutes": "minutes",
}


def escaped(text: str) -> str:
    return text.translate(ESCAPED)


def latex_table(comparison: Mapping[str, Any]) -> str:
    """Returns a booktabs table with a row for each rung and the columns of `paper.columns`.

    A difference is bold where the test says better or worse; nothing else is.
    """
    columns = comparison["paper"]["columns"]
    pairs = {pair["to"]: pair for pair in reversed(comparison["pairs"])}  # the first of each rung
    lines = []
    for rung in comparison["rungs"]:
        cells = cells_of(rung, pairs.get(rung["label"]), comparison["metric"])
        row = [escaped(rung["label"]), *(cells[name] for name in columns)]
        lines.append("  " + " & ".join(row) + r" \\")
    heads = {
        "metric": metric_head(comparison["metric"]),
        "interval": rf"{escaped(level(comparison))} interval",
    }
    head = ["model", *(heads.get(name, COLUMNS[name]) for name in columns)]
    seeds = sorted({seed for rung in comparison["rungs"] for seed in rung["seeds"]})
    largest = comparison["largest_class"]
    return "\n".join(
        [
            f"% {set_name(comparison)}".replace("\n", " "),
            *([f"% {largest_class(largest)}"] if largest else []),
            f"% seeds: {', '.join(map(str, seeds))}; bold: p (Holm) below 0.05; needs booktabs",
            r"\begin{tabular}{l" + "r" * len(columns) + "}",
            r"  \toprule",
            "  " + " & ".join(head) + r" \\",
            r"  \midrule",
            *lines,
            r"  \bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def metric_head(metric: str) -> str:
    name = escaped(metric_name(metric))
    return rf"{name} (\%)" if in_percent(metric) else name


def cells_of(
    rung: Mapping[str, Any], pair: Mapping[str, Any] | None, metric: str
) -> dict[str, str]:
    """Returns the cells of a rung by column. pair: with the rung that it is compared with."""
    factor, form = (100.0, ".1f") if in_percent(metric) else (1.0, ".4g")
    minutes = rung["train_seconds"] and rung["train_seconds"] / 60
    cells = {
        "seeds": str(len(rung["seeds"])),
        "seed_list": ", ".join(map(str, rung["seeds"])),
        "validation": mean_and_sd(rung["validation"]),
        "test": mean_and_sd(rung["test"]),
        "metric": mean_and_sd(rung["metric"], factor, form),
        "largest_class": percent(rung["largest_class"]),
        "macro_f1": mean_and_sd(rung["macro_f1"]),
        "interval": "–".join(as_text(end, metric) for end in rung["interval"] or ()),
        "parameters": count(rung["parameters"]),
        "minutes": "" if minutes is None else f"{minutes:.1f}",
    } | dict.fromkeys(("difference", "against", "p"), "")
    cells = {name: escaped(text) for name, text in cells.items()}
    if pair is not None:
        difference = escaped(with_sign(pair["difference"], metric))
        decided = pair["verdict"] != "undecided"
        cells["difference"] = rf"\textbf{{{difference}}}" if decided else difference
        cells["against"] = escaped(pair["from"])
        cells["p"] = escaped(p_value(pair["holm_p"]).removeprefix("p = ").removeprefix("p "))
    return cells
