"""Kills jobs at random moments for an hour: `python -m benchmarks.soak --minutes 60 --folder
runs/soak`.

Single runs, sweeps and runs in two processes, on real reviews, are stopped by SIGKILL, SIGTERM or
Ctrl-C at random moments and resumed until they finish. Each must give the results of an
uninterrupted run and leave no process, temporary file or broken folder. Meanwhile, another process
trains one job after another, each stopped once and resumed: its memory, open files and threads must
not grow. Prints each failure; exits with status 1 if there is one. Requires Linux (/proc).
"""

import argparse
import gc
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.common import environment, settings

SMALL = [
    "data.source=packaged",
    "trainer=cpu",
    "trainer.enable_progress_bar=false",
    "threads=1",
    "save_minutes=0.003",
]
SMALL += [
    "trainer.limit_train_batches=20",
    "trainer.max_epochs=8",
    "data.max_tokens=64",
    "model.net.dropout=0.1",
]
TIMES = ("train_seconds", "epoch_seconds", "tokens_per_s")
MARK = "IMDBATTN_SOAK_JOB"  # environment variable of all processes of a job
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def results(folder: Path) -> str:
    """Returns a checksum of the results of a run: metrics, predictions and best weights."""
    metrics = json.loads((folder / "metrics.json").read_text())
    weights = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    checksum = hashlib.sha256(
        json.dumps({k: v for k, v in metrics.items() if k not in TIMES}).encode()
    )
    checksum.update((folder / "predictions.parquet").read_bytes())
    for name, value in weights.items():
        checksum.update(name.encode() + value.numpy().tobytes())
    return checksum.hexdigest()


def processes_of(folder: Path) -> list[int]:
    """Returns the processes that were started for the job in `folder`, directly or indirectly."""
    numbers = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if f"{MARK}={folder}\0".encode() in (entry / "environ").read_bytes():
                numbers.append(int(entry.name))
    return numbers


class Killer:
    """Starts jobs as processes, kills them at random moments, and resumes them."""

    def __init__(self, folder: Path, seed: int):
        self.folder = folder
        self.draw = random.Random(seed)
        self.known: dict[str, str] = {}  # run -> checksum of its results without interruption
        self.jobs = self.kills = 0
        self.wrong: list[str] = []

    def next(self) -> None:
        """Runs a random job until it finishes; without kills if its results are not known yet."""
        model = self.draw.choice(
            ("mean", "learned_query", "residual_pe", "residual_learned", "residual_pe_cls")
        )
        kind = self.draw.choices(("single", "wandb", "ddp", "sweep"), (5, 2, 1, 2))[0]
        words = [*SMALL, f"model={model}", f"logger={'wandb' if kind == 'wandb' else 'csv'}"]
        words += ["trainer.devices=2", "trainer.strategy=ddp"] if kind == "ddp" else []
        words = ["-m", *words, "seed=1,2"] if kind == "sweep" else words
        name = f"{kind}-{model}"
        kills = self.draw.randint(1, 4) if f"{name} 0" in self.known else 0
        self.finish(name, words, kind == "sweep", kills)
        self.jobs += 1

    def finish(self, name: str, words: list[str], sweep: bool, kills: int) -> None:
        """Runs a job until it finishes, after `kills` kills, and checks its results and files."""
        folder = self.folder / f"{self.jobs}-{name}"
        where = f"hydra.{'sweep' if sweep else 'run'}.dir={folder}"
        for attempt in range(kills + 20):
            started = (folder / ("sweep.jsonl" if sweep else "config.yaml")).exists()
            own = [*words, where] if not started else [*words * sweep, f"resume={folder}"]
            if self.run(own, folder, kill=attempt < kills) == 0:
                break
        else:
            self.wrong.append(f"{folder.name} does not finish")
            return
        for number, run in enumerate(sorted(folder.glob("*-s*")) if sweep else [folder]):
            try:
                checksum = results(run)
            except Exception as error:
                self.wrong.append(f"{run} is broken: {error}")
                continue
            if self.known.setdefault(f"{name} {number}", checksum) != checksum:
                self.wrong.append(f"{run} has other results than without interruption")
        if left := [str(file) for file in folder.rglob("*") if ".tmp" in file.name]:
            self.wrong.append(f"temporary files are left: {', '.join(left)}")
        if not self.wrong:
            shutil.rmtree(folder)

    def run(self, words: list[str], folder: Path, kill: bool) -> int:
        """Returns the exit status of a training command, or -1 if it was killed after a random
        time.
        """
        with (self.folder / "output.log").open("a") as log:
            command = [sys.executable, "-m", "imdbattn.train", *words]
            env = {**environment(), MARK: str(folder)}
            process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)
            try:
                return process.wait(self.draw.uniform(2, 25) if kill else 600)
            except subprocess.TimeoutExpired:
                self.kills += kill
                if not kill:
                    self.wrong.append(f"{folder.name} hangs: {' '.join(words)}")
                process.send_signal(self.draw.choice(SIGNALS) if kill else signal.SIGKILL)
        end = time.monotonic() + 60
        while (process.poll() is None or processes_of(folder)) and time.monotonic() < end:
            time.sleep(0.2)
        if left := processes_of(folder):
            self.wrong.append(f"{folder.name} left the processes {left}")
            for number in left:
                os.kill(number, signal.SIGKILL)
        process.wait()
        return -1


def train_in_turn(folder: Path, minutes: float) -> None:
    """Trains one job after another in this process, each stopped once and resumed.

    Writes a line to stay.jsonl after each: the number of jobs, open files, threads, and MB of
    resident memory.
    """
    from imdbattn.runs.fit import fit
    from imdbattn.tasks.reviews.module import ReviewClassifier

    logging.disable(logging.WARNING)
    end = time.monotonic() + 60 * minutes
    jobs = 0
    stop_at = -1
    train = ReviewClassifier.training_step
    draw = random.Random(0)

    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(self, batch, batch_idx)

    ReviewClassifier.training_step = training_step  # type: ignore[method-assign]
    while time.monotonic() < end:
        model = draw.choice(("mean", "residual_pe", "residual_cls"))
        run = folder / f"stay-{jobs}"
        cfg = settings(*SMALL, f"model={model}", "logger=csv", "pictures=true")
        stop_at = draw.randrange(1, 150)
        try:
            fit(cfg, run)
        except SystemExit:
            stop_at = -1
            fit(cfg, run, resume=True)
        shutil.rmtree(run)
        jobs += 1
        gc.collect()
        files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        megabytes = pages * os.sysconf("SC_PAGESIZE") // 10**6
        with (folder / "stay.jsonl").open("a") as lines:
            print(json.dumps([jobs, files, threads, megabytes]), file=lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"), help="is emptied first")
    parser.add_argument("--seed", type=int, default=0, help="of the random jobs and kills")
    options = parser.parse_args()
    folder = options.folder.resolve()
    # which background jobs of a shell ignore
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "stay.jsonl").touch()
    in_turn = get_context("spawn").Process(
        target=train_in_turn, args=(folder, options.minutes), daemon=True
    )
    in_turn.start()
    killer = Killer(folder, options.seed)
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        killer.next()
        print(
            f"{killer.jobs} jobs, {killer.kills} kills, {len(killer.wrong)} wrong",
            *killer.wrong[-1:],
            flush=True,
        )
    in_turn.join(600)
    wrong = killer.wrong + (
        [] if in_turn.exitcode == 0 else ["the process that trains one job after another failed"]
    )
    print(f"{killer.jobs} jobs, {killer.kills} kills; wrong: {len(wrong)}", *wrong, sep="\n  ")
    print("jobs in one process, open files, threads, MB:")
    stayed = (folder / "stay.jsonl").read_text().splitlines()
    for line in stayed[:: max(1, len(stayed) // 12)]:
        print("  ", *json.loads(line))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
