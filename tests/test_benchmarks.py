"""The benchmarks: both sides in turn, tables that README repeats, and a GPU benchmark that runs from its one file."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.table import Row, in_turn, markdown, row, write
from benchmarks.training import as_lists, part
from benchmarks.training import settings as settings_of
from imdbattn.data.corpus import prepare
from imdbattn.data.ragged import ragged

ROOT = Path(__file__).parent.parent


def test_both_sides_run_in_turn_and_each_is_first():
    called = []

    def side(name: str, value: float):
        return lambda: called.append(name) or value

    assert in_turn(side("ours", 6.0), side("theirs", 2.0), 3) == [(6.0, 2.0)] * 3
    assert called == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_row_is_the_median_of_its_rounds_and_the_files_hold_it(tmp_path):
    found = row("speed", "reviews/s", ">= 4", [(40.0, 10.0), (60.0, 10.0), (40.0, 20.0)])
    assert found == Row("speed", 40.0, 10.0, 4.0, "reviews/s", ">= 4", 2.0, 6.0)
    write([found], tmp_path)
    values = json.loads((tmp_path / "results.json").read_text())
    assert [{name: value[name] for name in ("name", "ours", "theirs", "ratio", "unit")} for value in values] == [
        {"name": "speed", "ours": 40.0, "theirs": 10.0, "ratio": 4.0, "unit": "reviews/s"}
    ]
    assert (tmp_path / "results.md").read_text() == markdown([found])


def test_readme_shows_the_table_that_was_measured():
    found = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    table = markdown([Row(**values) for values in found])
    assert (ROOT / "benchmarks" / "results.md").read_text() == table
    assert table in (ROOT / "README.md").read_text()


def test_a_part_of_the_reviews_holds_them_whole():
    reviews = ragged([[number] * (number + 1) for number in range(9)])
    chosen = as_lists(part(reviews, 4))
    assert len(chosen) == 4
    assert all(ids == [ids[0]] * (ids[0] + 1) for ids, _ in chosen)


def test_the_ladder_on_a_gpu_trains_as_long_as_on_a_cpu():
    for rung in ("mean", "residual_pe"):
        assert settings_of(f"model={rung}")["trainer"]["max_epochs"] > 1


@pytest.fixture
def packed(small, data_settings, tmp_path, monkeypatch) -> Path:
    """The small world as one file."""
    corpus = prepare(data_settings(*small))
    monkeypatch.setattr(gpu, "prepare", lambda cfg: corpus)
    monkeypatch.setattr(gpu, "settings", lambda: {"data": None})
    gpu.pack(tmp_path / "corpus.npz")
    return tmp_path / "corpus.npz"


def test_the_packed_corpus_has_the_words_of_the_whole_one(packed):
    whole, found = gpu.prepare({}), gpu.unpack(packed)
    for name, split in whole.splits.items():
        theirs = found.splits[name]
        assert torch.equal(split.offsets, theirs.offsets)
        assert torch.equal(split.labels, theirs.labels)
        expected, vectors = (c.glove.vectors[s.ids.numpy()] for c, s in ((whole, split), (found, theirs)))
        assert (expected == vectors).all()
    assert len(gpu.joined(list(found.splits.values()))) == sum(map(len, found.splits.values()))


def test_without_a_gpu_its_benchmark_says_how_to_try_it(packed, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--device cpu"):
        gpu.main(["run", str(packed)])


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu(packed, tmp_path, capsys):
    shutil.move(packed, tmp_path / "alone.npz")
    words = "--device cpu --seeds 2 --epochs 1 --side-by-side 2 --rungs mean residual_cls --overrides threads=1"
    gpu.main(["run", str(tmp_path / "alone.npz"), *words.split(), "--out", str(tmp_path / "out")])
    names = [values["name"] for values in json.loads((tmp_path / "out" / "results.json").read_text())]
    assert len(names) == 5
    assert "2 rungs x 2 seeds" in names[-1]
    assert "| `residual_cls` |" in capsys.readouterr().out
