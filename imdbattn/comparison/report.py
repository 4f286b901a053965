"""A comparison (the dict that comparison.compare makes) as files and as text in the terminal.

A table is a list of rows of cells; the first row is the head, the first column holds names.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.comparison.figures import FIGURES, figures, level, one_of, png, signed, svg
from imdbattn.files import make_folder, write_atomically, writing_into
from imdbattn.settings.safety import PAGE_POLICY, visible

if TYPE_CHECKING:
    from rich.console import Console

Table = list[list[str]]
TRAINED = "two trained models"  # the subject of a comparison with one seed each
VERDICTS = ("better", "worse", "undecided")
PAGE_ONLY = ("parameters", "tokens/s")  # columns that the terminal omits


# --- files -----------------------------------------------------------------------------------------------------------


def write_sets(comparisons: Sequence[dict[str, Any]], out: Path) -> Path:
    """Writes each comparison, and an index of several beside their folders; returns the HTML page to open.

    With several, the files of an earlier single comparison in `out` are removed. Raises UserError where `out` cannot be
    written.
    """
    pages = list(map(write_all, comparisons, folders_of(comparisons, out)))
    if len(pages) == 1:
        return pages[0]
    title = f"{len(pages):,} sets, compared separately"
    sets = [
        (set_name(one), f"{headline(one)}. {verdicts(one)}", str(page.relative_to(out)))
        for one, page in zip(comparisons, pages, strict=True)
    ]
    parts = [f"## {plain(name)}\n\n{plain(text)}\n\n[Full comparison]({page[:-4]}md)\n" for name, text, page in sets]
    write_atomically(out / "comparison.md", "\n".join([f"# {title}\n", *parts]))
    write_atomically(out / "comparison.html", render("comparisons.html", title=title, sets=sets))
    with writing_into(out, "choose another folder"):
        for name in ("comparison.json", *(f"figures/{name}.png" for name in FIGURES)):
            (out / name).unlink(missing_ok=True)
    return out / "comparison.html"


def folders_of(comparisons: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """`out` itself for one comparison; for several, folders in it, named by split and fingerprint."""
    names = [f"{comparison['split']}-{comparison['fingerprint']}" for comparison in comparisons]
    return [out] if len(names) == 1 else [out / name for name in names]


def write_all(comparison: dict[str, Any], out: Path) -> Path:
    """Writes comparison.json, .md and .html and figures/*.png into `out`; returns the HTML page.

    Everything is rendered before anything is written, and every file is atomic. Figures of an earlier comparison
    without data now are removed. Raises UserError where `out` cannot be written.
    """
    drawn = figures(comparison)
    files: dict[str, bytes | str] = {f"figures/{name}.png": png(figure) for name, figure in drawn.items()}
    files["comparison.json"] = json.dumps(each(comparison, without_nan), indent=1, allow_nan=False) + "\n"
    files["comparison.md"] = markdown(comparison, drawn)
    files["comparison.html"] = page(comparison, {name: svg(figure) for name, figure in drawn.items()})
    make_folder(out, "choose another folder")
    with writing_into(out, "choose another folder"):
        for name in set(FIGURES) - drawn.keys():
            (out / "figures" / f"{name}.png").unlink(missing_ok=True)
    for name, content in files.items():
        write_atomically(out / name, content)
    return out / "comparison.html"


def page(comparison: dict[str, Any], pictures: Mapping[str, bytes]) -> str:
    """One HTML page with the pictures (name -> SVG) inside."""
    return render(
        "comparison.html",
        **comparison,
        headline=headline(comparison),
        verdicts=verdicts(comparison),
        rung_table=rung_table(comparison),
        pair_table=pair_table(comparison),
        slice_table=slice_table(comparison),
        confusion_tables=confusion_tables(comparison),
        verdict_names=VERDICTS,
        notes=notes(comparison),
        one=one_of(comparison),
        figures={name: base64.b64encode(content).decode() for name, content in pictures.items()},
    )


def render(template: str, **values: Any) -> str:
    """A template filled in; in HTML all values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{template}.jinja").render(values, policy=PAGE_POLICY, percent=percent)


def markdown(comparison: dict[str, Any], pictures: Iterable[str]) -> str:
    """The comparison as Markdown with links to the figures; names are set as code."""

    def table(rows: Table) -> str:
        head, *body = [[" | ".join(map(plain, rows[0]))], *([code(row[0]), *map(plain, row[1:])] for row in rows[1:])]
        return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(rows[0]), *body))

    def bullets(lines: Iterable[str]) -> str:
        return "\n".join(f"- {line}" for line in lines)

    parts = [f"# {plain(headline(comparison))}", verdicts(comparison), table(rung_table(comparison))]
    parts += [f"![{name}](figures/{name}.png)" for name in pictures]
    if pairs := comparison["pairs"]:
        parts += ["## Differences", table(pair_table(comparison)), bullets(plain(pair["words"]) for pair in pairs)]
    parts += ["## Accuracy by slice, and calibration error (%)", table(slice_table(comparison))]
    parts += ["## Notes", bullets(map(plain, notes(comparison)))]
    if comparison["skipped"]:
        skipped = (f"{code(one['folder'])}: {plain(one['reason'])}" for one in comparison["skipped"])
        parts += ["## Skipped", bullets(skipped)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """Text on one line in which Markdown finds no HTML, emphasis, link or column."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|&#~" else letter for letter in " ".join(text.split()))


def code(text: str) -> str:
    """Text as Markdown's code, on one line, also inside a table."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of nested dicts and lists with change(value) for every other value."""
    if isinstance(value, dict):
        return {key: each(one, change) for key, one in value.items()}
    return [each(one, change) for one in value] if isinstance(value, list) else change(value)


def without_nan(value: Any) -> Any:
    """null for numbers that JSON does not have, such as the loss of a run that diverged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- terminal --------------------------------------------------------------------------------------------------------


def print_terminal(*comparisons: dict[str, Any]) -> None:
    """Prints each comparison, then the skipped runs."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    comparisons = each(list(comparisons), lambda value: visible(value) if isinstance(value, str) else value)
    for comparison in comparisons:
        if len(comparisons) > 1:
            console.rule(set_name(comparison))
        print_comparison(comparison, console)
    for skipped in comparisons[0]["skipped"]:  # the same for all
        console.print(f"skipped: {skipped['folder']}: {skipped['reason']}", style="yellow")


def print_comparison(comparison: dict[str, Any], console: Console) -> None:
    """Prints the table of rungs, the differences in words, and the notes."""
    from rich.table import Table as RichTable

    head, *rows = rung_table(comparison)
    table = RichTable(box=None, padding=(0, 1, 0, 0), header_style="bold")
    columns = [place for place, name in enumerate(head) if name not in PAGE_ONLY]
    for place in columns:
        table.add_column(head[place], justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    for row in rows:
        table.add_row(*(row[place] for place in columns))
    console.print(headline(comparison), style="bold")
    console.print("", table, "", sep="\n")
    for pair in comparison["pairs"]:
        console.print(pair["words"])
    console.print("", *notes(comparison), sep="\n", style="dim")


# --- numbers as text; "" where there is none -------------------------------------------------------------------------


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def signed_interval(interval: Sequence[float]) -> str:
    return f"{signed(interval[0])} to {signed(interval[1])}"


def mean_and_sd(values: Mapping[str, Any] | None, factor: float = 100) -> str:
    """`86.2 ± 0.3`; the mean alone for a single seed."""
    numbers = [] if values is None else [values["mean"], values["sd"]]
    return " ± ".join(f"{factor * number:.1f}" for number in numbers if number is not None)


def count(value: float | None) -> str:
    """With thousands separators; measured values with three figures: 31,102 stays, 78,123.4 is 78,100."""
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
    """With three decimals, or as many as it takes to show on which side of 0.05 it is."""
    digits = 3
    while (round(p, digits) < 0.05) != (p < 0.05):
        digits += 1
    return "p < 0.001" if p < 0.001 else f"p = {p:.{digits}f}"


# --- tables ----------------------------------------------------------------------------------------------------------


def rung_table(comparison: dict[str, Any]) -> Table:
    """A row for each rung, without the columns that are empty."""
    interval = f"{level(comparison)} interval"
    if comparison["split"] == "validation" and any(rung["test"] for rung in comparison["rungs"]):
        interval += " (validation)"
    bleu = "test" if any(rung["bleu"]["test"] for rung in comparison["rungs"]) else "validation"
    head = ["rung", "seeds", "validation %", "test %", interval, f"{bleu} BLEU", "parameters", "tokens/s", "training"]
    rows = [
        [
            rung["label"],
            "1 seed" if len(rung["seeds"]) == 1 else str(len(rung["seeds"])),
            mean_and_sd(rung["validation"]),
            mean_and_sd(rung["test"]),
            "–".join(map(percent, rung["interval"])),
            mean_and_sd(rung["bleu"][bleu], factor=1),
            count(rung["parameters"]),
            count(rung["tokens_per_s"]),
            duration(rung["train_seconds"]),
        ]
        for rung in comparison["rungs"]
    ]
    columns = [place for place in range(len(head)) if any(row[place] for row in rows)]
    return [[row[place] for place in columns] for row in (head, *rows)]


def pair_table(comparison: dict[str, Any]) -> Table:
    items = comparison["items"]
    head = ["comparison", "points", "interval", "verdict", "p (Holm)", f"{items} gained", f"{items} lost"]
    return [head] + [
        [
            f"{pair['to']} against {pair['from']}",
            signed(pair["difference"]),
            signed_interval(pair["interval"]),
            pair["verdict"],
            p_value(pair["holm_p"]),
            f"{pair['only_to_right']:,.0f}",
            f"{pair['only_from_right']:,.0f}",
        ]
        for pair in comparison["pairs"]
    ]


def slice_table(comparison: dict[str, Any]) -> Table:
    """Accuracy by slice and calibration error in percent."""
    groups = comparison["rungs"][0]["slices"]
    head = ["rung"]
    for way, parts in groups.items():
        names = (part["name"] if way == "length" else f"{part['name']} “{way}”" for part in parts)
        head += [f"{name} ({part['reviews']:,})" for name, part in zip(names, parts, strict=True)]
    return [[*head, "ECE"]] + [
        [
            rung["label"],
            *(percent(part["accuracy"]) for way in groups for part in rung["slices"][way]),
            percent(rung["ece"]),
        ]
        for rung in comparison["rungs"]
    ]


def confusion_tables(comparison: dict[str, Any]) -> dict[str, Table]:
    """Label of the rung -> confusion matrix, true classes in rows."""
    names, tables = comparison["labels"], {}
    for rung in comparison["rungs"]:
        rows = [[f"{number:,.0f}" for number in row] for row in rung["confusion"]]
        tables[rung["label"]] = [["", *names], *([name, *row] for name, row in zip(names, rows, strict=True))]
    return tables


# --- sentences -------------------------------------------------------------------------------------------------------


def set_name(comparison: Mapping[str, Any]) -> str:
    scored = f"{comparison['reviews']:,} {comparison['split']} {comparison['items']}"
    return f"{scored} of {comparison['test_set']}, fingerprint {comparison['fingerprint']}"


def headline(comparison: dict[str, Any]) -> str:
    """The best rung in one sentence.

    It is chosen by validation, so that its test accuracy is unbiased. Where rungs have different validation sets, one
    with an easy set would win: then the compared split itself decides.
    """
    rungs, split = comparison["rungs"], comparison["split"]
    by = "validation" if comparison["one_validation"] else split
    best = max(rungs, key=lambda rung: rung[by]["mean"])
    low, high = map(percent, best["interval"])
    text = f"{best['label']}, the best of {len(rungs)} by {by}," if len(rungs) > 1 else best["label"]
    text += f" reaches {percent(best[split]['mean'])}% on the {split} set ({low} to {high})"
    return text + ("; this is biased upwards, as it was chosen by it" if len(rungs) > 1 and split == by else "")


def verdicts(comparison: dict[str, Any]) -> str:
    """The number of comparisons by verdict; "" without comparisons."""
    pairs = comparison["pairs"]
    if not pairs:
        return ""
    numbers = {verdict: sum(pair["verdict"] == verdict for pair in pairs) for verdict in VERDICTS}
    parts = ", ".join(f"{number:,} {verdict}" for verdict, number in numbers.items() if number)
    text = f"Of {len(pairs):,} comparison{'s' * (len(pairs) > 1)}: {parts}."
    if trained := sum(pair["about"] == TRAINED for pair in pairs):
        text += (
            f" Comparisons with one seed each ({trained:,} of {len(pairs):,}) are about two trained models and show "
            "nothing about their architectures."
        )
    return text


def notes(comparison: dict[str, Any]) -> list[str]:
    """How the numbers were made: method, data, machines."""
    return [line for line in render("notes.txt", **comparison, set_name=set_name(comparison)).split("\n") if line]
