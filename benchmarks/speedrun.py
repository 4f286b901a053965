"""Seconds of training to an accuracy, as the mean of several seeds: a benchmark to take part in.

    python -m benchmarks.speedrun --goal 85 --seeds 5 --change "Muon" model=residual_pe
    python -m benchmarks.speedrun --goal 90 --before ad5abbb model=log_counts model.net.layers=0 ...

The other arguments are settings of imdbattn.train. Each seed trains in a process of its own on one
thread, on a machine that should be idle. Printed are the accuracies, the seconds of training (also
as multiples of a fixed piece of work, measured before and after each run, by which machines can be
compared), p of the hypothesis that the mean test accuracy is below the goal (Student's t over the
seeds), and a row for the log in docs/speed.md. Choose settings with --validation, which leaves the
test split untouched and compares the validation accuracy with the goal.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

from benchmarks.common import environment, run, seconds, table

HEAD = (
    "date",
    "commit",
    "change",
    "goal",
    "validation %",
    "test %",
    "p",
    "seconds",
    "works",
    "lines",
)


class Trial(NamedTuple):
    """One seed. Accuracies are shares; `works` is the time of training in pieces of work."""

    validation: float
    test: float | None
    seconds: float
    works: float


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("benchmarks.speedrun", description=__doc__.splitlines()[0])
    parser.add_argument("--goal", type=float, required=True, help="mean accuracy in %% to reach")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to this number")
    parser.add_argument("--validation", action="store_true", help="do not use the test split")
    parser.add_argument("--change", default="", help="what is new, for the log")
    parser.add_argument("--before", help="commit of the last record, to count changed lines")
    parser.add_argument("settings", nargs="*", help="settings of imdbattn.train")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: a spread needs two runs")
    trials = []
    for seed in range(1, options.seeds + 1):
        trial = train(options.settings, seed, test=not options.validation)
        trials.append(trial)
        print(f"seed {seed}: {described(trial)}", flush=True)
    print(summary(trials, options.goal))
    print(table(HEAD, [row(trials, options.goal, options.change, options.before)]))


def train(settings: Sequence[str], seed: int, test: bool) -> Trial:
    """Trains one seed in a process of its own, and measures the piece of work around it."""
    fixed = [f"seed={seed}", "threads=1", "logger=csv", "pictures=false", f"test={test}".lower()]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "imdbattn.train", *settings, *fixed]
        works = [seconds_of_work()]
        env = environment() | {"OMP_NUM_THREADS": "1"}
        run([*command, f"hydra.run.dir={folder}/run"], timeout=None, env=env)
        works.append(seconds_of_work())
        metrics = json.loads(Path(folder, "run", "metrics.json").read_text())
    took = metrics["train_seconds"]
    return Trial(metrics["val_accuracy"], metrics.get("test_accuracy"), took, took / mean(works))


def seconds_of_work(repetitions: int = 5) -> float:
    """Returns the median seconds of the piece of work: 50 products of matrices of 1024 x 1024
    float32 numbers and 50 softmaxes of such a matrix, on one thread.
    """
    import torch

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(1024, 1024, generator=draw) for _ in range(2))

    def work() -> None:
        for _ in range(50):
            (left @ right).softmax(-1)

    return median(seconds(work) for _ in range(repetitions))


def described(trial: Trial) -> str:
    test = "" if trial.test is None else f", test {100 * trial.test:.2f} %"
    accuracy = f"validation {100 * trial.validation:.2f} %{test}"
    return f"{accuracy}, {trial.seconds:.1f} s, {trial.works:.1f} works"


def accuracies(trials: Sequence[Trial]) -> list[float]:
    """Returns the accuracies in % that are compared with the goal: of the test split, if used."""
    return [100 * (t.validation if t.test is None else t.test) for t in trials]


def p_value(values: Sequence[float], goal: float) -> float:
    """Returns p of the hypothesis that the mean is below the goal: one-sided t-test over seeds."""
    from scipy import stats

    if len(set(values)) == 1:  # no spread, for which t is not defined
        return 0.0 if values[0] > goal else 1.0
    return float(stats.ttest_1samp(values, goal, alternative="greater").pvalue)


def summary(trials: Sequence[Trial], goal: float) -> str:
    """Returns one line: the accuracy against the goal, and the time."""
    values = accuracies(trials)
    split = "validation" if trials[0].test is None else "test"
    p = p_value(values, goal)
    verdict = "reached" if mean(values) >= goal else "not reached"
    took = median(trial.seconds for trial in trials)
    works = median(trial.works for trial in trials)
    return (
        f"{split} {mean(values):.2f} ± {stdev(values):.2f} % of {len(values)} seeds: the goal of"
        f" {goal:g} % is {verdict} (p = {p:.3f}); median {took:.1f} s, {works:.1f} works"
    )


def row(trials: Sequence[Trial], goal: float, change: str, before: str | None) -> list[str]:
    """Returns the cells of a row of the log."""
    spread = [100 * trial.validation for trial in trials]
    tests = [100 * trial.test for trial in trials if trial.test is not None]
    return [
        date.today().isoformat(),
        git("rev-parse", "--short", "HEAD"),
        change,
        f"{goal:g}",
        f"{mean(spread):.1f} ± {stdev(spread):.1f}",
        f"{mean(tests):.1f} ± {stdev(tests):.1f}" if tests else "–",
        f"{p_value(accuracies(trials), goal):.3f}",
        f"{median(trial.seconds for trial in trials):.1f}",
        f"{median(trial.works for trial in trials):.1f}",
        lines_since(before) if before else "–",
    ]


def lines_since(commit: str) -> str:
    """Returns how many more lines the package and its settings have than in `commit`."""
    counts = git("diff", "--numstat", commit, "--", "imdbattn", "conf").splitlines()
    columns = [line.split("\t") for line in counts]  # names of renamed files have spaces
    added = sum(int(new) - int(old) for new, old, _ in columns if new != "-")
    return f"{added:+d}"


def git(*arguments: str) -> str:
    return run(["git", *arguments]).strip()


if __name__ == "__main__":
    main(sys.argv[1:])
