"""Trains every rung with several seeds and prints README's table as Markdown.

    python benchmarks/ladder.py --seeds 1 2 3 --jobs 2

One process and one thread a job, `--jobs` of them side by side. A job that stands finished in --folder with the same
settings is not run again, so an interrupted table goes on with the same command.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from omegaconf import OmegaConf

from imdbattn.settings import RUNGS


def run(rung: str, seed: int, folder: Path, overrides: Sequence[str]) -> Path:
    """Trains one job in a process of its own and returns its run folder; one finished with these settings is kept."""
    target = folder / f"{rung}-s{seed}"
    fixed = ["data.source=packaged", "threads=1", "trainer=cpu", "logger=csv", "trainer.enable_progress_bar=false"]
    command = [sys.executable, "-m", "imdbattn.train", f"model={rung}", f"seed={seed}", *fixed, *overrides]
    if (target / "metrics.json").exists():
        wanted = subprocess.run([*command, "--cfg", "job", "--resolve"], capture_output=True, text=True, check=True)
        if OmegaConf.create(wanted.stdout) == OmegaConf.load(target / "config.yaml"):
            return target
    done = subprocess.run([*command, f"hydra.run.dir={target}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{rung}, seed {seed} failed:\n{done.stderr[-2000:]}")
    accuracy = json.loads((target / "metrics.json").read_text())["test_accuracy"]
    print(f"{rung}, seed {seed}: {100 * accuracy:.2f} % on test", file=sys.stderr)
    return target


def row(folders: Sequence[Path]) -> str:
    """A line of the table: means over seeds, with standard deviations of the accuracies."""
    found = [json.loads((folder / "metrics.json").read_text()) for folder in folders]

    def percent(key: str) -> str:
        values = [100 * metrics[key] for metrics in found]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.1f}{spread}"

    def mean(key: str) -> float:
        return statistics.mean(metrics[key] for metrics in found)

    name, parameters = found[0]["model"], f"{found[0]['parameters']:,}"
    return (
        f"| `{name}` | {percent('val_accuracy')} | {percent('test_accuracy')} | {parameters} "
        f"| {mean('epochs'):.0f} | {mean('epoch_seconds'):.1f} | {mean('tokens_per_s') / 1000:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of each rung")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=RUNGS, help="rungs to train")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="jobs side by side, one thread each")
    parser.add_argument("--folder", type=Path, default=Path("runs/ladder"), help="where the run folders lie")
    parser.add_argument("overrides", nargs="*", help="further settings for every job, e.g. trainer.max_epochs=2")
    chosen = parser.parse_args()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        jobs = {
            rung: [pool.submit(run, rung, seed, chosen.folder, chosen.overrides) for seed in chosen.seeds]
            for rung in chosen.rungs
        }
        try:
            folders = {rung: [job.result() for job in started] for rung, started in jobs.items()}
        except RuntimeError as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(str(error))
    print("| rung | validation % | test % | parameters | epochs | s / epoch | 1000 tokens / s |")
    print("|---|---|---|---|---|---|---|")
    for rung in chosen.rungs:
        print(row(folders[rung]))


if __name__ == "__main__":
    main()
