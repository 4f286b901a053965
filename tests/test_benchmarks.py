"""The benchmarks: both sides run alternately, and the table shows the measured values."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.common import Row, in_turn, markdown, row, write
from benchmarks.training import as_lists, part
from imdbattn.data.ragged import ragged

ROOT = Path(__file__).parent.parent


def test_both_sides_alternate_in_being_first():
    called = []

    def side(name: str, value: float):
        return lambda: called.append(name) or value

    assert in_turn(side("ours", 6.0), side("theirs", 2.0), 3) == [(6.0, 2.0)] * 3
    assert called == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_row_has_the_medians_of_its_rounds_and_is_in_both_files(tmp_path):
    found = row("speed", "reviews/s", ">= 4", [(40.0, 10.0), (60.0, 10.0), (40.0, 20.0)])
    assert found == Row("speed", 40.0, 10.0, 4.0, "reviews/s", ">= 4", 2.0, 6.0)
    write([found], tmp_path)
    values = json.loads((tmp_path / "results.json").read_text())
    assert [{name: value[name] for name in ("name", "ours", "theirs", "ratio", "unit")} for value in values] == [
        {"name": "speed", "ours": 40.0, "theirs": 10.0, "ratio": 4.0, "unit": "reviews/s"}
    ]
    assert (tmp_path / "results.md").read_text() == markdown([found])


def test_the_table_shows_the_measured_values():
    found = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    assert (ROOT / "benchmarks" / "results.md").read_text() == markdown([Row(**values) for values in found])


def test_a_part_of_the_reviews_contains_whole_reviews():
    reviews = ragged([[number] * (number + 1) for number in range(9)])
    chosen = as_lists(part(reviews, 4))
    assert len(chosen) == 4
    assert all(ids == [ids[0]] * (ids[0] + 1) for ids, _ in chosen)


def fails() -> dict[str, float]:
    raise RuntimeError("CUDA out of memory\ntried to allocate")


def test_the_table_of_a_gpu_has_no_ratio_if_a_side_failed():
    table = gpu.Table(gpu.COLUMNS)
    table.measure("ours", lambda: {"epoch": 0.5, "tokens_per_s": 1e6})
    table.measure("theirs", lambda: {"epoch": 20.0})
    table.measure("compiled", fails)
    assert table.times_as_fast("ours", "theirs") == "ours: 40.0 times as fast as theirs"
    assert table.times_as_fast("compiled", "theirs") == "compiled: no ratio with theirs"
    assert table.times_as_fast("ours", "compiled") == "ours: no ratio with compiled"
    assert table.failures == ["compiled failed: RuntimeError: CUDA out of memory tried to allocate"]
    assert table.markdown().splitlines()[2].startswith("| ours | 0.5 | 1e+06 |")
    assert "| compiled | – | – | – | – |" in table.markdown()


def test_without_a_gpu_the_benchmark_names_the_options_that_work(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--parts", "epochs"])
    assert ended.value.code == 2
    assert "no GPU is available: give --device cpu" in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_measures_all_its_rows_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "EPOCHS", 2)
    out = tmp_path / "table.md"
    gpu.main(["--device", "cpu", "--reviews", "40", "--out", str(out), "--parts", "epochs", "textbook"])
    rows = [line for line in out.read_text().splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    assert len(rows) == 7  # with the head
    assert "failed" not in out.read_text()
    assert out.read_text().count("times as fast as textbook") == 4
