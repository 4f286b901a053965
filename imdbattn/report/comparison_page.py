"""Turns a comparison into a report: sections, tables, figures and sentences."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path

from imdbattn.errors import one_line
from imdbattn.report.comparison import compare_sets
from imdbattn.report.comparison_figures import (
    accuracy_pictures,
    curve_pictures,
    entropy_pictures,
    length_pictures,
)
from imdbattn.report.comparison_types import ComparedSet, ScoredItems, VariantPair
from imdbattn.report.numbers import (
    LEVEL_NAME,
    count,
    decimal,
    interval_text,
    is_in_percent,
    mean_and_sd,
    metric_name,
    metric_text,
    p_number,
    p_value,
    percent,
)
from imdbattn.report.pages import (
    Report,
    Section,
    Table,
    as_table,
    latex,
    print_reports,
    render,
    report_folders,
    write_reports,
)
from imdbattn.report.statistics import ALPHA
from imdbattn.report.variants import shortened
from imdbattn.settings.command_settings import CompareSettings

VERDICTS = ("better", "worse", "undecided")
CHARACTERS = 300  # shown of a text on which variants disagree
DIFFERENCES = (
    "“Gained” are the {items} that only the first variant gets right, “lost” those that only"
    " the second gets right; means over pairs of seeds."
)
CONFUSION = "Mean numbers of reviews over seeds by true label (rows) and predicted label (columns)."


def write_comparison(options: CompareSettings, out: Path) -> tuple[Path, dict[Path, ComparedSet]]:
    """Compares finished runs, writes the reports into `out` and prints them.

    Returns the page to open, and the comparison of each set by its folder.
    """
    comparisons = compare_sets(options)
    reports = list(map(report_of, comparisons))
    page = write_reports(reports, out)
    print_reports(reports)
    return page, dict(zip(report_folders(reports, out), comparisons, strict=True))


def report_of(comparison: ComparedSet) -> Report:
    """Returns the report of a comparison."""
    tables = (variant_table(comparison), pair_table(comparison))
    return Report(
        name="comparison",
        title=headline(comparison),
        about=about(comparison),
        lead=verdict_sentence(comparison),
        points=[*map(sentence, comparison["pairs"]), *comparison["remarks"]],
        sections=sections(comparison),
        notes=notes(comparison),
        skipped=comparison["skipped"],
        content=comparison,
        latex=latex(about(comparison), tables),
        folder=name_of_folder(comparison),
    )


def name_of_folder(scored: ScoredItems) -> str:
    """Returns the folder of a report, which never is a path."""
    fingerprint = "".join(letter for letter in scored["fingerprint"] if letter.isalnum())
    return f"{scored['split']}-{fingerprint}"


def sections(comparison: ComparedSet) -> list[Section]:
    """Returns the sections that have data; the page shows the later ones folded."""
    every = [
        Section(
            "All variants",
            table=variant_table(comparison),
            pictures=accuracy_pictures(comparison),
            in_terminal=True,
            too_wide=("parameters", "tokens/s"),
        ),
        Section("Accuracy by length", pictures=length_pictures(comparison)),
        Section("Differences", DIFFERENCES.format_map(comparison), pair_table(comparison)),
        Section("Learning curves", pictures=curve_pictures(comparison), folded=True),
        Section("Attention over time", pictures=entropy_pictures(comparison), folded=True),
        Section("Slices", slices_text(comparison), slice_table(comparison), folded=True),
        Section("Confusion", CONFUSION, confusion_table(comparison), names=2, folded=True),
        Section(
            "Largest disagreements",
            disagreements_text(comparison),
            disagreement_table(comparison),
            folded=True,
        ),
    ]
    return [section for section in every if len(section.table) > 1 or section.pictures]


def slices_text(comparison: ComparedSet) -> str:
    """Returns what the table of slices shows, and the words of slices that have several."""
    text = (
        "Accuracy and expected calibration error (ECE, 15 bins) in percent; in parentheses the"
        f" number of {comparison['items']}."
    )
    for name, words in comparison["method"]["words"].items():
        if len(words) > 1 and f"with “{name}”" in comparison["slices"]:
            text += f" “{name}” is any of {', '.join(words)}."
    return text


def disagreements_text(comparison: ComparedSet) -> str:
    label = "true label" if comparison["labels"] else "reference"
    return (
        f"The lowest and the highest probability that variants give the {label}, mean over seeds;"
        " comparison.json has the probabilities of all variants and the whole texts."
    )


# --- tables ---------------------------------------------------------------------------------------


def variant_table(comparison: ComparedSet) -> Table:
    """Returns a table with a row for each variant, without the columns that no variant has."""
    split = comparison["split"]
    metric = comparison["metric"]
    bleu_text = partial(decimal, digits=1)
    largest = comparison["largest_class"]
    rows = []
    for variant in comparison["variants"]:
        seeds = variant["seeds"]
        row = {"variant": variant["label"]}
        row["runs"] = f"{len(seeds)} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"
        row["validation %"] = mean_and_sd(variant["validation"])
        row["test %"] = mean_and_sd(variant["test"])
        if folds := variant["folds"]:
            row[f"over {len(folds['values'])} folds %"] = mean_and_sd(folds)
        if not is_in_percent(metric):
            row[metric] = mean_and_sd(variant["metric"], partial(metric_text, metric=metric))
        if largest and largest["uneven"]:
            row[f"largest class of {split} %"] = percent(largest["share"])
        if metric == "macro_f1" or (largest and largest["uneven"]):
            row[f"{split} macro F1 %"] = mean_and_sd(variant["macro_f1"])
        row[interval_heading(comparison)] = interval_text(variant["interval"], metric, between="–")
        row["validation BLEU"] = mean_and_sd(variant["bleu"]["validation"], bleu_text)
        row["test BLEU"] = mean_and_sd(variant["bleu"]["test"], bleu_text)
        row["parameters"] = count(variant["parameters"])
        row["tokens/s"] = count(variant["tokens_per_s"])
        seconds = variant["train_seconds"]
        row["training min"] = "" if seconds is None else f"{seconds / 60:.1f}"
        rows.append(row)
    return as_table(rows)


def interval_heading(comparison: ComparedSet) -> str:
    """Returns the head of the column of intervals, with their level, metric and split."""
    metric = comparison["metric"]
    head = f"{LEVEL_NAME} interval"
    if metric != "accuracy":
        head += f" ({metric_name(metric)})"
    tested = any(variant["test"] for variant in comparison["variants"])
    if comparison["split"] == "validation" and tested:
        head += " (validation)"
    return head


def pair_table(comparison: ComparedSet) -> Table:
    """Returns a table with a row for each compared pair."""
    items = comparison["items"]
    metric = comparison["metric"]
    unit = "points" if metric == "accuracy" else metric
    rows = []
    for pair in comparison["pairs"]:
        row = {
            "comparison": f"{pair['to']} against {pair['from']}",
            unit: metric_text(pair["difference"], metric, sign=True),
            f"{LEVEL_NAME} interval": interval_text(pair["interval"], metric, sign=True),
            "verdict": pair["verdict"],
            "p (Holm)": p_number(pair["holm_p"]),
            f"{items} gained": f"{pair['only_to_right']:,.0f}",
            f"{items} lost": f"{pair['only_from_right']:,.0f}",
            "McNemar's test, p": p_number(pair["mcnemar_p"]),
        }
        rows.append(row)
    return as_table(rows)


def slice_table(comparison: ComparedSet) -> Table:
    """Returns accuracy by slice and calibration error in percent."""
    heads = [f"{name} ({size:,})" for name, size in comparison["slices"].items()]
    rows = []
    for variant in comparison["variants"]:
        shares = [*variant["slices"].values(), variant["ece"]]
        rows.append([variant["label"], *map(percent, shares)])
    return [["variant", *heads, "ECE"], *rows]


def confusion_table(comparison: ComparedSet) -> Table:
    """Returns the confusion matrices of all variants, one below the other."""
    names = comparison["labels"]
    table = [["variant", "label", *names]]
    for variant in comparison["variants"]:
        for name, numbers in zip(names, variant["confusion"], strict=True):
            table.append([variant["label"], name, *(f"{number:,.0f}" for number in numbers)])
    return table


def disagreement_table(comparison: ComparedSet) -> Table:
    """Returns the items on which variants differ most, with the two variants that differ most."""
    rows = []
    for item in comparison["disagreements"]:
        lowest, *_, highest = sorted(item["probability"].items(), key=itemgetter(1))
        text = " ".join(item["text"].replace("<br />", " ").split())
        shown = text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
        ends = [f"{percent(value)} % by {name}" for name, value in (lowest, highest)]
        rows.append([str(item["row"]), shown, item["label"], *ends])
    return [["row", "text", "label", "lowest", "highest"], *rows]


# --- sentences ------------------------------------------------------------------------------------


def set_name(scored: ScoredItems, items: str = "reviews") -> str:
    """Returns the number of the items that were scored, their source, and their fingerprint."""
    number = f"{scored['count']:,} {scored['split']} {items}"
    return f"{number} of {scored['test_set']}, fingerprint {scored['fingerprint']}"


def about(comparison: ComparedSet) -> str:
    """Returns the scored items, the share of their largest class, and settings of all runs."""
    shared = comparison["shared_settings"]
    settings = [f"{name}={value}" for name, value in shared.items()]
    settings = list(dict.fromkeys([*settings, *map(shortened, comparison["overrides"])]))
    text = f"{set_name(comparison, comparison['items'])}."
    if largest := comparison["largest_class"]:
        label = one_line(largest["label"], 40)
        text += f" The largest class, {label}, has {percent(largest['share'])} %."
    if settings:
        text += f" All variants were trained with {', '.join(settings)}."
    if comparison["chosen_by"] != ["accuracy"]:
        metrics = " or ".join(map(metric_name, comparison["chosen_by"]))
        text += f" The epoch of each run was chosen by its validation {metrics}."
    return text


def headline(comparison: ComparedSet) -> str:
    """Returns the best variant in one sentence.

    It is selected by validation, so that its value on the test set is unbiased. Where variants have
    different validation sets, which may be of different difficulty, or no validation values of the
    metric, it is selected by the compared split itself.
    """
    variants = comparison["variants"]
    split = comparison["split"]
    metric = comparison["metric"]
    means = [variant["metric"]["mean"] for variant in variants]
    by = split
    validation = [values["mean"] for v in variants if (values := v["metric_validation"])]
    if comparison["one_validation"] and len(validation) == len(variants):
        means = validation
        by = "validation"
    best = variants[means.index(max(means))]
    ends = interval_text(best["interval"], metric)
    reached = metric_text(best["metric"]["mean"], metric) + " %" * is_in_percent(metric)
    if metric != "accuracy":
        reached = f"{metric_name(metric)} {reached}"
    text = best["label"]
    if len(variants) > 1:
        tied = sum(math.isclose(mean, max(means)) for mean in means) > 1
        text += f", {'tied for' if tied else 'the'} best of {len(variants)} by {by},"
    text += f" reaches {reached} on the {split} set" + f" ({ends})" * bool(ends)
    if len(variants) > 1 and split == by:
        text += "; biased upwards, because the same set selected this variant"
    return text


def verdict_counts(verdicts: Iterable[str]) -> list[str]:
    """Returns the number of each verdict, as `2 better`; without zeros."""
    numbers = Counter(verdicts)
    return [f"{numbers[verdict]:,} {verdict}" for verdict in VERDICTS if numbers[verdict]]


def verdict_sentence(comparison: ComparedSet) -> str:
    """Returns the number of comparisons by verdict; "" without comparisons."""
    pairs = comparison["pairs"]
    if not pairs:
        return ""
    counted = verdict_counts(pair["verdict"] for pair in pairs)
    if len(pairs) == 1:
        return f"Of 1 comparison: {counted[0]}."
    corrected = "each p is corrected for their number (Holm)"
    return f"Of {len(pairs):,} comparisons: {', '.join(counted)}; {corrected}."


def sentence(pair: VariantPair) -> str:
    """Returns `residual against base: better by 1.9 points (1.4 to 2.4), p < 0.001`.

    The interval, p and the verdict are computed from one estimate of the variance. p is corrected
    for the number of comparisons. The sentence says so where only the correction makes p larger
    than 0.05.
    """
    metric = pair["metric"]
    ends = pair["interval"] or ()
    unit = "points" if is_in_percent(metric) else metric_name(metric)
    if metric == "macro_f1":
        unit += " of macro F1"
    if pair["verdict"] == "undecided":
        within = interval_text(ends, metric, sign=True)
        text = f"no difference shown, {metric_text(pair['difference'], metric, sign=True)} {unit}"
    else:
        # The interval of a worse variant starts at the end nearer to 0, without signs.
        sign = 1 if pair["difference"] > 0 else -1
        within = interval_text(sorted(sign * end for end in ends), metric)
        text = f"{pair['verdict']} by {metric_text(abs(pair['difference']), metric)} {unit}"
    text += f" ({within})" * bool(within)
    corrected = "corrected " * (pair["p"] < ALPHA <= pair["holm_p"])
    return f"{pair['to']} against {pair['from']}: {text}, {corrected}{p_value(pair['holm_p'])}"


def notes(content: Mapping[str, object], others: Sequence[str] = ()) -> list[str]:
    """Returns sentences on intervals, data and machines.

    Args:
        content: the content of comparison.json or faithfulness.json.
        others: further sentences, inserted after the first.
    """
    template = Path(__file__).with_name("notes.txt.jinja")
    text = render(template, **content, level=LEVEL_NAME, others=others)
    return [*filter(None, text.splitlines())]
