"""Each job of a sweep has one folder, stops no other, and does not outlive its sweep."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.folders.run_folder import SWEEP_LOG
from imdbattn.launch import fork, machine, sweep
from imdbattn.launch.composition import composed as composed_by_commands
from imdbattn.launch.job import ended_jobs, has_current_results, resumable
from tests.commands import changed
from tests.processes import processes_about, started_command, wait_for

PIPE = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
LONG = ("trainer.max_epochs=60", "patience=null")


@pytest.fixture
def jobs(small):
    """Overrides of a sweep whose jobs take a second each."""
    own = [word for word in small if not word.startswith("threads=")]
    return [*own, "model=mean", "trainer.max_epochs=1"]


def statuses(folder: Path) -> dict[str, str]:
    """Rung and seed of each job -> its status in sweep.jsonl."""
    return {name.rsplit("-", 1)[0]: job["status"] for name, job in ended_jobs(folder).items()}


def processes_in(folder: str) -> list[int]:
    """Processes of runs whose folder begins so: their standard error goes into it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(entry / "fd" / "2").startswith(folder):
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("side_by_side", "number"),
    [(1, signal.SIGKILL), (2, signal.SIGKILL), (1, signal.SIGTERM)],
)
def test_a_killed_sweep_leaves_no_process_and_resumes_where_it_was(
    jobs, shell, tmp_path, side_by_side, number
):
    """The sweep is the process whose forks its jobs are. After SIGTERM, as from a cluster, they
    save their state.
    """
    folder = tmp_path / "sweep"
    jobs = [*jobs, *LONG, f"hydra.launcher.n_jobs={side_by_side}"]
    words = ["-m", *jobs, "seed=1,2", f"hydra.sweep.dir={folder}"]
    with started_command("train", *words, cwd=tmp_path, **PIPE) as run:
        wait_for(lambda: len(list(folder.glob(f"mean-s{side_by_side}*/checkpoints/last.ckpt"))))
        run.send_signal(number)
        output, _ = run.communicate(timeout=60)
        wait_for(lambda: not processes_about(folder), 20)
    assert run.returncode != 0
    assert ("stopped with its sweep" in output) == (number == signal.SIGTERM)
    assert (statuses(folder) == {"mean-s1": "stopped"}) == (number == signal.SIGTERM)
    before = [name for name, status in statuses(folder).items() if status == "done"]
    assert len(before) < 2, "it was not killed in the middle"

    shell("train", "-m", *jobs, "seed=1,2", f"resume={folder}", cwd=tmp_path, real=True)
    kept = dict.fromkeys(before, "kept")
    assert statuses(folder) == {"mean-s1": "done", "mean-s2": "done"} | kept
    assert len(list(folder.rglob("metrics.json"))) == 2
    assert (folder / "comparison" / "comparison.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_job_that_fails_or_is_killed_does_not_stop_the_others(jobs, tmp_path):
    """Two are wrong, one is killed, and one is right."""
    folder = tmp_path / "sweep"
    words = ["-m", *jobs, *LONG, "seed=1,2", "data.tokenizer=ptb,scissors"]
    words += ["hydra.launcher.n_jobs=2", f"hydra.sweep.dir={folder}"]
    with started_command("train", *words, cwd=tmp_path, **PIPE) as run:
        wait_for(lambda: processes_in(f"{folder}/mean-s2"))
        (victim,) = processes_in(f"{folder}/mean-s2")
        os.kill(victim, signal.SIGKILL)
        output, _ = run.communicate(timeout=240)
    assert run.returncode == 1, output
    found = ended_jobs(folder)
    assert Counter(job["status"] for job in found.values()) == {"done": 1, "failed": 3}, output
    reasons = " ".join(job["reason"] for job in found.values())
    assert "killed by SIGKILL" in reasons
    assert "data.tokenizer=scissors must be 'ptb'" in reasons
    for job in found.values():
        if job["status"] == "failed":
            assert f"{job['job']}: {job['reason']}" in output.split("4 jobs: ")[1]
    assert (folder / "comparison" / "comparison.html").exists()


def test_jobs_are_dealt_out_to_gpus_train_once_and_compute_what_single_runs_compute(
    jobs, shell, tmp_path
):
    """Also with several threads, which a fork of a process that has used them would wait for.

    CUDA_VISIBLE_DEVICES stands in for two GPUs, which do not exist: the jobs use the CPU.
    """
    jobs = [*jobs, "threads=2", "trainer=default"]
    jobs += ["trainer.enable_progress_bar=false"]
    words = [*jobs, "seed=1,2,2", "hydra/launcher=local", "hydra.launcher.n_jobs=3"]
    words += ["hydra.sweep.dir=sweep"]
    gpus = {"CUDA_VISIBLE_DEVICES": "4,7"}
    done = shell("train", "-m", *words, cwd=tmp_path, env=gpus, real=True)
    assert "3 jobs side by side on GPU 4, 7" in done.stdout
    environments = (tmp_path / "sweep").glob("mean-s*/environment.json")
    visible = Counter(json.loads(file.read_text())["visible_devices"] for file in environments)
    assert visible == {"4": 1, "7": 1}
    lines = [line.split()[0] for line in done.stdout.splitlines() if "mean-s2-" in line]
    assert lines == ["done", "kept"]
    shell("train", *jobs, "seed=2", "hydra.run.dir=alone", cwd=tmp_path)
    (job,) = tmp_path.glob("sweep/mean-s2-*")
    for name in ("predictions.parquet", "config.yaml"):
        assert (job / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "visible", "jobs"),
    [
        (["trainer=cpu"], "0", 16),
        (["trainer=gpu"], "", 16),
        (["trainer=gpu"], "-1", 16),
        (["trainer=gpu"], "0", 12),
        (["trainer=gpu"], "0,1,2", 12),
        (["trainer=gpu", "model.net.width=512", "model.net.layers=6"], "0,1,2", 3),
        (["trainer=ddp"], "0,1,2", 1),
        (["trainer=gpu", "trainer.devices=[1]"], "0,1,2", 1),
    ],
)
def test_a_gpu_takes_twelve_small_jobs_or_a_large_one(settings, monkeypatch, words, visible, jobs):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(machine, "cores", lambda: 16)
    cfg = settings("model=residual_pe", *words)
    gpus = machine.gpus_for(cfg)
    assert machine.jobs_side_by_side(cfg, gpus) == jobs
    # a job that names its device must see all of them
    assert gpus == [] or cfg.trainer.devices == 1


def test_jobs_fit_into_the_memory_of_the_smallest_of_their_gpus(settings, monkeypatch, tmp_path):
    """A script stands in for nvidia-smi."""
    script = "#!/bin/sh\ncase $3 in --id=0) echo 81559;; *) echo 81559; echo 8188; esac\n"
    (tmp_path / "nvidia-smi").write_text(script)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "cores", lambda: 64)
    cfg = settings("model=residual_pe", "trainer=gpu")
    assert machine.gpus_for(cfg) == ["0", "1"]
    assert machine.jobs_side_by_side(cfg, ["0", "1"]) == 12
    assert machine.jobs_side_by_side(cfg, ["0"]) == 12


def test_forks_do_not_share_random_numbers(tmp_path):
    def draw() -> None:
        os.write(1, f"{random.random()} {np.random.random()} ".encode())

    np.random.random()  # which makes the state that forks would share
    np.random.random()  # numpy makes its random state when it is first used
    processes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        processes.append(fork.start_fork(draw, os.environ, tmp_path / name))
    for process in processes:
        process.join()
    drawn = "".join((tmp_path / name / fork.CONSOLE_FILE).read_text() for name in ("one", "two"))
    assert len(set(drawn.split())) == 4, drawn


def test_two_sweeps_never_share_a_folder(tmp_path):
    words = ["model=mean", "data.source=packaged", f"hydra.sweep.dir={tmp_path}"]
    config = composed_by_commands("train", words)
    lock = sweep.prepare_folder(config)
    with pytest.raises(UserError, match="belongs to a sweep that is still running"):
        sweep.prepare_folder(config)
    lock.release()
    sweep.prepare_folder(config).release()


def test_a_sweep_is_not_resumed_without_its_settings(tmp_path):
    for name in (SWEEP_LOG, "multirun.yaml"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="resume it with the settings of its command"):
        sweep.prepare_folder(composed_by_commands("train", [f"resume={tmp_path}"]))


def test_a_job_has_the_same_folder_where_its_data_are_typed_from_another_directory(
    monkeypatch, tmp_path
):
    """A sweep that is resumed from there keeps its results."""
    (tmp_path / "inner").mkdir()
    names = []
    for folder, path in ((tmp_path, "r.csv"), (tmp_path / "inner", "../r.csv")):
        monkeypatch.chdir(folder)
        names.append(composed_by_commands("train", [f"data.path={path}"]).hydra.sweep.subdir)
    assert names[0] == names[1]


def test_results_and_checkpoints_on_other_data_are_not_used(trained, settings, small, tmp_path):
    folder = shutil.copytree(trained("mean")[0], tmp_path / "run")
    same = settings(*small, "model=mean")
    (tmp_path / "reviews.csv").write_text(
        Path(same.data.path).read_text().replace("film", "movie", 1)
    )
    other = changed(same, {"data.path": str(tmp_path / "reviews.csv")})
    assert [has_current_results(folder, cfg) for cfg in (same, other)] == [True, False]
    (folder / "metrics.json").unlink()
    assert [resumable(folder, cfg) for cfg in (same, other)] == [True, False]
    shutil.rmtree(folder / "checkpoints")
    assert not resumable(folder, same)


@pytest.mark.parametrize("setting", ["data.extra", "data.vectors.path", "init"])
def test_results_are_not_used_after_a_file_that_they_depend_on_has_changed(
    trained, settings, small, tmp_path, setting
):
    folder = trained("mean")[0]
    other = tmp_path / "other" / "checkpoints" / "best.ckpt"
    other.parent.mkdir(parents=True)
    other.touch()
    path = tmp_path / "other" if setting == "init" else other
    job = changed(settings(*small, "model=mean"), {setting: str(path)})
    assert not has_current_results(folder, job)
    before = (folder / "environment.json").stat().st_mtime - 1
    os.utime(other, (before, before))
    assert has_current_results(folder, job)
    other.unlink()
    assert not has_current_results(folder, job)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["submitit_local", "ray_cluster"])
def test_jobs_run_on_a_cluster(jobs, shell, tmp_path, launcher):
    """Submitit's local mode stands in for SLURM: same pickling and processes, no queue."""
    if launcher == "ray_cluster":  # the extra ray lives in an environment of its own
        pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    folder = tmp_path / "sweep"
    arguments = ["-m", *jobs, "seed=1", "optim.lr=0.02,-1"]
    arguments += [f"hydra/launcher={launcher}", f"hydra.sweep.dir={folder}"]
    done = shell("train", *arguments, cwd=tmp_path, real=True, status=1)
    assert sorted(job["status"] for job in ended_jobs(folder).values()) == ["done", "failed"]
    assert "optim.lr=-1 must be greater than or equal to 0" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["2", "2,1"])
def test_several_processes_inside_a_sweep_share_one_folder_and_one_wandb_run(
    jobs, shell, tmp_path, devices
):
    """Also inside a SLURM task, where Lightning would wait for processes of srun."""
    folder = tmp_path / "sweep"
    arguments = ["-m", *jobs, "trainer=ddp_cpu", f"trainer.devices={devices}", "logger=wandb"]
    arguments += [f"hydra.sweep.dir={folder}"]
    task = dict.fromkeys(("NTASKS", "NTASKS_PER_NODE", "NNODES"), "1")
    task |= dict.fromkeys(("PROCID", "LOCALID", "NODEID"), "0")
    task |= {"JOB_ID": "7", "JOB_NAME": "submitit", "NODELIST": "localhost"}
    env = {f"SLURM_{name}": value for name, value in task.items()}
    shell("train", *arguments, cwd=tmp_path, env=env, real=True)
    configs = list(folder.glob("*/config.yaml"))
    found = {str(OmegaConf.load(file).trainer.devices) for file in configs}
    assert found == set(devices.split(","))
    for file in configs:
        assert (file.parent / "metrics.json").exists()
        assert len(list(file.parent.glob("wandb/offline-run-*"))) == 1
    # one more for the comparison
    assert len(list(folder.glob("**/offline-run-*"))) == len(found) + 1
    assert not [path for path in tmp_path.iterdir() if path != folder and path.name != "runs"]


@pytest.mark.slow
def test_the_end_of_a_failed_sweep_says_how_to_resume_it(jobs, shell, tmp_path):
    name = "it's 1, 2"
    words = ["-m", *jobs, "optim.lr=-1,-2"]
    done = shell("train", *words, f"hydra.sweep.dir={name}", cwd=tmp_path, real=True, status=1)
    assert "2 jobs: 2 failed" in done.stdout
    (resume,) = re.findall(
        "^to resume it, repeat the command and add (.*)$", done.stdout, re.MULTILINE
    )
    (tmp_path / name / SWEEP_LOG).write_text("")
    shell("train", *words, *shlex.split(resume), cwd=tmp_path, real=True, status=1)
    assert list(statuses(tmp_path / name).values()) == ["failed"]


@pytest.mark.slow
def test_a_comma_separates_paths_in_a_sweep_without_an_option(small, shell, tmp_path):
    own = [word for word in small if not word.startswith("data.path=")]
    words = [*own, "model=mean", "seed=1"]
    ladder = ["experiment=ladder", *words, "hydra.sweep.dir=one"]
    one = shell("train", *ladder, "data.path=no (1).csv", cwd=tmp_path, status=2)
    assert "No such file or directory: 'no (1).csv'" in one.stderr
    for number, start in enumerate(("experiment=ladder", "hydra.mode=MULTIRUN")):
        more = ["data.path=no.csv,none.csv", f"hydra.sweep.dir={number}"]
        shell("train", start, *words, *more, cwd=tmp_path, status=1)
        assert len(ended_jobs(tmp_path / str(number))) == 2
