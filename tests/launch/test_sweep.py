"""Sweeps: one job, one folder; no job stops the others, runs twice, or outlives its
sweep.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from imdbattn.data.sources import pairs as pairs_of
from imdbattn.errors import UserError
from imdbattn.launch import job as one_job
from imdbattn.launch import machine, sweep
from imdbattn.launch.hydra_config import quote
from imdbattn.launch.machine import has_plugin
from imdbattn.launch.process import SWEEP_PID
from imdbattn.settings.keys import job_digest, variant
from imdbattn.tracking.settings import TARGET

from ..commands import changed
from ..marks import slow_except
from ..processes import started, wait_for

ROOT = str(Path(__file__).parent.parent)


@pytest.fixture
def jobs(small):
    """Overrides of a sweep whose jobs take a second each."""
    return [
        *(o for o in small if not o.startswith("threads=")),
        "model=mean",
        "trainer.max_epochs=1",
    ]


def statuses(folder: Path) -> dict[str, str]:
    """Rung and seed of each job -> its status in sweep.jsonl."""
    return {name.rsplit("-", 1)[0]: job["status"] for name, job in one_job.jobs_of(folder).items()}


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("launcher", ["basic", "local"])
def test_a_killed_sweep_leaves_no_process_and_resumes_where_it_was(jobs, shell, tmp_path, launcher):
    folder = tmp_path / "sweep"
    jobs = [*jobs, f"hydra/launcher={launcher}"]
    command = [sys.executable, "-m", "imdbattn.train", "-m", *jobs, "seed=1,2"]
    command += ["hydra.launcher.n_jobs=1"] if launcher == "local" else []
    env = {**os.environ, "PYTHONPATH": ROOT}
    with started(
        [*command, f"hydra.sweep.dir={folder}"], cwd=tmp_path, env=env, stdout=subprocess.PIPE
    ) as run:
        wait_for(lambda: (folder / one_job.LOG).exists() and statuses(folder).get("mean-s2"))
        wait_for(
            lambda: any(
                "s2" in Path(f"/proc/{p}/cmdline").read_text() for p in processes_about(folder)
            )
        )
        run.send_signal(signal.SIGKILL)
        wait_for(lambda: not processes_about(folder), 20)
    assert statuses(folder) == {"mean-s1": "done", "mean-s2": "stopped"}

    done = shell("train", "-m", *jobs, "seed=1,2", f"resume={folder}", cwd=tmp_path, real=True)
    assert done.returncode == 0, done.stderr
    assert statuses(folder) == {"mean-s1": "kept", "mean-s2": "done"}
    assert "2 jobs: 1 done, 1 kept" in done.stdout
    assert len(list(folder.rglob("metrics.json"))) == 2
    assert (folder / "comparison" / "comparison.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_jobs_run_in_parallel_and_a_failed_or_killed_one_does_not_stop_the_others(
    jobs, shell, tmp_path
):
    """With the joblib launcher: a job that is wrong, one that is killed, and two that are right, on
    two GPUs.
    """
    folder = tmp_path / "sweep"
    command = [
        sys.executable,
        "-m",
        "imdbattn.train",
        "-m",
        *jobs,
        "seed=1,2",
        "data.tokenizer=ptb,scissors",
    ]
    command += ["hydra/launcher=local", f"hydra.sweep.dir={folder}"]
    env = {**os.environ, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": "0,1"}
    with started(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT
    ) as run:
        wait_for(
            lambda: any(
                "seed=2" in Path(f"/proc/{p}/cmdline").read_text()
                for p in processes_about(folder / "mean-s2")
            )
        )
        (victim, *_) = processes_about(folder / "mean-s2")
        os.kill(victim, signal.SIGKILL)
        output, _ = run.communicate(timeout=240)
    assert run.returncode == 1, output
    found = one_job.jobs_of(folder)
    assert sorted(job["status"] for job in found.values()) == [
        "done",
        "failed",
        "failed",
        "failed",
    ], output
    reasons = " ".join(job["reason"] for job in found.values())
    assert "killed by SIGKILL" in reasons
    assert "data.tokenizer=scissors must be 'ptb'" in reasons
    for job in found.values():
        if job["status"] == "failed":
            assert f"{job['job']}: {job['reason']}" in output.split("4 jobs: ")[1]
    assert (folder / "comparison" / "comparison.html").exists()


@pytest.fixture
def job(monkeypatch, tmp_path):
    """Inside the sixth job of a sweep in `tmp_path`."""
    overrides = SimpleNamespace(task=[])
    hydra = SimpleNamespace(
        job=SimpleNamespace(num=5),
        sweep=SimpleNamespace(dir=str(tmp_path)),
        runtime=SimpleNamespace(output_dir=str(tmp_path / "mean-s1-123456")),
        overrides=overrides,
    )
    monkeypatch.setattr(one_job.HydraConfig, "get", lambda: hydra)
    (tmp_path / one_job.LOG).write_text("")
    (tmp_path / "mean-s1-123456").mkdir()
    OmegaConf.save({"hydra": {"overrides": {"task": []}}}, tmp_path / "multirun.yaml")
    return tmp_path


def test_each_job_on_one_device_has_its_own_gpu(monkeypatch, job, settings):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(one_job.tempfile, "gettempdir", lambda: str(job))
    gpu, cpu, many = (settings(f"trainer={name}").trainer for name in ("gpu", "cpu", "ddp"))
    reserved_gpu = partial(one_job.reserved_gpu, number=5)
    with (
        reserved_gpu(gpu) as first,
        reserved_gpu(gpu.model_copy(update={"devices": "auto"})) as second,
    ):
        assert [first, second] == [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "7"}]
        with reserved_gpu(gpu) as third:  # more jobs than GPUs: shared in turn
            assert third == {"CUDA_VISIBLE_DEVICES": "7"}
    for free in (cpu, many, gpu.model_copy(update={"devices": 2})):  # DDP takes what it wants
        with reserved_gpu(free) as chosen:
            assert chosen == {}
    with reserved_gpu(gpu) as again:
        assert again == {"CUDA_VISIBLE_DEVICES": "4"}
    assert machine.slots() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with reserved_gpu(gpu) as none:
        assert none == {}
    assert machine.slots() == machine.cores()


def test_jobs_with_the_same_settings_train_once(job, trained, composed, small, monkeypatch):
    """Also in parallel: the second job waits for the first and returns its accuracy."""
    run, metrics = trained("mean")
    calls = []

    def train(folder, *_):
        calls.append(folder)
        time.sleep(0.5)
        shutil.copytree(run, folder, dirs_exist_ok=True)
        return "done", ""

    monkeypatch.setattr(one_job, "run_child", train)
    cfg = OmegaConf.create(composed(*small, "model=mean", "trainer.max_epochs=20", "patience=null"))
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(one_job.run_job, [cfg, cfg])) == [metrics["val_accuracy"]] * 2
    assert calls == [job / "mean-s1-123456"]
    assert statuses(job) == {"mean-s1": "done"}


@pytest.mark.slow
def test_a_stopped_sweep_lets_its_jobs_save_and_can_be_resumed(jobs, tmp_path):
    """SIGTERM, as from a cluster; the second sweep trains the rest of the epochs only."""
    folder = tmp_path / "sweep"
    command = [sys.executable, "-m", "imdbattn.train", "-m", f"hydra.sweep.dir={folder}", *jobs]
    command += ["trainer.max_epochs=100", "patience=null"]
    pipe = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": ROOT},
        "stdout": subprocess.PIPE,
        "text": True,
    }
    with started(command, **pipe, stderr=subprocess.STDOUT) as run:
        wait_for(lambda: list(folder.glob("*/metrics.csv")))
        run.terminate()
        output, _ = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "stopped with its sweep" in output
    assert list(statuses(folder).values()) == ["stopped"]
    before = len((next(folder.glob("*/metrics.csv"))).read_text().splitlines())
    done = subprocess.run(
        [*command, f"resume={folder}"], **pipe, stderr=subprocess.STDOUT, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "resumes from its last checkpoint" in done.stdout
    assert len((next(folder.glob("*/metrics.csv"))).read_text().splitlines()) > before


def test_two_sweeps_never_share_a_folder_and_each_looks_for_wandb_once(monkeypatch, tmp_path):
    for name, value in {
        SWEEP_PID: "1",
        "WANDB_MODE": "",
        "WANDB_API_KEY": "",
        "NETRC": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sweep.signal, "signal", lambda *_: None)
    data, logger = (
        {"source": "packaged", "path": None},
        {"wandb": {"_target_": TARGET, "mode": None, "timeout": 1}},
    )
    task = {"_target_": "imdbattn.tasks.reviews.task.Reviews"}
    common = {"task": task, "resume": None, "data": data, "logger": logger}
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}, **common})
    report = sweep.SweepReport()
    lock = report.start(config)
    # for the jobs, which print no notice of their own
    assert OmegaConf.load(tmp_path / "multirun.yaml").logger.wandb.mode == "offline"
    assert os.environ["WANDB_MODE"] == ""
    with pytest.raises(UserError, match="belongs to a sweep that is still running"):
        report.start(config)
    lock.release()
    report.start(config).release()


def test_a_sweep_decides_the_source_once_and_passes_it_to_its_jobs(composed, monkeypatch, tmp_path):
    """As a setting, where a job leaves the choice open."""
    monkeypatch.setattr(one_job, "sweep_dir", lambda: tmp_path)
    sweep_config = {
        "data": {"source": "packaged"},
        "logger": {"wandb": {"_target_": TARGET, "mode": "offline"}},
    }
    OmegaConf.save(OmegaConf.create(sweep_config), tmp_path / "multirun.yaml")
    both = ["data.source=packaged", "logger.wandb.mode=offline"]
    assert one_job.decisions(composed()) == both
    settings = one_job.with_overrides(composed(), both)
    assert settings["data"]["source"] == "packaged"
    assert settings["logger"]["wandb"]["mode"] == "offline"
    for words in ("data.source=hub", "data=order_probe", "task=seq2seq", "data.path=mine.csv"):
        assert one_job.decisions(composed(words, "logger=csv")) == [], words


def test_results_and_checkpoints_on_other_data_are_not_used(trained, settings, small, tmp_path):
    folder = shutil.copytree(trained("mean")[0], tmp_path / "run")
    same = settings(*small, "model=mean")
    (tmp_path / "reviews.csv").write_text(
        Path(same.data.path).read_text().replace("film", "movie", 1)
    )
    other = changed(same, {"data.path": str(tmp_path / "reviews.csv")})
    assert [one_job.complete(folder, cfg) for cfg in (same, other)] == [True, False]
    (folder / "metrics.json").unlink()
    assert [one_job.resumable(folder, cfg) for cfg in (same, other)] == [True, False]
    shutil.rmtree(folder / "checkpoints")
    assert not one_job.resumable(folder, same)
    assert not one_job.same_data(settings("data.source=hub"), "packaged", None)
    assert one_job.same_data(settings("data.source=hub"), "hub", None)
    key = pairs_of.find_pair_source(settings("task=seq2seq").data).checksum
    assert not one_job.same_data(settings("task=seq2seq", "data.seed=2"), "reverse", key)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["submitit_local", "ray_cluster"])
def test_jobs_run_on_a_cluster(jobs, shell, tmp_path, launcher):
    """Submitit's local mode stands in for SLURM: same pickling, same processes, no queue. Ray
    starts one here.
    """
    if launcher == "ray_cluster" and not has_plugin("hydra_ray_launcher"):
        pytest.skip("the extra ray lives in an environment of its own")
    folder = tmp_path / "sweep"
    arguments = [
        "-m",
        *jobs,
        "seed=1",
        "optim.lr=0.02,-1",
        f"hydra/launcher={launcher}",
        f"hydra.sweep.dir={folder}",
    ]
    done = shell("train", *arguments, cwd=tmp_path, real=True)
    assert done.returncode == 1, done.stderr
    assert sorted(job["status"] for job in one_job.jobs_of(folder).values()) == ["done", "failed"]
    assert "optim.lr=-1 must be greater than or equal to 0" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["2", "2,1"])
def test_several_processes_inside_a_sweep_share_one_folder_and_one_wandb_run(
    jobs, shell, tmp_path, devices
):
    """Also inside a SLURM task, where Lightning would wait for processes that srun should have
    started.
    """
    folder = tmp_path / "sweep"
    arguments = ["-m", *jobs, "trainer=ddp_cpu", f"trainer.devices={devices}", "logger=wandb"]
    arguments += [f"hydra.sweep.dir={folder}"]
    task = {
        "JOB_ID": "7",
        "JOB_NAME": "submitit",
        "NTASKS": "1",
        "NTASKS_PER_NODE": "1",
        "NNODES": "1",
    }
    task |= {"PROCID": "0", "LOCALID": "0", "NODEID": "0", "NODELIST": "localhost"}
    done = shell(
        "train",
        *arguments,
        cwd=tmp_path,
        env={f"SLURM_{name}": value for name, value in task.items()},
        real=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = {
        str(OmegaConf.load(path).trainer.devices): path.parent
        for path in folder.glob("*/config.yaml")
    }
    assert set(found) == set(devices.split(","))
    for job in found.values():
        assert (job / "metrics.json").exists()
        assert len(list(job.glob("wandb/offline-run-*"))) == 1
    assert len(list(folder.glob("**/offline-run-*"))) == len(found) + 1, (
        "one more for the comparison"
    )
    assert not [path for path in tmp_path.iterdir() if path != folder and path.name != "runs"]


@pytest.mark.parametrize("name", slow_except(["it's 1, 2"], ["sweep", "my sweep", "it's 1, 2"]))
def test_the_end_of_a_failed_sweep_says_how_to_resume_it(jobs, shell, tmp_path, name):
    words = ["-m", *jobs, "optim.lr=-1"]
    folder = quote(f"hydra.sweep.dir={name}", ["hydra.sweep.dir"])
    done = shell("train", *words, folder, cwd=tmp_path, real=True)
    assert done.returncode == 1, done.stderr
    (resume,) = re.findall(
        "^resume it with:  the same command with (.*)$", done.stdout, re.MULTILINE
    )
    (tmp_path / name / one_job.LOG).write_text("")
    done = shell("train", *words, *shlex.split(resume), cwd=tmp_path, real=True)
    assert done.returncode == 1, done.stderr
    assert list(statuses(tmp_path / name).values()) == ["failed"]


def test_the_name_of_a_job_follows_from_its_settings(composed):
    base = composed("model=base")
    same = composed(
        "model=base",
        "threads=1",
        "logger=csv",
        "seed=9",
        "test=false",
        "trainer.enable_progress_bar=false",
    )
    assert job_digest(base) == job_digest(same)
    assert variant(base) == variant(same)
    for change in (
        "optim.lr=0.1",
        "data.tokenizer=whitespace",
        "model.net.layers=4",
        "trainer.precision=bf16-mixed",
    ):
        assert variant(composed("model=base", change)) != variant(base), change
    assert job_digest(composed("model=base", "data.source=hub")) != job_digest(base)
