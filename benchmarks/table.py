"""What the benchmarks share: two sides in turn on the same machine, and a row of the table for what came out."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Row:
    """One line of the table: `ratio` is ours / theirs; `low` and `high` are the least and the largest of its rounds."""

    name: str
    ours: float
    theirs: float
    ratio: float
    unit: str  # of ours and theirs
    goal: str  # what the ratio (or ours) is to reach, in words: ">= 4", "<= 1.5"
    low: float
    high: float


def in_turn(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Calls both sides `rounds` times, alternately and each first in turn, and returns what they measured."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            second = theirs()
            pairs.append((ours(), second))
        else:
            pairs.append((ours(), theirs()))
    return pairs


def run(command: Sequence[str | Path], status: int = 0) -> str:
    """What a process prints, run in the repository with W&B offline. Raises RuntimeError where it fails."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != status:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def row(name: str, unit: str, goal: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """The medians of both sides and of their ratios, round by round."""
    ratios = [ours / theirs for ours, theirs in pairs]
    middle = median(ours for ours, _ in pairs), median(theirs for _, theirs in pairs)
    return Row(name, *middle, median(ratios), unit, goal, min(ratios), max(ratios))


def markdown(rows: Sequence[Row]) -> str:
    """The table of a README."""
    lines = ["| what | ours | theirs | unit | ours / theirs | its rounds | goal |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        ours, theirs = (f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in (r.ours, r.theirs))
        spread = f"{r.low:.2f}–{r.high:.2f}"
        lines.append(f"| {r.name} | {ours} | {theirs} | {r.unit} | **{r.ratio:.2f}** | {spread} | {r.goal} |")
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Row], folder: Path) -> None:
    """results.json and results.md in `folder`."""
    (folder / "results.json").write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    (folder / "results.md").write_text(markdown(rows))
