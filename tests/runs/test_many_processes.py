"""Many processes: the losses and metrics of one, one folder, one W&B run."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.commands import run_process
from tests.processes import environment

# The real command, which also records the mean loss of each step over the reviews of all processes.
TOLD = """
import json, torch
from imdbattn.train import main
from imdbattn.tasks.learner import Learner

kept = Learner.on_train_epoch_end

def told(self):
    sums_S3 = self.trainer.strategy.reduce(torch.stack(self.epoch_sums), reduce_op="sum")
    if self.trainer.is_global_zero:
        with open("losses.jsonl", "a") as file:
            file.write(json.dumps((sums_S3[:, 0] / sums_S3[:, 2]).tolist()) + "\\n")
    kept(self)

Learner.on_train_epoch_end = told
main()
"""


@pytest.fixture(scope="session")
def job(small):
    """One epoch of residual_pe on the small world, half of the words dropped, logged to W&B
    offline.

    In 25 batches of 2 to 13 reviews: parts of unequal size, and on 4 processes some of none.
    """
    other = ("logger=", "trainer=", "data.batch_tokens=")
    own = ["logger=wandb", "model=residual_pe", "trainer.max_epochs=1"]
    own += ["data.batch_tokens=80", "data.pad_to=1"]
    return [*(word for word in small if not word.startswith(other)), *own]


@pytest.fixture(scope="session")
def run_on(job, tmp_path_factory):
    """run_on(processes): losses of steps, metrics and folder of a job on so many processes."""
    runs: dict[int, tuple[list[float], dict, Path]] = {}

    def run(processes: int) -> tuple[list[float], dict, Path]:
        if processes not in runs:
            folder = tmp_path_factory.mktemp(f"processes{processes}")
            (folder / "told.py").write_text(TOLD)
            several = ["trainer=ddp_cpu", f"trainer.devices={processes}"]
            trainer = ["trainer=cpu"] if processes == 1 else several
            start(["told.py", *job, *trainer], folder)
            (losses,) = map(json.loads, (folder / "losses.jsonl").read_text().splitlines())
            (metrics,) = folder.glob("runs/20*/*/metrics.json")
            runs[processes] = (losses, json.loads(metrics.read_text()), folder)
        return runs[processes]

    return run


def start(words: list[str], cwd: Path, **env: str) -> str:
    """The output of `python words...`, which must succeed."""
    done = run_process(words, cwd, environment(env))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def free_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return str(sock.getsockname()[1])


def one_run(folder: Path) -> dict:
    """The metrics of the only run below `folder`, with one run folder and one W&B run."""
    (found,) = folder.rglob("config.yaml")
    assert [path.parent for path in folder.rglob("metrics.json")] == [found.parent]
    assert [path.parent.parent for path in folder.rglob("offline-run-*")] == [found.parent]
    return json.loads((found.parent / "metrics.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_gives_the_losses_and_metrics_of_one_process_in_one_run(
    run_on, processes
):
    losses, metrics, folder = run_on(processes)
    alone, expected, _ = run_on(1)
    assert len(alone) > 20
    assert losses == pytest.approx(alone, rel=1e-5)
    for name in ("val_loss", "test_loss"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5)
    tokens, of_one = (one["tokens_per_s"] * one["train_seconds"] for one in (metrics, expected))
    assert tokens == pytest.approx(of_one), "of one epoch"
    exact = ("steps", "val_accuracy", "test_accuracy", "val_count", "test_count")
    assert [metrics[name] for name in exact] == [expected[name] for name in exact]
    one_run(folder)
    assert {path.name for path in folder.iterdir()} == {"runs", "told.py", "losses.jsonl"}


@pytest.mark.slow
def test_torchrun_makes_one_run(job, run_on, tmp_path):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "imdbattn.train", *job, "trainer=ddp_cpu", "hydra.run.dir=runs/x"]
    start(command, tmp_path, OMP_NUM_THREADS="1")
    assert one_run(tmp_path)["test_loss"] == pytest.approx(run_on(1)[1]["test_loss"], rel=1e-5)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"x", "latest"}


@pytest.mark.slow
def test_srun_makes_one_run(job, run_on, tmp_path):
    """Two tasks of a SLURM job, with the environment variables that srun sets."""
    names = {"JOB_ID": free_port(), "JOB_NAME": "ladder", "NTASKS": "2", "NTASKS_PER_NODE": "2"}
    names |= {"NNODES": "1", "NODEID": "0", "NODELIST": "localhost"}
    env = {f"SLURM_{name}": value for name, value in names.items()} | {"MASTER_PORT": free_port()}
    command = ["-m", "imdbattn.train", *job, "trainer=slurm"]
    command += ["trainer.accelerator=cpu", "trainer.precision=32-true"]

    def task(number: int) -> str:
        return start(command, tmp_path, **env, SLURM_PROCID=str(number), SLURM_LOCALID=str(number))

    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(task, range(2)))
    assert one_run(tmp_path)["test_loss"] == pytest.approx(run_on(1)[1]["test_loss"], rel=1e-5)
    assert "test accuracy" in outputs[0]
    assert "test accuracy" not in outputs[1]
