"""A data source of one's own needs no edit of the package."""

import json
import sys
from pathlib import Path

import pytest
import yaml

import imdbattn
from imdbattn.data.corpus import find_source
from imdbattn.errors import UserError
from imdbattn.launch.resumed_settings import resumed_settings
from imdbattn.runs.apply import load_predictor
from imdbattn.runs.fit import fit
from tests.commands import label_texts
from tests.documents import code, section, words_of
from tests.world import write_files

SOURCES = """
import numpy as np


class Films:
    def __init__(self, count, good="good", files=()):
        self.count, self.words = count, ("bad", good)

    def __call__(self):
        return {"train": ((f"the film was {self.words[n % 2]} r{n}", np.int64(n % 2))
                          for n in range(self.count))}


def dated():
    film = [("a film", "pos"), ("a bad film", "neg")]
    return {"train": film, "val": film[:1], "test": film[1:]}


def unknown():
    return {"eval": [("a film", "pos")]}


def empty():
    return {"train": [("a film", "pos"), ("a film", None)]}


def nan():
    return {"train": [("a film", 1.0), ("a film", float("nan"))]}
"""


@pytest.fixture
def package(own_module):
    """The file of a module of the user's."""
    return own_module("filmsets", SOURCES)


def words_for(small, target, **arguments):
    """The small world's settings, with a source in place of its table."""
    words = [word for word in small if not word.startswith("data.path=")]
    words += ["model=mean", "trainer.max_epochs=2", "data.min_known=0"]
    words.append(f"+data.source._target_=filmsets.{target}")
    return words + [f"+data.source.{key}={value}" for key, value in arguments.items()]


def test_a_source_of_ones_own_trains_and_its_run_is_used_again_with_trust(
    package, settings, composed, small, tmp_path
):
    files = [f"{tmp_path}/films.csv"]
    words = words_for(small, "Films", count=80, files=files)
    metrics = fit(settings(*words), tmp_path / "run")
    assert metrics["labels"] == ["0", "1"]
    named = f"filmsets.Films(count=80, files={files}): a cut of 20%"
    assert metrics["test_set"].startswith(named)
    source = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["source"]
    assert source == {"_target_": "filmsets.Films", "count": 80, "files": files}

    run = str(tmp_path / "run")
    with pytest.raises(UserError, match=r"data\.source\._target_=filmsets.* add trust=filmsets"):
        load_predictor(settings(f"run={run}", config="predict"))
    with pytest.raises(UserError, match="add trust=filmsets"):
        resumed_settings(composed(f"resume={run}"), [f"resume={run}"], tmp_path / "run")
    again = [*words, f"resume={run}", "trust=filmsets"]  # as a job of a resumed sweep
    assert resumed_settings(composed(*again), again, tmp_path / "run")["data"]["source"] == source
    again[again.index("+data.source.count=80")] = "+data.source.count=81"
    with pytest.raises(UserError, match=r"own settings: data\.source\.count=80, not 81"):
        resumed_settings(composed(*again), again, tmp_path / "run")
    cfg = settings(f"run={run}", "trust=filmsets", config="predict")
    (found,), _ = label_texts(cfg, ["a good film"])
    assert found.label in ("0", "1")

    imdbattn.load(run, trust="filmsets").export(tmp_path / "exported")
    exported = [(tmp_path / "exported" / name).read_text() for name in ("config.json", "README.md")]
    exported.append((tmp_path / "exported" / "metrics.json").read_text())
    assert not any(str(tmp_path) in text for text in exported)
    assert "filmsets.Films(count=80, files=['films.csv']): a cut of 20%" in exported[1]


def test_splits_of_the_source_are_used_and_others_are_cut(package, data_settings, small):
    texts = find_source(data_settings(*words_for(small, "dated"))).load()
    film, bad = "a film", "a bad film"
    found = {name: part.texts for name, part in texts.splits.items()}
    assert found == {"train": [film, bad], "validation": [film], "test": [bad]}
    assert texts.label_names == ["neg", "pos"]
    whole = find_source(data_settings(*words_for(small, "Films", count=9))).load()
    assert list(whole.splits) == [""]
    named = find_source(data_settings(*words_for(small, "dated"), "data.label_names=[pos,neg]"))
    assert named.load().splits["train"].labels.tolist() == [0, 1]


def test_changed_texts_are_other_data(package, data_settings, small):
    def key(**arguments):
        return find_source(data_settings(*words_for(small, "Films", **arguments))).key

    first = key(count=20)
    assert key(count=20) == first
    assert key(count=21) != first
    package.write_text(SOURCES.replace("the film was", "the movie was"))
    del sys.modules["filmsets"]
    assert key(count=20) != first


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("absent", r"filmsets\.absent cannot be imported"),
        ("unknown", r"filmsets\.unknown: its splits eval are none of train, validation, test"),
        ("empty", r"filmsets\.empty: row 1 .* is \('a film', None\) instead of a text and"),
        ("nan", r"filmsets\.nan: row 1 .* has the label nan, which may mean none"),
    ],
)
def test_a_wrong_source_is_named_before_anything_is_written(
    package, settings, small, tmp_path, target, message
):
    with pytest.raises(UserError, match=message):
        fit(settings(*words_for(small, target)), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def run_page(shell, text: str, module: Path, own: list[str], commands: int | None = None) -> None:
    """Writes the Python code of a section into a module and runs its commands, or the first ones.

    own: further settings of a training run.
    """
    write_files(module.parent, {"__init__.py": "", module.name: code(text, "python")})
    for line in code(text, "sh").splitlines()[:commands]:
        command, *arguments = words_of(line)
        arguments += own if command == "train" else []
        shell(command, *arguments, cwd=module.parents[1])


def test_the_source_of_the_page_trains_with_its_commands(shell, small, tmp_path):
    (tmp_path / "tweets").mkdir()
    for name, count in (("train", 80), ("test", 20)):
        rows = [
            {"message": f"a {('bad', 'good')[n % 2]} {name} {n}", "mood": ("sad", "glad")[n % 2]}
            for n in range(count)
        ]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (tmp_path / "tweets" / f"{name}.jsonl").write_text(lines)
    own = [word for word in small if not word.startswith("data.path=")]
    own += ["model=mean", "trainer.max_epochs=1", "data.min_known=0"]
    text = section("own_parts.md", "## Data sources and tokenizers")
    # not its comparison, which takes seconds
    run_page(shell, text, tmp_path / "mypkg" / "sources.py", own, commands=3)
    metrics = json.loads((tmp_path / "runs" / "tweets" / "metrics.json").read_text())
    assert (metrics["labels"], metrics["test_count"]) == (["glad", "sad"], 20)


def test_pairs_of_ones_own_train_with_the_commands_of_the_page(shell, tmp_path):
    lines = [f"a {('bad', 'good')[n % 2]} film {n % 40},un film {n % 40}" for n in range(80)]
    (tmp_path / "phrases.csv").write_text("\n".join(["english,french", *lines]))
    own = ["data.min_known=0", "trainer.max_epochs=1", "logger=csv", "trainer=cpu"]
    own += ["pictures=false", "model.net.hidden=8"]
    run_page(
        shell, section("own_data.md", "## Pairs of sentences"), tmp_path / "mypkg/pairs.py", own
    )
    metrics = json.loads((tmp_path / "runs" / "phrases" / "metrics.json").read_text())
    assert metrics["test_set"].startswith("mypkg.pairs.phrases(file=phrases.csv): 10%")
