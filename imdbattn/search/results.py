"""The end of a search: its report, and the test accuracy of the best settings."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from imdbattn.comparison.compare import spread
from imdbattn.comparison.report import mean_and_sd
from imdbattn.errors import UserError, in_shell
from imdbattn.pages import Report, Section, print_reports, write_report
from imdbattn.search.space import as_words
from imdbattn.settings.cli import has_plugin, quote
from imdbattn.settings.safety import read_json
from imdbattn.settings.schema import Search
from imdbattn.sweep.job import LOG, jobs_of, search_path, stopping

log = logging.getLogger(__name__)

FEWEST = 4  # finished trials that an importance requires
BEST = 10  # trials in the table
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}


def complete(study: optuna.Study, cfg: Search, folder: Path) -> None:
    """Writes the results of the trials, trains the best settings with each seed, and adds the test accuracy."""
    seeds = ",".join(str(cfg.seed + place) for place in range(max(1, cfg.seeds)))
    words = [*cfg.train, *as_words(study.best_params), f"seed={seeds}"]
    line = " ".join(["python -m imdbattn.train", *["-m"] * (cfg.seeds > 1), *map(in_shell, words)])
    print_reports([report := report_of(study, line, [])])
    write_report(report, folder)
    end = "the best settings:   "
    if cfg.seeds:
        accuracies = retrain(cfg, words, folder)
        write_report(report_of(study, line, accuracies), folder)
        end = f"test accuracy        {mean_and_spread(accuracies)} with: "
    log.info("search               %s\n%s%s", os.path.relpath(folder / "search.md"), end, line)


def retrain(cfg: Search, words: list[str], folder: Path) -> list[float]:
    """Runs these words as a sweep in <search folder>/best, and returns the test accuracies."""
    sweep = folder / "best"
    place = "resume" if (sweep / LOG).exists() else "hydra.sweep.dir"
    words = [*words, quote(f"{place}={sweep}", [place]), *search_path()]
    if cfg.n_jobs > 1 and has_plugin("hydra_joblib_launcher"):
        words += ["hydra/launcher=local", f"hydra.launcher.n_jobs={cfg.n_jobs}"]
    command = [sys.executable, "-m", "imdbattn.train", "-m", *words]
    with subprocess.Popen(command) as process, stopping(process):
        process.wait()
    if process.returncode:
        place = in_shell(os.path.relpath(folder))
        raise UserError(f"the best settings could not be trained: see above, then resume={place}")
    return [read_json(sweep / name / "metrics.json")["test_accuracy"] for name in jobs_of(sweep)]


def report_of(study: optuna.Study, command: str, test_accuracies: list[float]) -> Report:
    """command: trains the best settings."""
    described = [
        {"number": one.number, "state": STATES[one.state.name], "values": one.values, "epochs": one.last_step}
        | {"settings": one.params}
        for one in study.get_trials()
    ]
    states = [one["state"] for one in described]
    done = sorted((one for one in described if one["state"] == "finished"), key=lambda one: -one["values"][0])
    rows = []
    for one in done[:BEST]:
        accuracy, epochs = f"{100 * one['values'][0]:.2f}", str(one["epochs"] or 0)
        rows.append([" ".join(as_words(one["settings"])), str(one["number"]), accuracy, epochs])
    best = [["settings", "trial", "validation %", "epochs"], *rows]
    sections = [
        Section("The best trials", table=best, short=best),
        Section(f"The command that trains trial {done[0]['number']} again", table=[["command"], [command]]),
    ]
    importance: dict[str, float] = {}  # of each setting, the largest first; their sum is 1
    if len(done) >= FEWEST:
        importance = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=0.5))
        table = [["setting", "importance %"], *([name, f"{100 * share:.1f}"] for name, share in importance.items())]
        text = f"By PED-ANOVA: the better half of {len(done)} finished trials against all of them."
        sections.append(Section("Importance of settings", text, table, short=table))
    return Report(
        name="search",
        title=", ".join(f"{states.count(state)} {state}" for state in STATES.values() if state in states),
        sections=sections,
        points=[f"test accuracy {mean_and_spread(test_accuracies)}"] if test_accuracies else [],
        content={"command": command, "test_accuracies": test_accuracies, "importance": importance, "trials": described},
    )


def mean_and_spread(accuracies: list[float]) -> str:
    return f"{mean_and_sd(spread(accuracies))} % (seeds: {len(accuracies)})"
