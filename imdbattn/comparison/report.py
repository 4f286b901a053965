"""A comparison (the dict that analysis.comparison makes) as files to keep and as text in the terminal."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.comparison.figures import figures, one_of, png, signed, svg
from imdbattn.files import make_folder, write_atomically, writing_into
from imdbattn.settings.safety import PAGE_POLICY, visible

if TYPE_CHECKING:
    from jinja2 import Template
    from rich.console import Console

TRAINED = "two trained models"  # what a comparison of one seed each is about
BAND = "Line: mean over seeds; band: from the lowest to the highest seed."
CURVES = f"{BAND} Training is measured while {{}}weights still change, so it may look worse than validation."
CAPTIONS = {  # of the figures, in the page
    "accuracies": "Each row is a rung: mean over seeds, its interval, and the seeds themselves.",
    "lengths": f"{BAND} Neighbouring lengths of which there are few {{items}} share a point.",
    "differences": "Right of 0 the rung named first is better, left of it the other; grey is undecided.",
    "time": "Mean training time of a seed, on the hardware named at the end; jobs may have run side by side.",
    "curves_accuracy": CURVES.format("words are dropped and "),
    "curves_loss": CURVES.format("words are dropped and "),
    "slices": "Small slices move by chance: their numbers of {items} stand in brackets. {Items} “with” a word are "
    "also longer ones.",
    "reliability": "On the diagonal a probability is right as often as it says; below it the model is too sure, "
    "above it not sure enough. A dot's area is its number of {items}. "
    "ECE is the mean distance from the diagonal, weighted by {items}, over 15 bins.",
}
OF_WRITERS = {  # where encoder-decoders are compared
    "curves_accuracy": BAND + " Training counts single symbols, each written behind the right ones; validation counts "
    "whole {items}, written without help, and so is lower.",
    "curves_loss": CURVES.format(""),
}


def captions(comparison: Mapping[str, Any]) -> dict[str, str]:
    """The captions, with the word for what is compared."""
    items = comparison["items"]
    chosen = CAPTIONS | ({} if comparison["labels"] else OF_WRITERS)
    return {name: said.format(items=items, Items=items.capitalize()) for name, said in chosen.items()}


def write_all(comparison: dict[str, Any], out: Path) -> Path:
    """Writes comparison.json, .csv, .md and .html, pairs.csv and figures/*.png into `out`; returns the HTML page.

    Everything is made before anything is written, and every file is whole. A figure of an earlier comparison for
    which there is no data now is removed. Raises UserError where `out` cannot be written.
    """
    drawn = figures(comparison)
    files: dict[str, bytes | str] = {f"figures/{name}.png": png(figure) for name, figure in drawn.items()}
    files["comparison.json"] = json.dumps(each(comparison, without_nan), indent=1, allow_nan=False) + "\n"
    files["comparison.csv"] = csv_text(rung_records(comparison))
    files["pairs.csv"] = csv_text(pair_records(comparison))
    files["comparison.md"] = markdown(comparison, list(drawn))
    files["comparison.html"] = page(comparison, {name: svg(figure) for name, figure in drawn.items()})
    make_folder(out, "choose another folder")
    with writing_into(out, "choose another folder"):
        for name in CAPTIONS.keys() - drawn.keys():
            (out / "figures" / f"{name}.png").unlink(missing_ok=True)
    for name, content in files.items():
        write_atomically(out / name, content)
    return out / "comparison.html"


def folders_of(comparisons: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Where each is written: one into `out` itself, several into folders there, named by split and fingerprint."""
    names = [f"{comparison['split']}-{comparison['fingerprint']}" for comparison in comparisons]
    return [out] if len(names) == 1 else [out / name for name in names]


def write_sets(comparisons: Sequence[dict[str, Any]], out: Path) -> Path:
    """Writes each comparison, and of several an index beside their folders; returns the HTML page to open.

    The files that a single comparison left in `out` are then removed. Raises UserError where `out` cannot be written.
    """
    pages = list(map(write_all, comparisons, folders_of(comparisons, out)))
    if len(pages) == 1:
        return pages[0]
    sets = [
        {"name": set_name(one), "said": f"{headline(one)}. {verdicts(one)}", "page": str(page.relative_to(out))}
        for one, page in zip(comparisons, pages, strict=True)
    ]
    parts = [
        f"## {plain(one['name'])}\n\n{plain(one['said'])}\n\n[Full comparison]({one['page'][:-4]}md)" for one in sets
    ]
    write_atomically(out / "comparison.md", "\n\n".join((f"# {len(sets):,} sets, compared separately", *parts)) + "\n")
    write_atomically(out / "comparison.html", template("comparisons").render(sets=sets, policy=PAGE_POLICY))
    with writing_into(out, "choose another folder"):
        for name in ("comparison.json", "comparison.csv", "pairs.csv", *(f"figures/{name}.png" for name in CAPTIONS)):
            (out / name).unlink(missing_ok=True)
    return out / "comparison.html"


def print_terminal(*comparisons: dict[str, Any]) -> None:
    """Of each set the table of rungs, the differences in words, and what they rest on; at the end what was left out.

    A narrow terminal shows fewer columns and says which are missing.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    comparisons = each(list(comparisons), lambda value: visible(value) if isinstance(value, str) else value)
    for comparison in comparisons:
        if len(comparisons) > 1:
            console.rule(set_name(comparison))
        print_set(comparison, console)
    for skipped in comparisons[0]["skipped"]:  # the same of all
        console.print(f"left out: {skipped['folder']}: {skipped['reason']}", style="yellow")


def print_set(comparison: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    everything = table_of_rungs(comparison)
    head, *lines = fitting(everything, console.width)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(headline(comparison), style="bold")
    console.print()
    console.print(table)
    if missing := [name for name in everything[0] if name not in head]:
        console.print(f"In {console.width} columns there is no room for {', '.join(missing)}.", style="dim")
    console.print()
    for pair in comparison["pairs"]:
        console.print(pair["words"])
    if comparison["pairs"]:
        console.print()
    for note in notes(comparison):
        console.print(note, style="dim")


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same dicts and lists, with change(value) in the place of all else."""
    if isinstance(value, dict):
        return {key: each(one, change) for key, one in value.items()}
    return [each(one, change) for one in value] if isinstance(value, list) else change(value)


def without_nan(value: Any) -> Any:
    """null for what JSON has no number for, such as the loss of a run that diverged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Numbers as words. A cell without a number is empty.


def percents(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def one_decimal(value: float) -> str:
    return f"{value:.1f}"


def mean_and_sd(found: Mapping[str, Any] | None, as_text: Callable[[float], str] = percents) -> str:
    """`86.2 ± 0.3`, shares in percent; the mean alone where one seed has no standard deviation."""
    if found is None:
        return ""
    return as_text(found["mean"]) + ("" if found["sd"] is None else f" ± {as_text(found['sd'])}")


def bleu_split(comparison: Mapping[str, Any]) -> str:
    """The split whose BLEU is shown: test where there is one."""
    return "test" if any(rung["bleu"]["test"] for rung in comparison["rungs"]) else "validation"


def span(interval: Sequence[float]) -> str:
    return f"{percents(interval[0])}–{percents(interval[1])}"


def points(interval: Sequence[float]) -> str:
    return f"{signed(interval[0])} to {signed(interval[1])}"


def count(value: float | None) -> str:
    """With thousands set apart and three figures kept of what was measured: 31,102 stays, 78,123.4 is 78,100."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{float(f'{value:.3g}'):,.10g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def table_of_rungs(comparison: dict[str, Any]) -> list[list[str]]:
    """The table that terminal, Markdown and page show: a head, then a line per rung; empty columns are left out."""
    interval = f"{100 * comparison['method']['level']:g} % interval"
    if comparison["split"] == "validation" and any(rung["test"] for rung in comparison["rungs"]):
        interval += " (validation)"
    bleu = bleu_split(comparison)
    head = ("rung", "seeds", "validation %", "test %", interval, f"{bleu} BLEU", "parameters", "tokens/s", "training")
    lines = [
        (
            rung["label"],
            "1 seed" if len(rung["seeds"]) == 1 else str(len(rung["seeds"])),
            mean_and_sd(rung["validation"]),
            mean_and_sd(rung["test"]),
            span(rung["interval"]),
            mean_and_sd(rung["bleu"][bleu], one_decimal),
            count(rung["parameters"]),
            count(rung["tokens_per_s"]),
            duration(rung["train_seconds"]),
        )
        for rung in comparison["rungs"]
    ]
    kept = [place for place in range(len(head)) if any(line[place] for line in lines)]
    return [[line[place] for place in kept] for line in (head, *lines)]


def fitting(table: list[list[str]], width: int) -> list[list[str]]:
    """The table without as many of the columns that one can do without as it takes to fit `width` letters."""
    for name in ("tokens/s", "parameters", "training"):
        widths = [max(map(len, column)) + 1 for column in zip(*table, strict=True)]
        if min(widths[0], 25) + sum(widths[1:]) > width and name in table[0]:
            place = table[0].index(name)
            table = [line[:place] + line[place + 1 :] for line in table]
    return table


def table_of_slices(comparison: dict[str, Any]) -> list[list[str]]:
    """Accuracy by slice and calibration error in percent: two lines of head (slice, its reviews), a line per rung."""
    groups = comparison["rungs"][0]["slices"]
    found = [(group, one) for group in groups for one in groups[group]]
    names = [one["name"] if group == "length" else f"{one['name']} “{group}”" for group, one in found]
    items = comparison["items"]
    lines = []
    for rung in comparison["rungs"]:
        accuracies = (percents(one["accuracy"]) for group in groups for one in rung["slices"][group])
        lines.append([rung["label"], *accuracies, percents(rung["ece"])])
    return [["rung", *names, "ECE"], [items, *(count(one["reviews"]) for _, one in found), ""], *lines]


def headline(comparison: dict[str, Any]) -> str:
    """The result in one sentence; the rung is chosen by validation, so that its test accuracy is an honest one.

    Where rungs have other validation sets, an easy one would win: there the compared split itself has to choose.
    """
    rungs, split = comparison["rungs"], comparison["split"]
    by = "validation" if comparison["one_validation"] else split
    best = max(rungs, key=lambda rung: rung[by]["mean"])
    low, high = (percents(end) for end in best["interval"])
    chosen = f", the best of {len(rungs)} by {by}," if len(rungs) > 1 else ""
    caution = ": rather too high, as it was chosen by it" if chosen and split == by else ""
    reached = f"{percents(best[split]['mean'])} % on the {split} set ({low} to {high})"
    return f"{best['label']}{chosen} reaches {reached}{caution}"


def verdicts(comparison: dict[str, Any]) -> str:
    """How many comparisons of two rungs are decided, in one sentence; nothing where there are none."""
    pairs = comparison["pairs"]
    if not pairs:
        return ""
    numbers = [(sum(pair["verdict"] == v for pair in pairs), v) for v in ("better", "worse", "undecided")]
    words = ", ".join(f"{number:,} {verdict}" for number, verdict in numbers if number)
    said = f"Of {len(pairs):,} comparison{'s' * (len(pairs) > 1)}: {words}."
    if trained := sum(pair["about"] == TRAINED for pair in pairs):
        said += (
            f" Comparisons with one seed each ({trained:,} of {len(pairs):,}) are about two trained models and show "
            "nothing about their architectures."
        )
    return said


def notes(comparison: dict[str, Any]) -> list[str]:
    """What the numbers rest on: method, data, machines."""
    method, rungs, items = comparison["method"], comparison["rungs"], comparison["items"]
    found = [
        f"Intervals hold {100 * method['level']:g} % of {method['resamples']:,} bootstrap resamples of both the seeds "
        f"and the {comparison['split']} {items} (seed {method['seed']}), widened for the small number of seeds; "
        "± is the standard deviation over seeds.",
    ]
    if not comparison["labels"]:
        found.append(f"Accuracy is the share of {items} for which the output is exactly a reference.")
    if any(rung["bleu"][split] for rung in rungs for split in ("validation", "test")):
        found.append("BLEU is of the whole set against all references, from 0 to 100.")
    if not comparison["one_validation"]:
        found.append("Validation sets differ between rungs, so their validation accuracies cannot be compared.")
    if any(len(rung["seeds"]) == 1 for rung in rungs):
        found.append(
            f"A rung with one seed has no standard deviation: its interval covers the {items} alone, and comparisons "
            "with it are about that trained model, not about its architecture."
        )
    if number := len(comparison["pairs"]):
        found.append(
            f"p is McNemar's test of these trained models on the {items} that one of two gets right and the other "
            f"wrong, corrected for {number:,} comparison{'s' * (number > 1)} by Holm's method. Better or worse is said "
            "where p is below 0.05 and the interval excludes 0."
        )
    if untested := comparison["untested"]:
        found.append(
            f"Validation is compared, since {len(untested):,} of the runs have no test predictions, such as "
            f"{untested[0]}; split=test leaves them out."
        )
    found.append(f"{set_name(comparison)}.")
    for place in comparison["environments"]:
        gpu = place["gpu"] or "no GPU"
        found.append(
            f"Run on {place['platform']}, {place['cpus']} CPUs, threads: {place['threads']}, {gpu}; "
            f"Python {place['python']}, torch {place['torch']}, lightning {place['lightning']}."
        )
    return found


def slice_notes(comparison: Mapping[str, Any]) -> list[str]:
    """Which words the slices with more than one of them stand for."""
    words, slices = comparison["method"]["words"], comparison["rungs"][0]["slices"]
    named = {name: ", ".join(listed) for name, listed in words.items() if len(listed) > 1 and name in slices}
    return [f"Slices: “{name}” is any of {listed}." for name, listed in named.items()]


def set_name(comparison: Mapping[str, Any]) -> str:
    """The items that were scored, and of what."""
    scored = f"{comparison['reviews']:,} {comparison['split']} {comparison['items']}"
    return f"{scored} of {comparison['test_set']}, fingerprint {comparison['fingerprint']}"


def rung_records(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """A record per rung with the numbers as they are, shares from 0 to 1, BLEU (where there is one) from 0 to 100."""
    scored = [split for split in ("validation", "test") if any(rung["bleu"][split] for rung in comparison["rungs"])]
    return [
        {
            "label": rung["label"],
            "model": rung["model"],
            "after": rung["after"],
            "seeds": " ".join(map(str, rung["seeds"])),
            **{f"{s}_{key}": (rung[s] or {}).get(key) for s in ("validation", "test") for key in ("mean", "sd")},
            "interval_low": rung["interval"][0],
            "interval_high": rung["interval"][1],
            **{f"{s}_bleu_{key}": (rung["bleu"][s] or {}).get(key) for s in scored for key in ("mean", "sd")},
            **{key: rung[key] for key in ("parameters", "tokens_per_s", "train_seconds", "epochs", "ece")},
        }
        for rung in comparison["rungs"]
    ]


def pair_records(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """A record per pair of neighbours, with the numbers as they are."""
    return [
        {key: value for key, value in pair.items() if key != "interval"}
        | {"interval_low": pair["interval"][0], "interval_high": pair["interval"][1]}
        for pair in comparison["pairs"]
    ]


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """CSV with numbers as they are. Text that a spreadsheet would take for a formula has an apostrophe in front."""

    def cell(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value

    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(records[0]) if records else ["from", "to"])
    writer.writeheader()
    writer.writerows(each(list(records), cell))
    return buffer.getvalue()


def markdown(comparison: dict[str, Any], pictures: Iterable[str]) -> str:
    """The comparison as Markdown, with the figures by their place beside it; names are set as code."""

    def table(lines: Sequence[Sequence[str]], heads: int = 1) -> str:
        body = [" | ".join((code(line[0]), *line[1:])) for line in lines[heads:]]
        head = [" | ".join(map(plain, line)) for line in lines[:heads]]
        return "\n".join(f"| {line} |" for line in (head[0], " | ".join(["---"] * len(lines[0])), *head[1:], *body))

    pairs = [["comparison", "points", "interval", "p (Holm)", "verdict"]]
    for pair in comparison["pairs"]:
        step = f"{pair['to']} against {pair['from']}"
        shown = [signed(pair["difference"]), points(pair["interval"]), p_value(pair["holm_p"]), pair["verdict"]]
        pairs.append([step, *shown])
    most = [["row", "label", "lowest", "highest"]]
    for review in comparison["disagreements"]:
        ranked = sorted(review["probability"].items(), key=lambda item: item[1])
        ends = [f"{code(label)} {percents(value)} %" for label, value in (ranked[0], ranked[-1])]
        most.append([str(review["row"]), code(review["label"]), *ends])
    parts = [f"# {plain(headline(comparison))}", verdicts(comparison), table(table_of_rungs(comparison))]
    parts += [f"![{name}](figures/{name}.png)" for name in pictures]
    if len(pairs) > 1:
        parts += [
            "## Differences",
            table(pairs),
            "\n".join(f"- {plain(pair['words'])}" for pair in comparison["pairs"]),
        ]
    parts += ["## Accuracy by slice, and calibration error (%)", table(table_of_slices(comparison), heads=2)]
    if len(most) > 1:
        true = "true label" if comparison["labels"] else "first reference"
        parts += [f"## Where rungs disagree most: probability of the {true}", table(most)]
    parts += ["## Notes", "\n".join(f"- {plain(note)}" for note in slice_notes(comparison) + notes(comparison))]
    if comparison["skipped"]:
        left_out = (f"- {code(found['folder'])}: {plain(found['reason'])}" for found in comparison["skipped"])
        parts += ["## Left out", "\n".join(left_out)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """Text that Markdown leaves as it is, on one line: nothing in it is HTML, emphasis, a link or a column."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|&#~" else letter for letter in " ".join(text.split()))


def code(text: str) -> str:
    """Text as Markdown's code, on one line, also inside a table."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def template(name: str) -> Template:
    """A page that needs no network; all text is escaped by Jinja."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(percents=percents, signed=signed, points=points, p_value=p_value)
    return environment.get_template(f"{name}.html.jinja")


def page(comparison: dict[str, Any], pictures: Mapping[str, bytes]) -> str:
    """One HTML page; pictures (name -> SVG) are inside."""
    return template("comparison").render(
        comparison,
        headline=headline(comparison),
        verdicts=verdicts(comparison),
        table=table_of_rungs(comparison),
        slice_table=table_of_slices(comparison),
        notes=slice_notes(comparison) + notes(comparison),
        captions=captions(comparison),
        one=one_of(comparison),
        policy=PAGE_POLICY,
        figures={name: base64.b64encode(content).decode() for name, content in pictures.items()},
    )
