"""A search prunes, survives failures and being killed, and scores only the best on test."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from imdbattn.folders.run import Run
from imdbattn.report.finished_runs import find_runs
from imdbattn.settings.keys import defaults
from imdbattn.settings.schema import validate_as
from tests.processes import processes_about, started_command, wait_for

optuna = pytest.importorskip("optuna")

EPOCHS = 30  # of a trial, which take a few seconds


@pytest.fixture
def words(small) -> list[str]:
    """Overrides of a search whose results are in search/."""
    own = [word for word in small if not word.startswith("threads=")]
    own += ["space.optim.lr={low: 1e-4, high: 1e-1, log: true}", "model=base"]
    own += ["model.net.layers=1", f"trainer.max_epochs={EPOCHS}", "patience=null", "seeds=0"]
    return [*own, "hydra.run.dir=search"]


def trials_of(folder: Path) -> list[dict]:
    return json.loads((folder / "search.json").read_text())["trials"]


def epochs_of(folder: Path) -> dict[str, list[int]]:
    """Trial -> the epochs that it has trained, in order."""
    files = sorted(folder.glob("trial-*/metrics.csv"))
    return {file.parent.name: [*Run(file.parent).curves["val/accuracy"]] for file in files}


def has_trained(folder: Path, trials: int) -> bool:
    """Whether the last of so many trials is in the middle."""
    file = folder / f"trial-{trials - 1:03}" / "metrics.csv"
    return file.exists() and len(file.read_text().splitlines()) > 5


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_bad_trials_are_stopped_and_keep_their_state(words, shell, tmp_path, pruner):
    more = ["n_trials=8", f"pruner={pruner}", "startup_trials=1", "warmup_epochs=0"]
    done = shell("search", *words, *more, cwd=tmp_path)
    folder = tmp_path / "search"
    trials = trials_of(folder)
    assert len(trials) == 8
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert pruned
    for trial in trials:
        run = folder / f"trial-{trial['number']:03}"
        assert (run / "metrics.json").exists() == (trial not in pruned)
        assert (run / "checkpoints" / "last.ckpt").exists()
        assert len(epochs_of(folder)[run.name]) == EPOCHS or trial in pruned
    assert all(trial["epochs"] < EPOCHS for trial in pruned)
    assert f"{8 - len(pruned)} finished, {len(pruned)} pruned\n" in done.stdout


@pytest.mark.slow
def test_no_trial_is_stopped_after_its_last_epoch(small, shell, tmp_path):
    """A model of the space has another number of epochs than the model of all trials."""
    own = [word for word in small if not word.startswith(("threads=", "trainer.max_epochs="))]
    own += ["hydra.run.dir=search", "patience=null", "seeds=0", "n_trials=4", "pruner=median"]
    own += ["startup_trials=1", "warmup_epochs=9"]  # model=mean trains for ten epochs
    space = ["space.model=[mean]", "space.optim.lr=[0.1,0.00001]"]
    done = shell("search", *own, *space, cwd=tmp_path)
    assert done.stdout.count("\ndone ") == 4, done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_killed_search_resumes_and_loses_or_repeats_no_trial(words, shell, tmp_path, n_jobs):
    """With one job at a time, its trials are those of a search that was not killed."""
    folder, more = tmp_path / "search", ["n_trials=5", "pruner=none"]
    command = [*words, *more, f"n_jobs={n_jobs}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    for trials, number in ((1, signal.SIGKILL), (3, signal.SIGTERM)):
        with started_command("search", *command, cwd=tmp_path, **pipes) as run:
            wait_for(lambda trials=trials: has_trained(folder, trials))
            run.send_signal(number)
            output, _ = run.communicate(timeout=60)
            wait_for(lambda: not processes_about(folder), 20)
        command = ["resume=search"]
    assert run.returncode == 128 + signal.SIGTERM
    assert "python -m imdbattn.search resume=search" in output
    assert not (folder / "search.json").exists()
    kept = {file: file.stat().st_mtime_ns for file in folder.glob("trial-*/metrics.json")}
    done = shell("search", "resume=search", cwd=tmp_path)
    assert "(resumes)" in done.stdout
    assert epochs_of(folder) == {f"trial-{n:03}": [*range(1, EPOCHS + 1)] for n in range(5)}
    assert kept == {file: file.stat().st_mtime_ns for file in kept}
    if n_jobs == 1:
        shell("search", *words, *more, "hydra.run.dir=whole", cwd=tmp_path)
        assert trials_of(folder) == trials_of(tmp_path / "whole")
    # It can be continued
    shell("search", "resume=search", "n_trials=6", cwd=tmp_path)
    assert Counter(trial["state"] for trial in trials_of(folder)) == {"finished": 6}


@pytest.mark.slow
def test_failed_trials_are_named_and_avoided(words, shell, tmp_path):
    more = ["space.model.net.layer.heads=[1,2,3]", "n_trials=6", "pruner=none"]  # 3 do not divide
    done = shell("search", *words, *more, "trainer.max_epochs=1", cwd=tmp_path)
    trials = trials_of(tmp_path / "search")
    states = Counter(trial["state"] for trial in trials)
    assert states["finished"] == 6
    assert 0 < states["failed"] < 12
    for trial in trials:
        assert (trial["state"] == "failed") == (trial["settings"]["model.net.layer.heads"] == 3)
    assert (done.stdout + done.stderr).count("heads=3 does not divide") >= states["failed"]


WRONG = [
    (["+search=residual", "n_trial=3"], "there is no setting n_trial; the nearest is n_trials"),
    (
        ["space={model.net.layers:{low:1.0,high:3.0}}"],
        "model.net.layers=1.0 must be a valid integer",
    ),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_input_ends_in_one_line_and_writes_nothing(shell, tmp_path, words, message):
    done = shell("search", *words, cwd=tmp_path, status=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


OTHER_PLACE = "logger.tensorboard.save_dir=/elsewhere"


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (["optim._target_=evil.Evil"], "optim._target_=evil.Evil is not trusted: add trust=evil"),
        (["task._target_=evil.Evil"], "task._target_=evil.Evil is not trusted: add trust=evil"),
        (
            ["logger=tensorboard", OTHER_PLACE],
            f"{OTHER_PLACE} may name a place outside of this folder: add trust=lightning\n",
        ),
    ],
)
def test_a_class_and_a_place_that_a_search_folder_names_need_trust(
    shell, own_module, tmp_path, train, message
):
    own_module("evil", "raise SystemExit('its code runs')\n")
    (tmp_path / "search").mkdir()
    own = {"space": {"optim.lr": [0.1]}, "train": ["model=base", *train]}
    (tmp_path / "search" / "search.yaml").write_text(json.dumps(defaults("search") | own))
    done = shell("search", f"resume={tmp_path}/search", cwd=tmp_path, status=2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr


def test_a_search_is_resumed_from_any_folder_with_the_settings_of_its_trials(
    words, world, shell, tmp_path
):
    reviews = shutil.copy(world / "reviews.csv", tmp_path / "my reviews.csv")
    own = [word for word in words if not word.startswith("data.path=")]
    own += ["data.path='${oc.env:IMDBATTN_NAME} reviews.csv'"]
    more = ["n_trials=1", "trainer.max_epochs=1"]
    shell("search", *own, *more, cwd=tmp_path, env={"IMDBATTN_NAME": "my"})
    (tmp_path / "inner").mkdir()
    resume = ["resume=../search", "n_trials=2"]
    shell("search", *resume, cwd=tmp_path / "inner")
    runs = map(Run, tmp_path.glob("search/trial-*"))
    assert [run.trusted_settings["data"]["path"] for run in runs] == 2 * [str(reviews)]

    file = tmp_path / "search" / "search.yaml"
    file.write_text(file.read_text().replace("layers=1", "layers=2"))
    done = shell("search", *resume, cwd=tmp_path / "inner", status=2)
    assert "has another `train` or `seed` than the trials of this search" in done.stderr


def test_the_seed_of_a_search_decides_its_trials(tmp_path):
    from imdbattn.tools.search.trials import SearchSettings, Trials, check_space, optuna

    def first(seed: int) -> dict:
        own = {"space": {"optim.lr": {"low": 1e-4, "high": 0.1, "log": True}}, "seed": seed}
        options = validate_as(SearchSettings, defaults("search") | own)
        space, settings, _ = check_space(options, tmp_path)
        return Trials(optuna.create_study(), options, space, settings, tmp_path).ask().params

    assert first(1) == first(1) != first(2)


def test_settings_of_all_trials_may_need_those_of_a_trial(tmp_path):
    """The width of vectors may need the file that each trial chooses."""
    from imdbattn.tools.search.trials import SearchSettings, check_space

    own = {"space": {"data.vectors.path": ["a.txt", "b.txt"]}, "train": ["data.vectors.dim=20"]}
    check_space(validate_as(SearchSettings, defaults("search") | own), tmp_path)


def test_no_trial_is_scored_on_test_and_the_best_by_validation_is_named(words, shell, tmp_path):
    more = ["n_trials=3", "trainer.max_epochs=1", "startup_trials=1", "warmup_epochs=0"]
    done = shell("search", *words, *more, cwd=tmp_path)
    runs = [Run(folder) for folder in sorted((tmp_path / "search").glob("trial-*"))]
    assert not any("test_accuracy" in run.metrics for run in runs)
    trials = trials_of(tmp_path / "search")
    assert {trial["state"] for trial in trials} == {"finished"}, "pruned after its last epoch"
    best = max(trials, key=lambda trial: trial["values"][0])
    accuracies = [run.metrics["val_accuracy"] for run in runs]
    assert best["values"] == [accuracies[best["number"]]] == [max(accuracies)]
    assert f"optim.lr={best['settings']['optim.lr']:.4g}" in done.stdout.splitlines()[-1]
    rates = [run.trusted_settings["optim"]["lr"] for run in runs]
    assert [trial["settings"]["optim.lr"] for trial in trials] == rates


@pytest.mark.slow
def test_the_pruner_sees_the_last_validation_of_each_epoch(words, shell, tmp_path):
    slow = "import time\n\ndef slow(labels, probabilities):\n    time.sleep(0.5)\n    return 1\n"
    (tmp_path / "metric.py").write_text(slow)  # the search looks at a trial within each epoch
    more = ["n_trials=1", "trainer.max_epochs=3", "trainer.val_check_interval=0.5"]
    shell("search", *words, *more, "choose_by=metric.slow", cwd=tmp_path)
    journal = optuna.storages.journal.JournalFileBackend(str(tmp_path / "search/journal.log"))
    storage = optuna.storages.JournalStorage(journal)
    (trial,) = optuna.load_study(study_name="search", storage=storage).trials
    curve = Run(tmp_path / "search" / "trial-000").curves["val/accuracy"]
    assert trial.intermediate_values == curve


@pytest.mark.slow
def test_the_command_of_the_best_settings_gives_the_same_numbers_again(shell, small, tmp_path):
    words = [word for word in small if not word.startswith("threads=")]
    words += ["+search=residual", "model.net.layers=1", "trainer.max_epochs=1"]
    words += ["n_trials=2", "seeds=1", "pruner=none"]
    done = shell("search", *words, cwd=tmp_path)
    (folder,) = tmp_path.glob("runs/*/*-search")
    trials = [json.loads(file.read_text()) for file in folder.glob("trial-00?/metrics.json")]
    (best,) = folder.glob("best/residual-s1-*/metrics.json")
    metrics = json.loads(best.read_text())
    assert metrics["val_accuracy"] == max(metrics["val_accuracy"] for metrics in trials)
    *_, last = done.stdout.splitlines()
    assert f" {100 * metrics['test_accuracy']:.1f} % (seeds: 1) with: python -m" in last
    words = shlex.split(last.partition("imdbattn.train ")[2])
    shell("train", *words, "hydra.run.dir=again", cwd=tmp_path)
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
