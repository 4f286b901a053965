"""A search prunes, survives failures and being killed, and scores only the best on test."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from imdbattn.report.finished_runs import find_runs
from imdbattn.settings.keys import defaults
from tests.commands import run_process
from tests.processes import environment, processes_about, started, wait_for

pytest.importorskip("optuna")

WORDS = ["space.optim.lr={low: 1e-4, high: 1e-1, log: true}", "space={model.net.layers:[1,2,3]}"]
WORDS += ["model=base", "data.source=packaged", "trainer.max_epochs=4", "seeds=0"]


@pytest.fixture
def search(tmp_path):
    """search(words...): a search whose trials train nothing, of tests/stand_in.py."""

    def run(
        *words: str, folder: Path = tmp_path / "search", **more: str
    ) -> subprocess.CompletedProcess:
        resumed = any(word.startswith("resume=") for word in words)
        arguments = words if resumed else (*WORDS, f"hydra.run.dir={folder}", *words)
        return run_process(["-m", "tests.stand_in", *arguments], tmp_path, environment(more))

    return run


def trials_of(folder: Path) -> list[dict]:
    return json.loads((folder / "search.json").read_text())["trials"]


def epochs_of(folder: Path) -> dict[str, list[int]]:
    """Trial -> the epochs that it trained, in order."""
    epochs: dict[str, list[int]] = {}
    for line in (folder / "trained.log").read_text().splitlines():
        epochs.setdefault(line.split()[0], []).append(int(line.split()[1]))
    return epochs


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_bad_trials_are_stopped_and_keep_their_state(search, tmp_path, pruner):
    folder = tmp_path / "search"
    words = ["n_trials=8", f"pruner={pruner}", "startup_trials=1", "warmup_epochs=0"]
    done = search(*words, IMDBATTN_TEST_PAUSE="0.15")
    assert done.returncode == 0, done.stderr
    trials = trials_of(folder)
    assert len(trials) == 8
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert pruned
    for trial in trials:
        name = f"trial-{trial['number']:03}"
        run = folder / name
        assert run.is_dir()
        assert (run / "metrics.json").exists() == (trial not in pruned)
        assert (run / "checkpoints" / "last.ckpt").exists()
        assert len(epochs_of(folder)[name]) == 4 or trial in pruned
    assert all(trial["epochs"] < 4 for trial in pruned)
    assert f"{8 - len(pruned)} finished, {len(pruned)} pruned\n" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("n_jobs", "kills"), [(1, 2), (2, 2)])
def test_a_killed_search_resumes_and_loses_or_repeats_no_trial(search, tmp_path, n_jobs, kills):
    """With one job at a time, its trials are those of a search that was not killed."""
    folder, pause = tmp_path / "search", {"IMDBATTN_TEST_PAUSE": "0.25"}
    command = [sys.executable, "-m", "tests.stand_in"]
    words = [*WORDS, "n_trials=5", f"n_jobs={n_jobs}", "pruner=none", f"hydra.run.dir={folder}"]
    for _ in range(kills):
        before = len(epochs_of(folder)) if folder.exists() else 0
        pipe = {"cwd": tmp_path, "env": environment(pause), "stdout": subprocess.PIPE}
        with started([*command, *words], **pipe) as run:
            wait_for(lambda: (folder / "trained.log").exists() and len(epochs_of(folder)) > before)  # noqa: B023
            time.sleep(0.1)
            run.send_signal(signal.SIGKILL)
            wait_for(lambda: not processes_about(folder), 20)
        words = [f"resume={folder}"]
    assert not (folder / "search.json").exists()
    done = search(f"resume={folder}")
    assert done.returncode == 0, done.stderr
    assert "(resumes)" in done.stdout
    assert epochs_of(folder) == {f"trial-{number:03}": [1, 2, 3, 4] for number in range(5)}
    if n_jobs == 1:
        assert search("n_trials=5", "pruner=none", folder=tmp_path / "whole").returncode == 0
        assert trials_of(folder) == trials_of(tmp_path / "whole")
        assert search("n_trials=1", "seed=2", folder=tmp_path / "other").returncode == 0
        assert trials_of(tmp_path / "other")[0]["settings"] != trials_of(folder)[0]["settings"]
    # It can be continued
    assert search(f"resume={folder}", "n_trials=6").returncode == 0
    assert Counter(trial["state"] for trial in trials_of(folder)) == {"finished": 6}
    assert set(map(tuple, epochs_of(folder).values())) == {(1, 2, 3, 4)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_stopped_search_lets_its_trials_save_and_can_be_resumed(search, tmp_path):
    folder = tmp_path / "search"
    command = [sys.executable, "-m", "tests.stand_in", *WORDS, "n_trials=3", "n_jobs=2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = environment({"IMDBATTN_TEST_PAUSE": "0.5"})
    with started([*command, f"hydra.run.dir={folder}"], cwd=tmp_path, env=env, **pipes) as run:
        wait_for(lambda: (folder / "trained.log").exists())
        run.terminate()
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
    assert f"python -m imdbattn.search resume={folder.name}" in output
    assert not processes_about(folder)
    assert search(f"resume={folder}").returncode == 0
    assert epochs_of(folder) == {f"trial-{number:03}": [1, 2, 3, 4] for number in range(3)}


@pytest.mark.slow
def test_failed_trials_are_named_and_avoided(search, tmp_path):
    folder = tmp_path / "search"
    done = search("space.model.net.layers=[1,2,4]", "n_trials=6", "pruner=none")  # four layers fail
    assert done.returncode == 0, done.stderr
    states = Counter(trial["state"] for trial in trials_of(folder))
    assert states["finished"] == 6
    assert 0 < states["failed"] < 12
    for trial in trials_of(folder):
        assert (trial["state"] == "failed") == (trial["settings"]["model.net.layers"] == 4)
    assert done.stdout.count(": out of memory (see ") == states["failed"]


WRONG = [
    (["+search=residual", "n_trial=3"], "there is no setting n_trial; the nearest is n_trials"),
    (
        ["space={model.net.layers:{low:1.0,high:3.0}}"],
        "model.net.layers=1.0 must be a valid integer",
    ),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_input_ends_in_one_line_and_writes_nothing(shell, tmp_path, words, message):
    done = shell("search", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"error: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_class_that_a_search_folder_names_needs_trust(shell, tmp_path):
    folder = tmp_path / "search"
    folder.mkdir()
    own = {"space": {"optim.lr": [0.1]}, "train": ["model=base", "optim._target_=mypkg.Evil"]}
    (folder / "search.yaml").write_text(json.dumps(defaults("search") | own))
    done = shell("search", f"resume={folder}", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "optim._target_=mypkg.Evil is outside imdbattn: add trust=mypkg" in done.stderr


def test_only_the_seeds_of_the_best_settings_are_scored_on_test(search, tmp_path):
    folder = tmp_path / "search"
    done = search("n_trials=2", "pruner=none", "seeds=2")
    assert done.returncode == 0, done.stderr
    trials = [json.loads(file.read_text()) for file in sorted(folder.glob("trial-*/metrics.json"))]
    assert len(trials) == 2
    assert not any("test_accuracy" in metrics for metrics in trials)
    best = max(trials_of(folder), key=lambda trial: trial["values"][0])["settings"]
    for file in (folder / "best").glob("base-s*/metrics.json"):
        settings = json.loads(file.read_text())["settings"]
        assert "test" not in settings
        assert (settings["model"], settings["seed"]) == ("base", "1,2")
        assert int(settings["model.net.layers"]) == best["model.net.layers"]
        assert float(settings["optim.lr"]) == pytest.approx(best["optim.lr"], rel=1e-3)
    assert json.loads((folder / "search.json").read_text())["test_accuracies"] == [0.5, 0.5]


@pytest.mark.slow
def test_the_command_of_the_best_settings_gives_the_same_numbers_again(shell, small, tmp_path):
    words = [word for word in small if not word.startswith("threads=")]
    words += ["+search=residual", "model.net.layers=1", "trainer.max_epochs=1"]
    words += ["n_trials=2", "seeds=1", "pruner=none"]
    done = shell("search", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/*/*-search")
    trials = [json.loads(file.read_text()) for file in folder.glob("trial-00?/metrics.json")]
    assert not any("test_accuracy" in metrics for metrics in trials)
    assert not list(folder.glob("trial-*/predictions.parquet"))
    (best,) = folder.glob("best/residual-s1-*/metrics.json")
    metrics = json.loads(best.read_text())
    assert metrics["val_accuracy"] == max(metrics["val_accuracy"] for metrics in trials)
    *_, last = done.stdout.splitlines()
    assert f" {100 * metrics['test_accuracy']:.1f} % (seeds: 1) with: python -m" in last
    words = shlex.split(last.partition("imdbattn.train ")[2])
    again = shell("train", *words, "hydra.run.dir=again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    repeated = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert repeated["test_accuracy"] == metrics["test_accuracy"]
    assert repeated["val_loss"] == metrics["val_loss"]


def test_a_comparison_of_a_folder_omits_the_trials_in_it(trained, tmp_path):
    for name in ("trial-000", "best/mean-s1"):
        shutil.copytree(trained("mean")[0], tmp_path / "search" / name)
    (tmp_path / "search" / "search.yaml").touch()
    runs, skipped = find_runs([tmp_path])
    assert ([run.folder.name for run in runs], skipped) == (["mean-s1"], [])
    assert find_runs([tmp_path / "search" / "trial-000"])[0]
