"""The commands of README and docs/, which are read from the pages, run."""

import math
import re
import shlex
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from imdbattn.settings.keys import conf_dir, flattened, is_in_groups
from imdbattn.tasks.networks import build_classifier
from tests.documents import (
    COMMANDS,
    EXPERIMENTS,
    LINES,
    PAGES,
    RESUMED,
    SINGLE,
    SWEEPS,
    TEXT,
    choices_of,
    jobs_of,
    shrunk,
    words_of,
)
from tests.marks import slow_except
from tests.nets import vectors
from tests.processes import ROOT


def kind_of(command: str) -> tuple[str, ...]:
    name, *arguments = words_of(command)
    if name == "search":  # which are refused immediately
        return (command,)
    apart = {"--cfg", "debug", "file", "resume", "task"}
    return name, *sorted(apart & {argument.partition("=")[0] for argument in arguments})


# of commands that tests/data runs on data of these forms
FORMS = ("data.hub=", "my_saved_dataset", "mypkg", "chinese", "trust=jieba", "moses", "cmn.txt")
# tests/tools runs these, and tests/launch prints help
ELSEWHERE = ("imdbattn.check", "imdbattn.explore", "--help")
RUN = [line for line in SINGLE if not any(form in line for form in (*FORMS, *ELSEWHERE))]
FIRST = {kind_of(line): line for line in reversed(RUN)}  # of each kind, which always runs


def test_each_command_is_in_the_documents():
    names = "train evaluate predict compare export dashboard search faithfulness explore check"
    assert {words_of(command)[0] for command in COMMANDS} == set(names.split())


class Place:
    """The folder of a user with a finished run, and how commands of the documents run in it."""

    def __init__(self, shell, small: list[str], world: Path, finished: Path, folder: Path):
        self.shell, self.folder = partial(shell, cwd=folder), folder
        self.small, self.world, self.finished = small, world, finished
        (folder / "reviews.txt").write_text("a good film\n")

    def run(self, name: str, *arguments: str, **more: Any) -> None:
        """Runs a command, which must succeed, on the finished run and the small world's reviews."""
        tables = r"(my_reviews|new_reviews|bbc)\.csv"
        words = [re.sub("^run=.*", f"run={self.finished}", word) for word in arguments]
        words = [re.sub(tables, f"{self.world}/reviews.csv", word) for word in words]
        self.shell(name, *words, **more)


def train(place: Place, *arguments: str) -> None:
    """Trains on little data, or resumes the run that is finished."""
    if arguments == ("resume=runs/latest",):
        done = place.shell("train", f"resume={place.finished}")
        assert "This run is already finished" in done.stdout, done.stderr
    elif "--cfg" in arguments:
        place.run("train", *arguments)
    else:
        place.run("train", *shrunk([*arguments], place.small, place.folder))
        is_debug = any(word.startswith("debug=") for word in arguments)
        assert list(place.folder.rglob("debug.json" if is_debug else "metrics.json"))


def compare(place: Place, *arguments: str) -> None:
    """Compares the only run, in a copy, which has no page of its own yet."""
    shutil.copytree(place.finished, place.folder / "runs" / "one")
    place.run("compare", "runs=runs", "out=page", *without(arguments, "runs", "out", "against"))


def faithfulness(place: Place, *arguments: str) -> None:
    shutil.copytree(place.finished, place.folder / "runs" / "one")
    few = ("reviews=3", "search.reviews=1", "random_reviews=1", "costly_reviews=1")
    own = without(arguments, "runs", "out", "reviews", "pairs_of")
    place.run("faithfulness", "runs=runs", "out=page", *own, *few)


def dashboard(place: Place, *arguments: str) -> None:
    """Of a user without an account, who is told so in one line."""
    pytest.importorskip("wandb_workspaces")
    if "dry_run=true" in arguments:
        place.run("dashboard", *arguments)
        return
    nobody = {"WANDB_API_KEY": None, "NETRC": "/nowhere"}
    done = place.shell("dashboard", *arguments, env=nobody, status=2)
    assert len(done.stderr.splitlines()) == 1, done.stderr


def search(place: Place, *arguments: str) -> None:
    """Is refused before it begins; tests/tools/test_search.py runs one."""
    pytest.importorskip("optuna")
    done = place.shell("search", *arguments, "n_trials=0", status=2)
    assert done.stderr.startswith("error: n_trials=0 must be")


def without(arguments: Sequence[str], *settings: str) -> list[str]:
    return [word for word in arguments if word.partition("=")[0] not in settings]


RUNNERS = {  # of commands that do not run as the documents have them
    "train": train,
    "compare": compare,
    "faithfulness": faithfulness,
    "dashboard": dashboard,
    "search": search,
}


@pytest.mark.parametrize(
    "command", slow_except(FIRST.values(), RUN), ids=lambda command: command[10:60]
)
def test_commands_run_on_small_data(command, shell, small, world, trained, tmp_path):
    """Each command as the documents have it, but with the small world's data."""
    place = Place(shell, small, world, trained("residual_pe_cls")[0], tmp_path)
    name, *arguments = words_of(command)
    if name in RUNNERS:
        RUNNERS[name](place, *arguments)
    else:
        piped = shlex.split(command.partition("|")[0])[1] if command.startswith("echo ") else ""
        place.run(name, *arguments, input=piped)


COMPOSED = [line for line in SINGLE if "imdbattn.check" not in line and "--help" not in line]


@pytest.mark.parametrize(
    "command", sorted({*COMPOSED} - {*FIRST.values()}), ids=lambda command: command[10:60]
)
def test_commands_compose(command, settings, tmp_path, monkeypatch):
    """Those that only the slow tests run: every setting exists and has a value that is allowed."""
    monkeypatch.chdir(tmp_path)
    for folder in re.findall(r"runs/\w+", command):
        Path(folder).mkdir(parents=True, exist_ok=True)
    name, *arguments = words_of(command)
    assert settings(*(a for a in arguments if not a.startswith("text=")), config=name)


@pytest.mark.parametrize("command", SWEEPS, ids=lambda command: command[10:60])
def test_sweeps_compose(command, settings):
    """The last job of each command line; test_composes.py has those of experiments."""
    words = [word for word in words_of(command)[1:] if word != "-m"]
    assert settings(*(choices_of(word)[-1] for word in words)).model.name


@pytest.mark.slow
def test_a_sweep_resumes(shell, small, tmp_path):
    """One of them runs: one job of an experiment, twice."""
    (experiment,) = (word for word in words_of(RESUMED) if word.startswith("experiment="))
    (resume,) = (word for word in words_of(RESUMED) if word.startswith("resume="))
    job = [experiment, "seed=1", "model=mean", "model.net.layers=0", *small, "trainer.max_epochs=1"]
    folder = f"hydra.sweep.dir={resume.removeprefix('resume=')}"
    shell("train", *job, folder, cwd=tmp_path, real=True)
    assert len(list(tmp_path.rglob("metrics.json"))) == 1
    again = shell("train", *job, resume, cwd=tmp_path, real=True)
    assert "1 job: 1 kept" in again.stdout


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z-]+)", "\n".join(LINES), re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


SETTINGS = [("model=residual_learned",), ("model=wide",), ("task=masked_words",), ("task=seq2seq",)]
SETTINGS += [("task=seq2seq", "data=translation"), ("data=order_probe",), ("logger=mlflow",)]


def test_every_setting_in_the_documents_exists(composed):
    known = {key for choice in SETTINGS for key in flattened(composed(*choice))}
    # a callable of one's own in place of a name, and an argument of the Trainer
    known |= {"data.tokenizer._target_", "trainer.callbacks"}
    named = set(re.findall(r"`((?:data|model|trainer|logger|optim|masked)\.[a-z_.]+)[=`]", TEXT))
    assert len(named) > 25
    for setting in named:
        assert any(is_in_groups(key, setting) for key in known), setting


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = PAGES[ROOT / page].partition(f"\n{heading}\n")[2].split("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_table_of_settings_has_the_right_defaults(composed):
    found = {key: None if value == {} else value for key, value in flattened(composed()).items()}
    for entry in OmegaConf.load(conf_dir() / "train.yaml").defaults:
        found |= {} if isinstance(entry, str) else entry  # the files that it chooses
    compared = 0
    for keys, defaults, _ in table("docs/guide.md", "## Settings"):
        names, values = re.findall("`(.+?)`", keys), defaults.replace("`", "").split(", ")
        # "by rung, 0.5" is one value
        values = values[-len(names) :] if len(values) > 1 else values * len(names)
        for name, value in zip(names, values, strict=True):
            # Not those that a rung decides; nor the size of a batch, which the training set may
            # decide.
            if value != "by rung" and name != "data.batch_tokens":
                none = value in ("none", "that of the vectors")
                assert found[name] == (None if none else yaml.safe_load(value)), name
                compared += 1
    assert compared > 25


def test_the_table_of_sweeps_has_all_experiments_and_their_numbers_of_jobs():
    rows = table("docs/guide.md", "## Sweeps")
    for name, _, jobs in rows:
        assert len(jobs_of(name.strip("`"))) == math.prod(map(int, re.findall(r"\d+", jobs))), name
    assert sorted(name.strip("`") for name, *_ in rows) == sorted(EXPERIMENTS)


def test_the_example_rung_in_readme_builds(settings, tmp_path):
    readme = PAGES[ROOT / "README.md"]
    (example,) = re.findall(r"```yaml\n(# @package _global_.*?)```", readme, re.DOTALL)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(example)
    cfg = settings(f"hydra.searchpath=[file://{tmp_path}]", "model=mine")
    model = build_classifier(cfg.model, vectors(), 2, None)
    assert (model.layers[0].f.heads, model.head.in_features) == (4, 64)


def test_each_promise_has_its_test():
    page = PAGES[ROOT / "docs/promises.md"]
    promises = re.findall(r"\[([^]]+)\]\(\.\./tests/([\w/]+\.py)\)", page)
    assert len(promises) > 50
    for name, file in promises:
        assert f"def test_{name.replace(' ', '_')}(" in (ROOT / "tests" / file).read_text(), name


@pytest.mark.parametrize(
    "page",
    [*PAGES, *sorted((ROOT / "docs").glob("??/*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_linked_file_and_heading_exists(page):
    for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if not target.startswith("http"):
            file = page.parent / target if target else page
            assert file.exists(), target
            if re.fullmatch(r"L\d+", heading):  # tests/docs/test_exercises.py
                continue
            anchors = re.findall(r"(?m)^#+ (.+)", file.read_text()) if heading else []
            assert not heading or heading in [
                re.sub(r"[^\w -]", "", a).lower().replace(" ", "-") for a in anchors
            ]
