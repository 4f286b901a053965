"""The benchmarks run, each on the small world where it trains or reads reviews."""

import importlib
import json

import pytest

from benchmarks import baselines, coverage, gpu, robustness, speedrun
from benchmarks.common import Row, markdown
from benchmarks.ensemble import ensemble
from tests.processes import ROOT

MODULES = sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.slow
def test_the_benchmarks_run(trained, small, tmp_path, monkeypatch, capsys):
    for module in MODULES:
        assert importlib.import_module(f"benchmarks.{module}").__doc__
    measured = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    assert (ROOT / "benchmarks" / "results.md").read_text() == markdown(
        [Row(**values) for values in measured]
    )

    pytest.importorskip("sklearn")
    (facts,) = baselines.run_all(["nb_svm"], [1], ["data.source=auto", *small], tmp_path)
    run = trained("mean")[0]
    both = ensemble([run, tmp_path / "nb_svm-s1"], tmp_path / "both", "both", seed=1)
    assert min(facts["test_accuracy"], both["test_accuracy"]) > 0.65
    robustness.main([str(run), "--baseline", "nb_svm", "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "robustness.md").read_text() in capsys.readouterr().out

    monkeypatch.setattr(gpu, "EPOCHS", 2)
    monkeypatch.setattr(gpu, "STEPS", 3)
    gpu.main(["--here", "--device", "cpu", "--reviews", "40", "--parts", "recorded", "equality"])
    said = capsys.readouterr().out
    assert "failed" not in said
    assert said.count("times as fast as textbook") == 8
    assert said.count(" | 3 | 0 | 0 |") == 11  # nothing is recorded on a CPU


@pytest.mark.slow
def test_a_speedrun_compares_the_mean_of_its_seeds_with_the_goal(small, capsys, monkeypatch):
    monkeypatch.setattr(speedrun, "seconds_of_work", lambda: 0.5)
    speedrun.main(["--goal", "20", "--seeds", "2", "model=mean", "logger=csv", *small])
    *seeds, verdict, head, _, cells, _ = capsys.readouterr().out.splitlines()
    assert len(seeds) == 2
    assert "of 2 seeds: the goal of 20 % is reached" in verdict
    assert head.count("|") == cells.count("|")


def test_the_p_value_of_a_speedrun_falls_with_the_distance_from_the_goal():
    values = [90.1, 90.3, 90.2]
    assert speedrun.p_value(values, 89) < 0.01 < speedrun.p_value(values, 90.1) < 0.5
    assert speedrun.p_value(values, 91) > 0.99


def marked_cells(page, name):
    """Those of the table between the marks of a name, without the line below its head."""
    table = page.read_text().partition(f"<!-- {name} -->")[2].partition("<!--")[0]
    head, _, *rows = table.strip().splitlines()
    return [row.removeprefix("| ").removesuffix(" |").split(" | ") for row in (head, *rows)]


def test_the_summary_of_simulated_intervals_has_the_ranges_of_their_table():
    simulated = marked_cells(coverage.TABLES, "results")
    assert marked_cells(coverage.PAGE, "summary") == coverage.summary(simulated)
