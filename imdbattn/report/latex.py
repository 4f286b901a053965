"""The table of a comparison for a document in LaTeX, with the package booktabs."""

from collections.abc import Mapping
from typing import Any

from imdbattn.report import comparison_page as shared
from imdbattn.report.statistics import in_percent, level

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
    "interval": "interval",
    "difference": "difference",
    "against": "against",
    "p": "$p$",
    "parameters": "parameters",
    "minutes": "minutes",
}


def escaped(text: str) -> str:
    return text.translate(ESCAPED)


def table(comparison: Mapping[str, Any]) -> str:
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
    return "\n".join(
        [
            f"% {shared.set_name(comparison)}".replace("\n", " "),
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
    name = escaped(shared.metric_name(metric))
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
        "validation": shared.mean_and_sd(rung["validation"]),
        "test": shared.mean_and_sd(rung["test"]),
        "metric": shared.mean_and_sd(rung["metric"], factor, form),
        "interval": "–".join(shared.as_text(end, metric) for end in rung["interval"] or ()),
        "parameters": shared.count(rung["parameters"]),
        "minutes": "" if minutes is None else f"{minutes:.1f}",
    } | dict.fromkeys(("difference", "against", "p"), "")
    cells = {name: escaped(text) for name, text in cells.items()}
    if pair is not None:
        difference = escaped(shared.with_sign(pair["difference"], metric))
        decided = pair["verdict"] != "undecided"
        cells["difference"] = rf"\textbf{{{difference}}}" if decided else difference
        cells["against"] = escaped(pair["from"])
        cells["p"] = escaped(shared.p_value(pair["holm_p"]).removeprefix("p = ").removeprefix("p "))
    return cells
