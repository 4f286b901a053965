"""Shared by the benchmarks: measurements that alternate between two sides, and the table of the
results.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from imdbattn.launch.composition import composed
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.settings.schema import TrainingSettings, validate_as
from imdbattn.tasks.reviews.task import ReviewSettings
from imdbattn.tasks.task import training_settings

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent


class Row(NamedTuple):
    """A row of the table: the medians of both sides and of their ratio, and the range of the ratio
    over the rounds.
    """

    name: str
    ours: float
    theirs: float
    ratio: float  # ours / theirs
    unit: str  # of ours and theirs
    goal: str  # of the ratio (or of ours), such as ">= 4"
    low: float
    high: float


def row(name: str, unit: str, goal: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """Returns a row. pairs: (ours, theirs) of each round."""
    ratios = [ours / theirs for ours, theirs in pairs]
    medians = median(ours for ours, _ in pairs), median(theirs for _, theirs in pairs)
    return Row(name, *medians, median(ratios), unit, goal, min(ratios), max(ratios))


def race(
    name: str,
    unit: str,
    goal: str,
    count: int,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    rounds: int,
) -> Row:
    """Returns the rates, `count` per second, of two sides that return seconds."""
    return row(name, unit, goal, in_turn(lambda: count / ours(), lambda: count / theirs(), rounds))


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    rows = (head, ["---"] * len(head), *lines)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def markdown(rows: Iterable[Row]) -> str:
    """Returns the rows as a Markdown table."""
    lines = []
    for row in rows:
        ratio = f"**{row.ratio:.2f}**"
        rounds = f"{row.low:.2f}–{row.high:.2f}"
        sides = (short_number(row.ours), short_number(row.theirs))
        lines.append((row.name, *sides, row.unit, ratio, rounds, row.goal))
    return table(("what", "ours", "theirs", "unit", "ours / theirs", "its rounds", "goal"), lines)


def short_number(value: float) -> str:
    """Returns a number with three digits, or a larger one without decimals."""
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def write(rows: Sequence[Row], folder: Path) -> None:
    """Writes results.json and results.md."""
    (folder / "results.json").write_text(json.dumps([r._asdict() for r in rows], indent=1) + "\n")
    (folder / "results.md").write_text(markdown(rows))


def in_turn(ours: Callable[[], T], theirs: Callable[[], T], rounds: int) -> list[tuple[T, T]]:
    """Calls both sides `rounds` times, each of them first in every other round, and returns their
    results.
    """
    pairs = []
    for number in range(rounds):
        if number % 2:
            second = theirs()
            pairs.append((ours(), second))
        else:
            pairs.append((ours(), theirs()))
    return pairs


@contextmanager
def own_process() -> Iterator[Callable[..., Any]]:
    """Yields run(function, *arguments), in one new process, in which this package does not change
    torch's defaults.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def seconds(work: Callable[[], object]) -> float:
    """Returns the wall-clock seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def environment() -> dict[str, str]:
    """Returns environment variables for commands of this repository, with W&B offline."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}


def run(
    command: Sequence[str | Path], timeout: float | None = 300, env: Mapping[str, str] | None = None
) -> str:
    """Runs a command and returns its output. env: instead of `environment()`. Raises RuntimeError
    if it fails.
    """
    done = subprocess.run(
        command, cwd=ROOT, env=env or environment(), capture_output=True, text=True, timeout=timeout
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return done.stdout


def settings(*overrides: str) -> TrainingSettings:
    """Returns the validated settings of `python -m imdbattn.train <overrides>`."""
    return training_settings(plain_settings(composed("train", overrides)))


def review_settings(*overrides: str) -> ReviewSettings:
    """Returns the same for the task of reviews."""
    return validate_as(ReviewSettings, plain_settings(composed("train", overrides)))
