"""The benchmarks: both sides run in turn, and the table shows the measured values."""

import json
from pathlib import Path

from benchmarks.common import Row, in_turn, markdown, row, write
from benchmarks.training import as_lists, part
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


def test_the_table_shows_the_measured_values():
    found = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    assert (ROOT / "benchmarks" / "results.md").read_text() == markdown([Row(**values) for values in found])


def test_a_part_of_the_reviews_holds_them_whole():
    reviews = ragged([[number] * (number + 1) for number in range(9)])
    chosen = as_lists(part(reviews, 4))
    assert len(chosen) == 4
    assert all(ids == [ids[0]] * (ids[0] + 1) for ids, _ in chosen)
