"""Promise 7 for sweeps: one job, one folder; none stops the others, none runs twice, none outlives its sweep."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imdbattn.settings import digest, variant
from imdbattn.training import sweep

ROOT = str(Path(__file__).parent.parent)


@pytest.fixture
def jobs(small):
    """Overrides of a sweep whose jobs take a second each."""
    return [*(o for o in small if not o.startswith("threads=")), "model=mean", "trainer.max_epochs=1"]


def statuses(folder: Path) -> dict[str, str]:
    """Rung and seed of each job -> how it went, as sweep.jsonl has it."""
    return {name.rsplit("-", 1)[0]: job["status"] for name, job in sweep.jobs_of(folder).items()}


def processes_about(path: Path) -> list[int]:
    """Processes that have `path` on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(path) in words and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("launcher", ["basic", "local"])
def test_a_killed_sweep_leaves_no_process_and_goes_on_where_it_was(jobs, shell, tmp_path, launcher):
    folder = tmp_path / "sweep"
    jobs = [*jobs, f"hydra/launcher={launcher}"]
    command = [sys.executable, "-m", "imdbattn.train", "-m", *jobs, "seed=1,2"]
    command += ["hydra.launcher.n_jobs=1"] if launcher == "local" else []
    env = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(
        [*command, f"hydra.sweep.dir={folder}"], cwd=tmp_path, env=env, stdout=subprocess.PIPE
    ) as run:
        wait_for(lambda: (folder / sweep.LOG).exists() and statuses(folder).get("mean-s2"))
        wait_for(lambda: any("s2" in Path(f"/proc/{p}/cmdline").read_text() for p in processes_about(folder)))
        run.send_signal(signal.SIGKILL)
    wait_for(lambda: not processes_about(folder), 20)
    assert statuses(folder) == {"mean-s1": "done", "mean-s2": "failed"}

    done = shell("train", "-m", *jobs, "seed=1,2", f"resume={folder}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert statuses(folder) == {"mean-s1": "kept", "mean-s2": "done"}
    assert "2 jobs: 1 done, 1 kept" in done.stdout
    assert len(list(folder.rglob("metrics.json"))) == 2
    assert (folder / "comparison" / "comparison.html").exists()

    # A broken job runs again; changed settings are another job, and leave what is there as it is.
    (next(folder.glob("mean-s1-*")) / "predictions.parquet").unlink()
    done = shell("train", "-m", *jobs, "seed=1", "optim.lr=0.02,0.5", f"resume={folder}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(job["status"] for job in sweep.jobs_of(folder).values()) == ["done", "done"]
    assert "it has no predictions.parquet" in done.stdout
    assert "of other settings, left as they are: mean-s2" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_jobs_run_side_by_side_and_a_failed_or_killed_one_stops_nobody(jobs, shell, tmp_path):
    """With the joblib launcher: a job that is wrong, one that is killed, and two that are right, on two GPUs."""
    folder = tmp_path / "sweep"
    command = [sys.executable, "-m", "imdbattn.train", "-m", *jobs, "seed=1,2", "data.tokenizer=ptb,scissors"]
    command += ["hydra/launcher=local", f"hydra.sweep.dir={folder}"]
    env = {**os.environ, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": "0,1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT
    ) as run:
        wait_for(
            lambda: any("seed=2" in Path(f"/proc/{p}/cmdline").read_text() for p in processes_about(folder / "mean-s2"))
        )
        (victim, *_) = processes_about(folder / "mean-s2")
        os.kill(victim, signal.SIGKILL)
        output, _ = run.communicate(timeout=240)
    assert run.returncode == 1, output
    found = sweep.jobs_of(folder)
    assert sorted(job["status"] for job in found.values()) == ["done", "failed", "failed", "failed"], output
    reasons = " ".join(job["reason"] for job in found.values())
    assert "killed by SIGKILL" in reasons
    assert "data.tokenizer=scissors is not known" in reasons
    for job in found.values():
        if job["status"] == "failed":
            assert f"{job['job']}: {job['reason']}" in output.split("4 jobs: ")[1]
    assert (folder / "comparison" / "comparison.html").exists()


def test_each_job_on_one_device_has_a_gpu_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(sweep.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(sweep.HydraConfig, "get", lambda: type("H", (), {"job": type("J", (), {"num": 5})}))
    with sweep.device(1) as first, sweep.device("auto") as second:
        assert [first, second] == [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "7"}]
        with sweep.device(1) as third:  # more jobs than GPUs: shared in turn
            assert third == {"CUDA_VISIBLE_DEVICES": "7"}
        with sweep.device(2) as many:  # DDP takes what it wants
            assert many == {}
    with sweep.device(1) as again:
        assert again == {"CUDA_VISIBLE_DEVICES": "4"}
    assert sweep.slots() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with sweep.device(1) as none:
        assert none == {}
    assert sweep.slots() == sweep.cores()


def test_gpus_are_counted_without_torch(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-1)'\necho 'GPU 1: H200 (UUID: GPU-2)'\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert sweep.gpus() == ["0", "1"]


def test_jobs_run_through_submitit(jobs, shell, tmp_path):
    """Its local mode stands in for SLURM: same pickling, same processes, no queue."""
    folder = tmp_path / "sweep"
    arguments = [
        "-m",
        *jobs,
        "seed=1",
        "optim.lr=0.02,-1",
        "hydra/launcher=submitit_local",
        f"hydra.sweep.dir={folder}",
    ]
    done = shell("train", *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert sorted(job["status"] for job in sweep.jobs_of(folder).values()) == ["done", "failed"]
    assert "optim.lr=-1 must be a number of at least 0" in done.stdout + done.stderr


def test_several_processes_inside_a_sweep_share_one_folder(jobs, shell, tmp_path):
    folder = tmp_path / "sweep"
    arguments = ["-m", *jobs, "trainer=ddp_cpu", "trainer.devices=2,1", f"hydra.sweep.dir={folder}"]
    done = shell("train", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(list(folder.glob("*/metrics.json"))) == 2
    assert not [path for path in tmp_path.iterdir() if path != folder and path.name != "runs"]


def test_resume_wants_a_sweeps_folder(jobs, shell, tmp_path):
    for arguments in (["-m", "seed=1,2"], []):
        done = shell("train", *arguments, *jobs, f"resume={tmp_path}", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("error: resume=")
        assert len(done.stderr.splitlines()) == 1


def test_a_jobs_name_follows_from_its_settings(settings):
    base = settings("model=base")
    same = settings(
        "model=base", "threads=1", "logger=csv", "seed=9", "test=false", "trainer.enable_progress_bar=false"
    )
    assert digest(base) == digest(same)
    assert variant(base) == variant(same)
    for change in ("optim.lr=0.1", "data.tokenizer=whitespace", "model.layers=4", "trainer.precision=bf16-mixed"):
        assert variant(settings("model=base", change)) != variant(base), change
    assert digest(settings("model=base", "data.source=hub")) != digest(base)
