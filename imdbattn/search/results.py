"""The end of a search: search.md, search.json and importance.png in its folder, and the test accuracy."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from imdbattn.comparison.compare import spread
from imdbattn.comparison.figures import BLUE, finish, row_chart
from imdbattn.comparison.report import mean_and_sd
from imdbattn.errors import UserError, in_shell
from imdbattn.files import write_atomically
from imdbattn.pages import png
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
    log.info("\n%s", write_results(study, line, [], folder))
    end = "the best settings:   "
    if cfg.seeds:
        accuracies = retrain(cfg, words, folder)
        write_results(study, line, accuracies, folder)
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


def write_results(study: optuna.Study, command: str, test_accuracies: list[float], folder: Path) -> str:
    """Writes the three files, and returns the text of search.md. command: trains the best settings."""
    trials = study.get_trials()
    states = [STATES[one.state.name] for one in trials]
    done = sorted((one for one in trials if one.state.name == "COMPLETE"), key=lambda one: -one.values[0])
    lines = [", ".join(f"{states.count(state)} {state}" for state in STATES.values() if state in states), "", "```"]
    lines += ["trial  validation %  epochs  settings"]
    for one in done[:BEST]:
        numbers = f"{one.number:5}  {100 * one.values[0]:12.2f}  {one.last_step or 0:6}"
        lines.append(f"{numbers}  {' '.join(as_words(one.params))}")
    importance: dict[str, float] = {}  # of each setting, the largest first; their sum is 1
    if len(done) >= FEWEST:
        importance = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=0.5))
        figure, axes = row_chart(list(importance))
        axes.barh(range(len(importance)), [100 * share for share in importance.values()], color=BLUE, height=0.6)
        axes.set_xlabel("share of the importance (%)", fontsize=9)
        write_atomically(folder / "importance.png", png(finish(figure, f"Importance of settings, {len(done)} trials")))
        lines += ["", "importance by PED-ANOVA, the better half of these trials against all:"]
        lines += [f"{100 * share:5.1f} %  {name}" for name, share in importance.items()]
    lines += ["", f"trains trial {done[0].number} again:", command]
    if test_accuracies:
        lines += [f"test accuracy {mean_and_spread(test_accuracies)}"]
    text = "\n".join([*lines, "```", *["", "![importance](importance.png)"] * bool(importance), ""])
    described = [
        {"number": one.number, "state": state, "values": one.values, "epochs": one.last_step, "settings": one.params}
        for one, state in zip(trials, states, strict=True)
    ]
    content = {"command": command, "test_accuracies": test_accuracies, "importance": importance, "trials": described}
    write_atomically(folder / "search.md", text)
    write_atomically(folder / "search.json", json.dumps(content, indent=2) + "\n")
    return "\n".join(line for line in lines if line != "```")


def mean_and_spread(accuracies: list[float]) -> str:
    return f"{mean_and_sd(spread(accuracies))} % (seeds: {len(accuracies)})"
