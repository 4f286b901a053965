"""Input is refused before anything is deleted or written."""

import shutil

import pytest

from imdbattn.runs.fit import fit
from tests.resuming import contents


def test_a_command_that_is_refused_leaves_a_finished_run_as_it_is(trained, shell, small, tmp_path):
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    before = contents(run)
    done = shell("train", *small, "model=residual", "seed=7", f"hydra.run.dir={run}", status=2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert "contains a finished run, which is not replaced" in done.stderr
    assert contents(run) == before


def test_a_failed_resume_leaves_no_folder_where_none_was(shell, tmp_path):
    for folder in ("absent", "absent/deep"):
        done = shell("train", f"resume={folder}", cwd=tmp_path, status=2)
        assert done.stderr.count("\n") == 1, done.stderr
        assert "it has no config.yaml" in done.stderr
        assert not [*tmp_path.rglob("*")]


@pytest.mark.parametrize(
    "words",
    [
        "resume=mine/empty",
        "hydra.run.dir=mine/../mine/empty/new data.path=absent",
        "--config-dir conf experiment=here data.path=absent",
    ],
)
def test_a_command_that_fails_removes_no_folder_that_was_there(shell, tmp_path, words):
    (tmp_path / "mine" / "empty").mkdir(parents=True)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    here = "# @package _global_\nhydra: {run: {dir: mine/empty}}\n"
    (tmp_path / "conf" / "experiment" / "here.yaml").write_text(here)
    shell("train", *words.split(), cwd=tmp_path, status=2)
    assert [*(tmp_path / "mine").rglob("*")] == [tmp_path / "mine" / "empty"]


@pytest.mark.slow
def test_a_sweep_that_is_refused_leaves_a_finished_one_as_it_is(shell, small, tmp_path):
    words = [*small, "trainer.max_epochs=1", "hydra.sweep.dir=sweep"]
    shell("train", "-m", *words, "model=mean", "seed=1", cwd=tmp_path)
    before = contents(tmp_path / "sweep")
    for refused in (("model=mean,nonsense", "seed=1"), ("model=mean", "seed=range(3,3)")):
        shell("train", "-m", *words, *refused, cwd=tmp_path, status=2)
        after = contents(tmp_path / "sweep")
        own = {".lock", "sweep.jsonl", "multirun.yaml"}  # of the last command
        assert before.keys() | own == after.keys() | own
        assert all(after[name] == before[name] for name in before.keys() - own)


@pytest.mark.parametrize("name", ["sweep.jsonl", "multirun.yaml"])
def test_a_sweep_into_a_folder_with_files_of_the_user_is_refused(shell, small, tmp_path, name):
    (tmp_path / name).write_text("mine\n")
    done = shell(
        "train", "-m", *small, "model=mean", "seed=1,2", "hydra.sweep.dir=.", cwd=tmp_path, status=2
    )
    assert done.stderr.count("\n") == 1, done.stderr
    assert name in done.stderr
    assert contents(tmp_path) == {name: b"mine\n"}


@pytest.mark.parametrize("name", ["config.yaml", "reviews.csv"])
def test_a_folder_with_files_of_the_user_is_refused(shell, small, tmp_path, name):
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    # of a program like ours, or copied from a run
    theirs = "task: a\ndata: b\nmodel: c\noptim: d\ntrainer: e\nseed: 1\n"
    file.write_text(theirs)
    done = shell("train", *small, "model=mean", "hydra.run.dir=.", cwd=tmp_path / "mine", status=2)
    assert (
        done.stderr == "error: . contains files other than a run's: choose another hydra.run.dir\n"
    )
    assert contents(tmp_path / "mine") == {name: theirs.encode()}


def test_a_run_that_was_killed_when_it_began_is_replaced(trained, settings, small, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copy(trained("mean")[0] / "environment.json", tmp_path / "run")
    (tmp_path / "run" / "console.log").write_text("")
    fit(settings(*small, "model=mean", "trainer.max_epochs=1"), tmp_path / "run")


def test_a_table_that_is_edited_in_a_run_folder_changes_no_other(small, settings, tmp_path):
    words = (*small, "model=mean", "trainer.max_epochs=1")
    for name in ("edited", "other"):
        fit(settings(*words), tmp_path / name)
    before = contents(tmp_path / "other")
    (tmp_path / "edited" / "reviews.parquet").write_text("mine")
    assert contents(tmp_path / "other") == before
    fit(settings(*words), tmp_path / "new")  # the cache is not damaged


def test_temporary_files_of_the_user_in_a_run_folder_are_kept(trained, settings, small, tmp_path):
    run = shutil.copytree(trained("mean")[0], tmp_path / "run")
    (run / "metrics.json").unlink()
    (run / "thesis.tmp").write_text("mine")
    (run / "metrics.json.0a1b2c3d.tmp").write_text("half")
    fit(settings(*small, "model=mean", "trainer.max_epochs=1"), run)
    assert (run / "thesis.tmp").read_text() == "mine"
    assert not (run / "metrics.json.0a1b2c3d.tmp").exists()


def test_a_folder_in_place_of_the_link_to_the_last_run_is_kept_and_named(
    trained, settings, small, tmp_path, monkeypatch, caplog
):
    """Unpacking an archive makes one; runs/latest then remains an older run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained("mean")[0], "runs/latest")
    fit(settings(*small, "model=mean", "trainer.max_epochs=1"), tmp_path / "runs" / "new")
    assert "runs/latest does not name this run" in caplog.text
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"latest", "new"}


def test_a_debug_run_is_not_a_result(trained, shell, small, tmp_path):
    old = shutil.copytree(trained("mean")[0], tmp_path / "runs" / "old")
    (tmp_path / "runs" / "latest").symlink_to("old")
    words = [*small, "model=mean", "debug=fast", "trainer.max_epochs=2", "hydra.run.dir=runs/new"]
    done = shell("train", *words, cwd=tmp_path)
    assert "test accuracy" not in done.stdout
    assert "the numbers are not results" in done.stdout
    assert (tmp_path / "runs" / "latest").resolve() == old.resolve()
    assert not (tmp_path / "runs" / "new" / "metrics.json").exists()
