"""Wrong input gives one line with the cause and a remedy, and leaves nothing behind."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from imdbattn.data.corpus import find_source
from imdbattn.errors import UserError
from imdbattn.runs.fit import fit
from tests.commands import label_texts
from tests.resuming import contents

Arguments = Callable[["Place"], list[str]]
ROWS = [(f"a {('dull', 'good')[n % 2]} film word{n}", ("neg", "pos")[n % 2]) for n in range(40)]
TEXTS, LABELS = zip(*ROWS, strict=True)
COUNTED = r"\(counted from 0\)"


class Place:
    """A user's folder, with trained runs that the cases damage."""

    def __init__(self, folder: Path, trained):
        self.folder, self.trained = folder, trained

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def run(self) -> Path:
        """A copy of a finished run."""
        return shutil.copytree(self.trained("mean")[0], self.folder / "run", dirs_exist_ok=True)


def left_in(*folders: Path) -> dict[Path, int]:
    """Sizes of files, and folders as -1, without whole entries of a cache and empty locks."""
    found = [path for folder in folders for path in folder.rglob("*")]
    whole = {path.parent for path in found if path.name == "checksums.json"}
    kept = whole | {above for entry in whole for above in (entry.parent, entry.parents[1])}
    caches = [cache for folder in folders for cache in (folder, folder / "cache")]
    kept |= {*caches} | {cache / kind for cache in caches for kind in ("vectors", "tokens")}
    listed = (path for path in found if path not in kept and path.parent not in whole)
    sizes = {path: path.stat().st_size if path.is_file() else -1 for path in listed}
    return {path: size for path, size in sizes.items() if size or path.suffix != ".lock"}


# --- ways to be wrong -----------------------------------------------------------------------------


def typed(*arguments: str) -> Arguments:
    return lambda place: list(arguments)


def csv_text(labels=LABELS, texts=TEXTS) -> str:
    rows = [f"{text},{label}\n" for text, label in zip(texts, labels, strict=True)]
    return "".join(["text,label\n", *rows])


def lines() -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)


def reviews(content: str | bytes, name: str = "r.csv", *more: str) -> Arguments:
    return lambda place: [f"data.path={place.write(name, content)}", *more]


def splits(**tables: str) -> Arguments:
    """A folder with a table for each split."""

    def make(place: Place) -> list[str]:
        for name, content in tables.items():
            place.write(f"reviews/{name}.csv", content)
        return [f"data.path={place.folder / 'reviews'}"]

    return make


def table(content: str | bytes, *more: str, name: str = "r.csv") -> Arguments:
    """A table to be labeled, and another one, o.csv."""

    def make(place: Place) -> list[str]:
        place.write("o.csv", "row,label\n")
        return ["run=.", f"file={place.write(name, content)}", *more]

    return make


# --- the table ------------------------------------------------------------------------------------

HYDRA: dict[str, tuple[Arguments, str]] = {  # of imdbattn.train
    "misspelt deep down": (
        typed("data.vectors.pth=x"),
        r"no setting data\.vectors\.pth; the nearest is data\.vectors\.path",
    ),
    "misspelt in a sweep": (
        typed("-m", "model=mean,base", "data.pth=x"),
        r"no setting data\.pth; the nearest is data\.path",
    ),
    "no value": (typed("optim.lr", "=0.01"), r"error: optim\.lr: a setting is name=value, without"),
    "dashes": (typed("--model", "mean"), "error: --model: a setting has no dashes: model=value"),
    "a variable that is not set": (
        typed("optim.lr=${oc.env:IMDBATTN_NO_LR}"),
        r"error: optim\.lr: .*'IMDBATTN_NO_LR' not found",
    ),
    "no choice": (
        typed("optim=muno"),
        r"error: optim=muno is not a choice: choose one of adamw, .*; the nearest is muon",
    ),
    "a sweep in the folder of a run": (
        lambda place: ["-m", "seed=1,2", f"hydra.sweep.dir={place.run()}"],
        "run is not a sweep folder",
    ),
    # the second job would be kept as finished, with the scores of the first
    "jobs that share a folder": (
        typed("-m", "seed=1,2", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=job"),
        r"error: hydra\.sweep\.subdir cannot be set: ",
    ),
}
COMPOSED: dict[str, tuple[Arguments, str]] = {  # of imdbattn.train, after Hydra
    "no number": (typed("optim.lr=nan"), r"optim\.lr=nan must be a finite number"),
    "a factor below 0": (typed("class_weights=[1,-2]"), r"class_weights\.1=-2 must be greater"),
    "a norm below 0": (
        typed("trainer.gradient_clip_val=-1"),
        r"gradient_clip_val=-1 must be greater",
    ),
    "a name that leads upwards": (typed("model.name=../../up"), "must match pattern"),
    "two sources": (
        typed("data.source=packaged"),
        r"data\.source=packaged, data\.path=.* select different data: keep",
    ),
    "splits of no data set": (
        typed("data.path=null", "data.limit=40", "data.hub_splits={train: a, test: b}"),
        r"data\.hub_splits need a data set: set data\.hub$",
    ),
    "labels of packaged reviews": (
        typed("data.path=null", "data.label_names=[pos,neg]"),
        r"data\.label_names needs data of your own: set data\.path or data\.hub$",
    ),
    "vectors that are not there": (
        typed("data.vectors.source=auto", "data.vectors.path=/none.txt"),
        r"data\.vectors\.path=/none\.txt: .*No such file",
    ),
    "validation of nothing": (typed("trainer.limit_val_batches=0"), "must be greater than 0"),
    "a setting of another task": (
        typed("task=masked_words", "+class_weights=balanced"),
        r"no setting class_weights",
    ),
    "a setting without an effect": (
        typed("+trainer.logger=false"),
        r"trainer\.logger cannot be set: logger= selects loggers",
    ),
    # before data are read
    "an argument that the Trainer does not have": (
        typed("+trainer.acumulate_grad_batches=1", "data.path=/nothing.csv"),
        r"is not an argument of lightning\.Trainer; the nearest is trainer\.accumulate_grad_b",
    ),
    "an argument that the network does not have": (
        typed("+model.net.heads=2", "data.path=/nothing.csv"),
        r"model\.net\.heads is not an argument of imdbattn\.nn\.ladder\.Classifier",
    ),
    "a class that is misspelt": (
        typed("optim._target_=torch.optim.Adagradd", "data.path=/nothing.csv"),
        r"torch\.optim has no Adagradd; the nearest is torch\.optim\.Adagrad$",
    ),
    "a metric that is no number": (
        typed("choose_by=builtins.zip", "data.path=/nothing.csv"),
        r"choose_by=builtins\.zip does not return a number",
    ),
    "a cache that cannot be written": (
        lambda place: [f"data.cache_dir={place.write('file', '')}/cache"],
        r"file/cache/vectors cannot be written .*choose another data\.cache_dir or \$IMDB",
    ),
    # hardware
    "no GPU": (typed("trainer=gpu", "data.path=/nothing.csv"), "there is no GPU; use trainer=ddp"),
    "machines without a cluster": (
        typed("trainer=ddp_cpu", "trainer.num_nodes=2", "data.path=/nothing.csv"),
        "num_nodes=2: .* neither srun nor torchrun",
    ),
    # parts
    "heads that do not divide": (
        typed("model.net.layer.heads=3"),
        r"heads=3 does not divide the width 10",
    ),
    "no model part": (
        typed("model.net.layer._target_=os.system"),
        r"os\.system is not a subclass of torch\.nn\..*Module",
    ),
    # reviews
    "columns swapped": (
        reviews(csv_text(TEXTS, LABELS)),
        "has 40 different labels in 40 rows: set data.label_column",
    ),
    "one class": (reviews(csv_text(["pos"] * 40)), "only one class"),
    "no training": (splits(test=csv_text()), "has no training data"),
    "all splits equal": (
        splits(**dict.fromkeys(("train", "test", "dev"), csv_text())),
        "nothing is left for train",
    ),
}
OTHERS: dict[str, tuple[str, Arguments, str]] = {
    "a mistake that is found after a line of the log": (
        "train",
        reviews("review,label\nfine,pos\n"),
        r"no column 'text'; it has 'review', 'label': set data\.text_column",
    ),
    "a table of an unknown form": (
        "predict",
        table(csv_text(), "out=r.xlsx"),
        r"out=r\.xlsx must end with \.csv, ",
    ),
    "a compressed table of predictions": (
        "predict",
        table(csv_text(), "out=r.csv.gz"),
        r"out=r\.csv\.gz must end with \.csv, ",
    ),
    "no runs": ("compare", typed("runs=nothing*"), r"runs=nothing\*: there is no such folder"),
    "no run": ("predict", typed("text=good"), "these settings are required: run=; see --help"),
    "labels that the run does not know": (
        "evaluate",
        lambda place: [f"run={place.run()}", *reviews(csv_text(["good", "bad"] * 20))(place)],
        rf"row 0 {COUNTED} has the label good, which is not one of neg, pos",
    ),
    "a column without a table": (
        "predict",
        table("fine", "column=text", name="r.txt"),
        "column=text is for tables, ",
    ),
    "a file of a run for the results": (
        "predict",
        lambda place: [f"run={place.run()}", "text=good", "out=run/predictions.parquet"],
        r"out=run/predictions\.parquet is a file of a run",
    ),
    "a table that exists for the results": (
        "predict",
        table(csv_text(), "out=o.csv"),
        r"out=o\.csv exists: choose another name",
    ),
}
COMMANDS = {f"train: {name}": ("train", *case) for name, case in HYDRA.items()}
COMMANDS |= {f"{case[0]}: {name}": case for name, case in OTHERS.items()}


@pytest.fixture
def place(tmp_path, trained, monkeypatch) -> Place:
    monkeypatch.chdir(tmp_path)
    trained("mean")
    return Place(tmp_path, trained)


def is_one_line(stderr: str, message: str) -> None:
    assert re.fullmatch(r"error: [^\n]+\n", stderr), stderr
    assert re.search(message, stderr), stderr
    assert len(stderr) < 1000, "a line that nobody reads"


@pytest.mark.parametrize(("make", "message"), COMPOSED.values(), ids=COMPOSED)
def test_training_prints_one_line_and_leaves_nothing_behind(
    place, settings, small, data_cache, monkeypatch, make, message
):
    """What Hydra composes, without its half second."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    arguments = make(place)
    (place.folder / "run").mkdir()
    before = left_in(place.folder, data_cache)
    with pytest.raises(UserError) as error:
        fit(settings(*small, *arguments), place.folder / "run")
    is_one_line(f"error: {error.value}\n", message)
    assert left_in(place.folder, data_cache) == before


@pytest.mark.parametrize(("command", "make", "message"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_prints_one_line_and_leaves_nothing_behind(
    place, shell, small, data_cache, command, make, message
):
    arguments = [*(small if command == "train" else []), *make(place)]
    before = left_in(place.folder, data_cache)
    done = shell(command, *arguments, cwd=place.folder, status=2)
    is_one_line(done.stderr, message)
    assert left_in(place.folder, data_cache) == before


def broken_checkpoint(place: Place) -> list[str]:
    run = place.run()
    (run / "checkpoints" / "best.ckpt").write_text("{" * 40)
    return [f"run={run}", "text=a"]


# one of each place in which a command ends: the data, the results, the run folder
EXCEPTIONS: dict[str, tuple[str, Arguments]] = {
    "broken Parquet file": (
        "train",
        lambda place: [f"hydra.run.dir={place.run()}", *reviews(b"PAR1", "r.parquet")(place)],
    ),
    "output in a missing drive": (
        "predict",
        lambda place: [f"run={place.run()}", "text=a", "out=/proc/no/out.csv"],
    ),
    "broken checkpoint": ("predict", broken_checkpoint),
}


@pytest.mark.parametrize(("command", "make"), EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_any_exception_of_a_command_is_one_line_and_its_traceback_is_in_a_file(
    place, shell, small, command, make
):
    """No finished run is changed."""
    arguments = [*(small if command == "train" else []), *make(place)]
    before = contents(place.folder / "run")
    done = shell(command, *arguments, cwd=place.folder, status=2)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    said = done.stderr + done.stdout
    assert (len(lines), "Traceback" in said) == (1, False), done
    if file := re.search(r"\(traceback: (.*)\)$", lines[0]):
        assert "Traceback (most recent call last)" in Path(file[1]).read_text()
        Path(file[1]).unlink()
    assert contents(place.folder / "run") == before


def test_a_configuration_without_the_name_of_a_data_set_is_refused(settings):
    """The pairs would be the packaged ones."""
    with pytest.raises(UserError, match=r"^data\.hub_config needs a data set: set data\.hub$"):
        settings("task=seq2seq", "data=translation", "data.hub_config=en-fr")


def test_a_sweep_without_its_data_can_be_repeated_in_its_folder(place, shell, small):
    sweep = ["-m", *small, "seed=1,2", "data.path=nothing.csv", "hydra.sweep.dir=sweep"]
    for _ in range(2):
        done = shell("train", *sweep, cwd=place.folder, status=2)
        is_one_line(done.stderr, r"data\.path=nothing\.csv: .*No such file or directory")


# --- what looks wrong and is not ------------------------------------------------------------------


def test_empty_reviews_are_scored_and_counted_each_time(place, settings, small, caplog):
    texts = [*TEXTS[:30], "", " ", *TEXTS[32:]]
    reviews = [
        f"data.path={place.write('r.csv', csv_text(texts=texts))}",
        f"data.cache_dir={place.folder / 'cache'}",
    ]
    for number in (1, 2):  # the second time from the cache
        caplog.clear()
        metrics = fit(
            settings(*small, *reviews, "trainer.max_epochs=1"),
            place.folder / f"run{number}",
        )
        assert "2 reviews of validation have no words; they are kept and scored" in caplog.text
        assert "of train have no words" not in caplog.text
        assert np.isfinite([metrics["val_loss"], metrics["test_loss"]]).all()
    run = place.folder / "run1"
    for arguments in ([f"run={run}"], [f"run={run}", "explain=true"], [f"run=[{run}]"]):
        caplog.clear()
        cfg = settings(*arguments, config="predict")
        found, _ = label_texts(cfg, ["", "a good film", "<br />"])
        assert all(np.isfinite(one.probability) for one in found)
        assert "2 of 3 reviews have no words" in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "byte order mark": ("r.csv", b"\xef\xbb\xbf" + csv_text().encode()),
        "byte order mark in JSON": ("r.jsonl", b"\xef\xbb\xbf" + lines().encode()),
        "lines of Windows": ("r.csv", csv_text().replace("\n", "\r\n").encode()),
        "blank lines": ("r.csv", csv_text().replace("\n", "\n\n").encode()),
        "a suffix in capitals": ("R.CSV", csv_text().encode()),
        "spaces around labels": ("r.csv", csv_text([f" {label}  " for label in LABELS]).encode()),
    }.values(),
)
def test_files_of_other_programs_are_read_as_intended(data_settings, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    reviews = find_source(data_settings(f"data.path={tmp_path / name}")).load()
    assert reviews.label_names == ["neg", "pos"]
    assert reviews.splits[""].texts == list(TEXTS)
    assert reviews.splits[""].labels.tolist() == [0, 1] * 20
