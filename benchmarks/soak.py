"""An hour of jobs that are started and killed at random: `python -m benchmarks.soak --minutes 60 --folder runs/soak`.

Single runs, sweeps and runs on two processes, on real reviews, are stopped by SIGKILL, SIGTERM or Ctrl-C at random
moments and resumed until they end. Each must end with the numbers of a run that nobody stopped; no process, no
temporary file and no broken folder may be left. Beside them one process trains job after job itself, stopped and
resumed, too: its memory, open files and threads must stay as they were. Prints what went wrong, and exits with 1 then.
Reads /proc, so it needs Linux.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import ROOT

SMALL = ["data.source=packaged", "trainer=cpu", "trainer.enable_progress_bar=false", "threads=1", "save_minutes=0.003"]
SMALL += ["trainer.limit_train_batches=20", "trainer.max_epochs=8", "data.max_tokens=64", "model.dropout=0.1"]
TIMES = ("train_seconds", "epoch_seconds", "tokens_per_s")
MARK = "IMDBATTN_SOAK_JOB"  # environment variable of all processes of a job
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def results(folder: Path) -> str:
    """A checksum of all numbers of a finished run: metrics, predictions and best weights."""
    import torch

    metrics = json.loads((folder / "metrics.json").read_text())
    weights = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    found = hashlib.sha256(json.dumps({k: v for k, v in metrics.items() if k not in TIMES}).encode())
    found.update((folder / "predictions.parquet").read_bytes())
    for name, value in weights.items():
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def of_job(folder: Path) -> list[int]:
    """Processes that were started for the job in `folder`, by whatever process of it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={folder}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return found


class Killer:
    """Starts jobs in processes of their own, kills them at random moments, and resumes them."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.draw = folder, random.Random(seed)
        self.known: dict[str, str] = {}  # job -> checksum of its results, from the run that nobody stopped
        self.jobs = self.kills = 0
        self.wrong: list[str] = []

    def job(self) -> tuple[str, list[str], bool]:
        """Name, words and whether it is a sweep, of a job drawn at random."""
        model = self.draw.choice(("mean", "learned_query", "residual_pe", "residual_learned", "residual_pe_cls"))
        kind = self.draw.choices(("single", "wandb", "ddp", "sweep"), (5, 2, 1, 2))[0]
        words = [*SMALL, f"model={model}", f"logger={'wandb' if kind == 'wandb' else 'csv'}"]
        if kind == "ddp":
            words += ["trainer.devices=2", "trainer.strategy=ddp"]
        if kind == "sweep":
            words = ["-m", *words, "seed=1,2"]
        return f"{kind}-{model}", words, kind == "sweep"

    def run(self, words: list[str], folder: Path, kill: bool) -> int:
        """Exit status of a process, which is killed after a random while."""
        with (self.folder / "output.log").open("a") as log:
            env = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", MARK: str(folder)}
            command = [sys.executable, "-m", "imdbattn.train", *words]
            process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)
            try:
                return process.wait(self.draw.uniform(2, 25) if kill else 600)
            except subprocess.TimeoutExpired:
                if kill:
                    self.kills += 1
                else:
                    self.wrong.append(f"{folder.name} hangs: {' '.join(words)}")
                process.send_signal(self.draw.choice(SIGNALS) if kill else signal.SIGKILL)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    self.wrong.append(f"{folder.name} does not stop")
                    process.kill()
                    process.wait()
        end = time.monotonic() + 30
        while left := of_job(folder):
            if time.monotonic() > end:
                self.wrong.append(f"{folder.name} left the processes {left}")
                for number in left:
                    os.kill(number, signal.SIGKILL)
                break
            time.sleep(0.2)
        return -1

    def finish(self, name: str, words: list[str], sweep: bool, kills: int) -> None:
        """Runs a job to its end over `kills` kills, and looks at what it left."""
        folder = self.folder / f"{self.jobs}-{name}"
        where = f"hydra.{'sweep' if sweep else 'run'}.dir={folder}"
        for attempt in range(kills + 20):
            begun = (folder / ("sweep.jsonl" if sweep else "config.yaml")).exists()
            more = (
                [*words, f"resume={folder}"] if sweep and begun else [f"resume={folder}"] if begun else [*words, where]
            )
            if self.run(more, folder, kill=attempt < kills) == 0:
                break
        else:
            self.wrong.append(f"{folder.name} does not come to its end")
            return
        runs = sorted(folder.glob("*-s*")) if sweep else [folder]
        for number, run in enumerate(runs):
            try:
                found = results(run)
            except Exception as error:
                self.wrong.append(f"{run} is broken: {error}")
                continue
            if self.known.setdefault(f"{name} {number}", found) != found:
                self.wrong.append(f"{run} has other numbers than a run that was not stopped")
        if left := [str(file) for file in folder.rglob("*") if ".tmp" in file.name]:
            self.wrong.append(f"left: {', '.join(left)}")
        if not self.wrong:
            shutil.rmtree(folder)

    def next(self) -> None:
        name, words, sweep = self.job()
        kinds = [f"{name} {number}" for number in range(2 if sweep else 1)]
        self.finish(name, words, sweep, kills=0 if kinds[0] not in self.known else self.draw.randint(1, 4))
        self.jobs += 1


def stay(folder: Path, minutes: float) -> None:
    """Trains job after job in this process, each stopped once and resumed; prints open files, threads and memory."""
    import gc
    import logging

    from hydra import compose, initialize_config_dir

    from imdbattn.runs.fit import fit
    from imdbattn.settings.cli import conf_dir, plain_dict
    from imdbattn.settings.schema import validate
    from imdbattn.tasks.learner import ReviewClassifier

    logging.disable(logging.WARNING)
    end, jobs = time.monotonic() + 60 * minutes, 0
    train, draw = ReviewClassifier.training_step, random.Random(0)
    stop_at = -1

    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(self, batch, batch_idx)

    ReviewClassifier.training_step = training_step  # type: ignore[method-assign]
    while time.monotonic() < end:
        model, run = draw.choice(("mean", "residual_pe", "residual_cls")), folder / f"stay-{jobs}"
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            words = [*SMALL, f"model={model}", "logger=csv", "pictures=true"]
            settings = validate(plain_dict(compose("train", overrides=words))).model_dump()
        stop_at = draw.randrange(1, 150)
        try:
            fit(settings, run)
        except SystemExit:
            stop_at = -1
            fit(settings, run, resume=True)
        shutil.rmtree(run)
        jobs += 1
        gc.collect()
        print(
            json.dumps([jobs, *(len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")), resident()]),
            flush=True,
        )


def resident() -> int:
    """Memory of this process, MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long")
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"), help="where; it is emptied before")
    parser.add_argument("--seed", type=int, default=0, help="of the jobs and kills that are drawn")
    parser.add_argument("--stay", action="store_true", help="only the part that trains in this process")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.stay:
        return stay(folder, arguments.minutes)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.soak", "--stay", "--minutes", str(arguments.minutes)]
    with (folder / "stay.jsonl").open("w") as lines:
        staying = subprocess.Popen([*command, "--folder", str(folder)], cwd=ROOT, stdout=lines)
    killer, end = Killer(folder, arguments.seed), time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end:
        killer.next()
        told = f"{killer.jobs} jobs, {killer.kills} kills, {len(killer.wrong)} wrong"
        print(told, *killer.wrong[-1:], flush=True)
    wrong = killer.wrong + ([] if staying.wait(600) == 0 else ["the process that trains job after job failed"])
    stayed = [json.loads(line) for line in (folder / "stay.jsonl").read_text().splitlines()]
    print(f"{killer.jobs} jobs, {killer.kills} kills; wrong: {len(wrong)}", *wrong, sep="\n  ")
    print("jobs in one process, open files, threads, MB:")
    for line in stayed[:: max(1, len(stayed) // 12)]:
        print("  ", *line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
