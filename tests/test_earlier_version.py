"""Run folders of version 0.1.0, before the package was restructured, are evaluated, used and compared as before.

tests/earlier_version holds them, without last.ckpt; recorded.json has the results of that version.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .processes import ROOT

FOLDER = ROOT / "tests" / "earlier_version"
RECORDED = json.loads((FOLDER / "recorded.json").read_text())


@pytest.fixture
def runs(world, data_cache, tmp_path) -> Path:
    """The folders, with other places of their data."""
    for name in RECORDED["evaluate"]:
        shutil.copytree(FOLDER / name, tmp_path / name)
        for file in (*(tmp_path / name).glob("*.yaml"), *(tmp_path / name).glob("*.json")):
            file.write_text(
                file.read_text().replace("/tmp/small/world", str(world)).replace("/tmp/small/cache", str(data_cache))
            )
    return tmp_path


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """The recorded values that are now different or missing. Added values are no differences."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [line for key in expected for line in differences(found.get(key), expected[key], f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [line for number, pair in pairs for line in differences(*pair, f"{where}[{number}]")]
    number = isinstance(expected, int | float) and isinstance(found, int | float)
    same = found == pytest.approx(expected, abs=1e-4) if number else found == expected
    return [] if same else [f"{where}: {found} instead of {expected}"]


@pytest.mark.parametrize("name", RECORDED["evaluate"])
def test_a_run_scores_the_same(runs, shell, name):
    done = shell("evaluate", f"run={name}", cwd=runs)
    assert done.returncode == 0, done.stderr
    (file,) = (runs / name / "evaluations").glob("*.json")
    assert differences(json.loads(file.read_text()), RECORDED["evaluate"][name]) == []


@pytest.mark.parametrize("name", RECORDED["predict"])
def test_a_run_predicts_the_same(runs, shell, name):
    text, line = RECORDED["predict"][name]
    done = shell("predict", f"run={name}", f"text={text}", cwd=runs)
    assert done.stdout == f"{line}  {text}\n", done.stderr


def test_runs_compare_the_same(runs, shell):
    done = shell("compare", "runs=[residual_pe,wide]", "resamples=1000", "out=comparison", cwd=runs)
    assert done.returncode == 0, done.stderr
    found = json.loads((runs / "comparison" / "comparison.json").read_text())
    assert differences(found, RECORDED["comparison"]) == []
