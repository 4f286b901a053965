"""A comparison (the dict that compare.compare makes) as files and as text in the terminal.

A table is a list of rows of cells; the first row is the head, the first column holds names.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from imdbattn.comparison.figures import FIGURES, VERDICTS, figures, level, signed
from imdbattn.files import write_atomically, writing_into
from imdbattn.pages import code, plain, png, render, svg, terminal
from imdbattn.settings.safety import visible

Table = list[list[str]]
TEMPLATES = Path(__file__).parent
TRAINED = "two trained models"  # the subject of a comparison with one seed each
PAGE_ONLY = ("parameters", "tokens/s")  # columns that the terminal omits


# --- files -----------------------------------------------------------------------------------------------------------


def write_sets(comparisons: Sequence[dict[str, Any]], out: Path) -> Path:
    """Writes each comparison, and an index if there are several; returns the HTML page to open.

    With several, the files of an earlier single comparison in `out` are removed. Raises UserError where `out` cannot be
    written.
    """
    pages = list(map(write_all, comparisons, folders_of(comparisons, out)))
    texts = [f"{headline(one)}. {verdicts(one)}" for one in comparisons]
    return write_index(comparisons, pages, texts, "Accuracies on different sets cannot be compared.", FIGURES)


def write_index(
    summaries: Sequence[dict[str, Any]], pages: Sequence[Path], texts: Sequence[str], note: str, figures: Iterable[str]
) -> Path:
    """Writes an index above the folders of several pages; returns the page to open: the index, or a single page.

    texts: the result of each set. figures: all names of `write_report`, of which those above the folders are removed.
    """
    if len(pages) == 1:
        return pages[0]
    index = pages[0].parents[1] / pages[0].name
    title = f"{len(pages):,} separate sets"
    places = [str(page.relative_to(index.parent)) for page in pages]
    sets = list(zip(map(set_name, summaries), texts, places, strict=True))
    parts = [f"## {plain(name)}\n\n{plain(text)}\n\n[Full report]({page[:-4]}md)\n" for name, text, page in sets]
    write_atomically(index.with_suffix(".md"), "\n".join([f"# {title}\n\n{note}\n", *parts]))
    write_atomically(index, render(TEMPLATES.parent / "sets.html.jinja", title=title, note=note, sets=sets))
    remove(index.parent, (f"{index.stem}.json", *map(figure_file, figures)))
    return index


def folders_of(comparisons: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """`out` itself for one comparison; for several, folders in it, named by split and fingerprint."""
    names = [f"{comparison['split']}-{comparison['fingerprint']}" for comparison in comparisons]
    return [out] if len(names) == 1 else [out / name for name in names]


def write_all(comparison: dict[str, Any], out: Path) -> Path:
    """Writes comparison.json, .md and .html and figures/*.png into `out`; returns the HTML page.

    Everything is rendered before anything is written, and every file is atomic. Figures of an earlier comparison that
    this one does not have are removed. Raises UserError where `out` cannot be written.
    """
    plots = figures(comparison)
    texts = {
        "json": as_json(comparison),
        "md": markdown(comparison, plots),
        "html": page(comparison, {name: svg(figure) for name, figure in plots.items()}),
    }
    return write_report(out / "comparison.html", texts, {name: png(figure) for name, figure in plots.items()}, FIGURES)


def write_report(page: Path, texts: Mapping[str, str], pictures: Mapping[str, bytes], figures: Iterable[str]) -> Path:
    """Writes `texts` (file extension -> content) and `pictures` (name -> PNG); returns `page`.

    figures: the names of all possible pictures; those that `pictures` lacks are removed.
    """
    remove(page.parent, (figure_file(name) for name in figures if name not in pictures))
    for name, picture in pictures.items():
        write_atomically(page.parent / figure_file(name), picture)
    for extension, text in texts.items():
        write_atomically(page.with_suffix(f".{extension}"), text)
    return page


def as_json(summary: dict[str, Any]) -> str:
    return json.dumps(each(summary, without_nan), indent=1, allow_nan=False) + "\n"


def figure_file(name: str) -> str:
    return f"figures/{name}.png"


def remove(folder: Path, names: Iterable[str]) -> None:
    with writing_into(folder, "choose another folder"):
        for name in names:
            (folder / name).unlink(missing_ok=True)


def page(comparison: dict[str, Any], pictures: Mapping[str, bytes]) -> str:
    """One HTML page with the pictures (name -> SVG) inside."""
    return render(
        TEMPLATES / "comparison.html.jinja",
        **comparison,
        headline=headline(comparison),
        verdicts=verdicts(comparison),
        rung_table=rung_table(comparison),
        pair_table=pair_table(comparison),
        slice_table=slice_table(comparison),
        confusion_tables=confusion_tables(comparison),
        verdict_names=VERDICTS,
        notes=notes(comparison),
        percent=percent,
        figures=pictures,
    )


def markdown(comparison: dict[str, Any], pictures: Iterable[str]) -> str:
    """The comparison as Markdown with links to the figures; names are set as code."""
    table = markdown_table
    parts = [f"# {plain(headline(comparison))}", verdicts(comparison), table(rung_table(comparison))]
    parts += map(markdown_figure, pictures)
    if pairs := comparison["pairs"]:
        parts += ["## Differences", table(pair_table(comparison)), bullets(pair["words"] for pair in pairs)]
    parts += ["## Accuracy by slice, and calibration error (%)", table(slice_table(comparison))]
    return joined([*parts, *markdown_end(notes(comparison), comparison["skipped"])])


def joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(rows: Table) -> str:
    head, *body = [list(map(plain, rows[0])), *([code(row[0]), *map(plain, row[1:])] for row in rows[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def markdown_figure(name: str) -> str:
    return f"![{name}]({figure_file(name)})"


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)


def markdown_end(notes: Iterable[str], skipped: Sequence[Mapping[str, str]]) -> list[str]:
    parts = ["## Notes", bullets(notes)]
    if skipped:
        parts += ["## Skipped", "\n".join(f"- {code(one['folder'])}: {plain(one['reason'])}" for one in skipped)]
    return parts


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of nested dicts and lists with change(value) for every other value."""
    if isinstance(value, dict):
        return {key: each(one, change) for key, one in value.items()}
    return [each(one, change) for one in value] if isinstance(value, list) else change(value)


def without_nan(value: Any) -> Any:
    """null for numbers that JSON does not have, such as the loss of a run that diverged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- terminal --------------------------------------------------------------------------------------------------------


def print_terminal(*comparisons: dict[str, Any], console: Console | None = None) -> None:
    """Prints each comparison, then the skipped runs."""
    print_sets(comparisons, print_comparison, lambda one: notes(one, on_page=False), console or terminal())


def print_sets(
    summaries: Sequence[dict[str, Any]],
    show: Callable[[dict[str, Any], Console], None],
    notes_of: Callable[[dict[str, Any]], list[str]],
    console: Console,
) -> None:
    """Prints each summary with `show` and its notes, then the notes that all have, and the skipped runs."""
    summaries = each(list(summaries), lambda value: visible(value) if isinstance(value, str) else value)
    own = list(map(notes_of, summaries))
    common = [note for note in own[0] if len(own) > 1 and all(note in others for others in own)]
    for summary, lines in zip(summaries, own, strict=True):
        if len(summaries) > 1:
            console.rule(set_name(summary))
        show(summary, console)
        console.print("", *(line for line in lines if line not in common), sep="\n", style="dim")
    if common:
        console.rule("all sets")
        console.print(*common, sep="\n", style="dim")
    for skipped in summaries[0]["skipped"]:  # the same for all
        console.print(f"skipped: {skipped['folder']}: {skipped['reason']}", style="yellow")


def print_comparison(comparison: dict[str, Any], console: Console) -> None:
    """Prints the table of rungs and the differences in words."""
    rows = rung_table(comparison)
    columns = [place for place, name in enumerate(rows[0]) if name not in PAGE_ONLY]
    console.print(headline(comparison), style="bold")
    print_table([[row[place] for place in columns] for row in rows], console)
    if pairs := comparison["pairs"]:
        console.print("", *(pair["words"] for pair in pairs), sep="\n")


def print_table(rows: Table, console: Console, names: int = 1) -> None:
    """Prints an empty line and a table, which may be wider than the console.

    names: number of columns that hold names; these fold between words if that lets the table fit.
    """
    table = RichTable(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for place, name in enumerate(rows[0]):
        is_name = place < names
        sizes = [console.measure(row[place]) for row in rows]
        least = max(size.minimum if is_name else size.maximum for size in sizes)  # a name's longest word
        table.add_column(name, justify="left" if is_name else "right", no_wrap=not is_name, min_width=least)
    for row in rows[1:]:
        table.add_row(*row)
    width = console.width
    needed = console.measure(table, options=console.options.update(width=1000))
    if needed.minimum > width:  # rich would cut names and numbers
        console.width = needed.maximum
    console.print("", table, sep="\n")
    console.width = width


# --- numbers as text; "" where there is none -------------------------------------------------------------------------


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def signed_interval(interval: Sequence[float]) -> str:
    return f"{signed(interval[0])} to {signed(interval[1])}"


def mean_and_sd(values: Mapping[str, Any] | None, factor: float = 100) -> str:
    """`86.2 ± 0.3`; without ± for a single seed."""
    numbers = [] if values is None else [values["mean"], values["sd"]]
    return " ± ".join(f"{factor * number:.1f}" for number in numbers if number is not None)


def count(value: float | None) -> str:
    """With thousands separators; measured values with three figures: 31,102 is unchanged, 78,123.4 is 78,100."""
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
    """With three decimals, or more if needed to show on which side of 0.05 it is."""
    digits = 3
    while (round(p, digits) < 0.05) != (p < 0.05):
        digits += 1
    return "p < 0.001" if p < 0.001 else f"p = {p:.{digits}f}"


# --- tables ----------------------------------------------------------------------------------------------------------


def as_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Rows (column -> cell) as a table without the columns that are empty."""
    columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    return [columns, *([row[name] for name in columns] for row in rows)]


def rung_table(comparison: dict[str, Any]) -> Table:
    rungs = comparison["rungs"]
    interval = f"{level(comparison)} interval"
    if comparison["split"] == "validation" and any(rung["test"] for rung in rungs):
        interval += " (validation)"
    folds = f"over {len(over['values'])} folds %" if (over := rungs[0]["folds"]) else ""
    bleu = "test" if any(rung["bleu"]["test"] for rung in rungs) else "validation"
    return as_table(
        [
            {
                "rung": rung["label"],
                "seeds": "1 seed" if len(rung["seeds"]) == 1 else str(len(rung["seeds"])),
                "validation %": mean_and_sd(rung["validation"]),
                "test %": mean_and_sd(rung["test"]),
                folds: mean_and_sd(rung["folds"]),
                interval: "–".join(map(percent, rung["interval"])),
                f"{bleu} BLEU": mean_and_sd(rung["bleu"][bleu], factor=1),
                f"{comparison['split']} macro F1 %": mean_and_sd(rung["macro_f1"]) if uneven(comparison) else "",
                "parameters": count(rung["parameters"]),
                "tokens/s": count(rung["tokens_per_s"]),
                "training": duration(rung["train_seconds"]),
            }
            for rung in rungs
        ]
    )


def uneven(comparison: Mapping[str, Any]) -> bool:
    """Whether accuracy may hide a class: more than two, or two of which one has 1.5 times the items of the other."""
    sizes = [sum(row) for row in comparison["rungs"][0]["confusion"]]
    return len(sizes) > 2 or (len(sizes) == 2 and max(sizes) > 1.5 * min(sizes))


def pair_table(comparison: dict[str, Any]) -> Table:
    return as_table(
        [
            {
                "comparison": f"{pair['to']} against {pair['from']}",
                "points": signed(pair["difference"]),
                "interval": signed_interval(pair["interval"]),
                "verdict": pair["verdict"],
                "p (Holm)": p_value(pair["holm_p"]),
                f"{comparison['items']} gained": f"{pair['only_to_right']:,.0f}",
                f"{comparison['items']} lost": f"{pair['only_from_right']:,.0f}",
            }
            for pair in comparison["pairs"]
        ]
    )


def slice_table(comparison: dict[str, Any]) -> Table:
    """Accuracy by slice and calibration error in percent."""

    def column(way: str, part: Mapping[str, Any]) -> str:
        return f"{part['name']}{'' if way == 'length' else f' “{way}”'} ({part['reviews']:,})"

    return as_table(
        [
            {"rung": rung["label"]}
            | {column(way, p): percent(p["accuracy"]) for way, parts in rung["slices"].items() for p in parts}
            | {"ECE": percent(rung["ece"])}
            for rung in comparison["rungs"]
        ]
    )


def confusion_tables(comparison: dict[str, Any]) -> dict[str, Table]:
    """Label of the rung -> confusion matrix, true classes in rows."""
    names, tables = comparison["labels"], {}
    for rung in comparison["rungs"]:
        rows = [[f"{number:,.0f}" for number in row] for row in rung["confusion"]]
        tables[rung["label"]] = [["", *names], *([name, *row] for name, row in zip(names, rows, strict=True))]
    return tables


# --- sentences -------------------------------------------------------------------------------------------------------


def set_name(comparison: Mapping[str, Any]) -> str:
    scored = f"{comparison['reviews']:,} {comparison['split']} {comparison.get('items', 'reviews')}"
    return f"{scored} of {comparison['test_set']}, fingerprint {comparison['fingerprint']}"


def headline(comparison: dict[str, Any]) -> str:
    """The best rung in one sentence.

    It is selected by validation, so that its test accuracy is unbiased. Where rungs have different validation sets,
    which may be of different difficulty, it is selected by the compared split itself.
    """
    rungs, split = comparison["rungs"], comparison["split"]
    by = "validation" if comparison["one_validation"] else split
    best = max(rungs, key=lambda rung: rung[by]["mean"])
    low, high = map(percent, best["interval"])
    text = f"{best['label']}, the best of {len(rungs)} by {by}," if len(rungs) > 1 else best["label"]
    text += f" reaches {percent(best[split]['mean'])} % on the {split} set ({low} to {high})"
    return text + (
        "; biased upwards, because the same set selected this rung" if len(rungs) > 1 and split == by else ""
    )


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
            f" Comparisons with one seed each ({trained:,} of {len(pairs):,}) are about two trained models, not about "
            "their architectures."
        )
    return text


def notes(comparison: dict[str, Any], on_page: bool = True) -> list[str]:
    """Sentences on method, data and machines. on_page: whether slices, curves and parameters are shown as well."""
    text = render(TEMPLATES / "notes.txt.jinja", **comparison, set_name=set_name(comparison), on_page=on_page)
    return [line for line in text.split("\n") if line]
