"""The results of a search: search.json, search.md and importance.png in its folder, and a table in the terminal."""

import statistics
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState
from rich.console import Console
from rich.table import Table

from imdbattn.comparison.figures import BLUE, finish, row_chart
from imdbattn.comparison.report import mean_and_sd, percent, plain
from imdbattn.files import write_atomically
from imdbattn.pages import png, render
from imdbattn.run_folder import write_json
from imdbattn.search.space import as_words

FEWEST = 4  # finished trials behind an importance
BEST = 10  # trials in the table
TEMPLATE = Path(__file__).parent / "search.md.jinja"


def summarize(study: optuna.Study, command: str) -> dict[str, Any]:
    """The content of search.json without the test accuracies."""
    trials = [
        {
            "number": trial.number,
            "state": {"COMPLETE": "finished", "PRUNED": "pruned"}.get(trial.state.name, "failed"),
            "val_accuracy": trial.value if trial.state == TrialState.COMPLETE else None,
            "epochs": trial.last_step or 0,
            "settings": trial.params,
        }
        for trial in study.get_trials()
    ]
    return {
        "best": study.best_trial.number,
        "command": command,
        "importance": importance(study),
        "method": "PED-ANOVA (Watanabe et al. 2023): what sets the better half of the finished trials apart",
        "test_accuracies": [],
        "trials": trials,
    }


def importance(study: optuna.Study) -> dict[str, float]:
    """Setting -> its share of all importance, the largest first; empty with fewer than FEWEST finished trials."""
    if len(study.get_trials(states=[TrialState.COMPLETE])) < FEWEST:
        return {}
    return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=0.5))


def table(summary: dict[str, Any]) -> list[list[str]]:
    """The best finished trials, the best first; the first row is the head."""

    done = [trial for trial in summary["trials"] if trial["val_accuracy"] is not None]
    rows = [
        [
            str(trial["number"]),
            percent(trial["val_accuracy"]),
            str(trial["epochs"]),
            " ".join(as_words(trial["settings"])),
        ]
        for trial in sorted(done, key=lambda trial: -trial["val_accuracy"])[:BEST]
    ]
    return [["trial", "validation %", "epochs", "settings"], *rows]


def counts(summary: dict[str, Any]) -> str:
    states = [trial["state"] for trial in summary["trials"]]
    parts = (f"{states.count(state)} {state}" for state in ("finished", "pruned", "failed") if state in states)
    return f"{len(states)} trial{'s' * (len(states) != 1)}: {', '.join(parts)}"


def test_accuracy(summary: dict[str, Any]) -> str:
    """Mean and spread, as `85.8 ± 0.4 %`; an empty string without test accuracies."""
    if not (values := summary["test_accuracies"]):
        return ""
    spread = statistics.stdev(values) if len(values) > 1 else None
    seeds = f"{len(values)} seeds" if len(values) > 1 else "1 seed"
    return f"{mean_and_sd({'mean': statistics.mean(values), 'sd': spread})} % ({seeds})"


def write(summary: dict[str, Any], folder: Path) -> None:
    """Writes search.json, search.md and importance.png."""
    if shares := summary["importance"]:
        figure, axes = row_chart(list(shares))
        axes.barh(range(len(shares)), [100 * share for share in shares.values()], color=BLUE, height=0.6)
        axes.set_xlabel("share of the importance (%)", fontsize=9)
        done = sum(trial["state"] == "finished" for trial in summary["trials"])
        write_atomically(folder / "importance.png", png(finish(figure, f"Importance of settings, {done} trials")))
    values = {"table": table(summary), "counts": counts(summary), "test": test_accuracy(summary), "plain": plain}
    write_atomically(folder / "search.md", render(TEMPLATE, **summary, **values))
    write_json(folder / "search.json", summary)


def print_best(summary: dict[str, Any]) -> None:
    head, *rows = table(summary)
    best = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in head:
        best.add_column(name, justify="left" if name == "settings" else "right", overflow="fold")
    for row in rows:
        best.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False)
    console.print("", counts(summary), "", best, "", sep="\n")
    if shares := summary["importance"]:
        console.print("importance:", ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items()))
