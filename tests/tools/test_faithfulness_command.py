"""imdbattn.faithfulness on run folders: what it writes, resumes, refuses and claims."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.processes import started_command, wait_for

pytestmark = pytest.mark.slow  # tests/docs/test_readme.py runs the command in the quick tests

SMALL = ("reviews=24", "search.reviews=3", "random_reviews=3", "costly_reviews=12")


@pytest.fixture(scope="module")
def measured(trained, tmp_path_factory, shell) -> Path:
    """The output folder of the command, in that of its runs."""
    folder = tmp_path_factory.mktemp("explained")
    kinds = (("residual",), ("residual", "seed=2"), ("learned_query",), ("mean",))
    for number, words in enumerate(kinds):
        shutil.copytree(trained(*words)[0], folder / f"{number}-{words[0]}")
    shell("faithfulness", f"runs={folder}", *SMALL)
    return folder / "faithfulness"


def summary(out: Path) -> dict:
    return json.loads((out / "faithfulness.json").read_text())


def numbers(found: dict, label: str) -> dict:
    rows = [row for row in found["numbers"] if row["variant"] == label]
    return {(row["measure"], row["about"]): row for row in rows}


def test_its_numbers_are_means_of_the_tables(measured):
    found = numbers(summary(measured), "residual")
    for column in ("comprehensiveness", "sufficiency"):
        tables = [
            pq.read_table(next((measured / "runs").glob(f"{n}-*/gradient-*.parquet")))
            for n in (0, 1)
        ]
        values = np.array([table[column].to_pylist() for table in tables])
        assert values.shape == (2, 24, 5)
        assert found[column, "gradient"]["mean"] == pytest.approx(values.mean())
        low, high = found[column, "gradient"]["interval"]
        assert low < values.mean() < high
    claims = numbers({"numbers": summary(measured)["claims"]}, "residual")
    for column, sign in (("comprehensiveness", 1), ("sufficiency", -1)):
        gain = found[column, "gradient"]["mean"] - found[column, "random"]["mean"]
        assert claims[column, "gradient"]["mean"] == pytest.approx(sign * gain)
    rows = [table["row"].to_pylist() for table in tables]
    assert rows[0] == rows[1]
    texts = pq.read_table(next(measured.parent.glob("0-*")) / "predictions.parquet").to_pydict()
    predicted = dict(
        zip(texts["row"], np.array(texts["predicted"]) == np.array(texts["label"]), strict=True)
    )
    assert tables[0]["right"].to_pylist() == [predicted[row] for row in rows[0]]


def test_an_interrupted_command_keeps_what_it_has_measured(measured, shell, tmp_path):
    out, runs = tmp_path / "out", measured.parent
    words = [f"runs={runs}", f"out={out}", *SMALL]
    pipe = {"stdout": subprocess.PIPE, "text": True}
    with started_command("faithfulness", *words, cwd=tmp_path, **pipe) as process:
        wait_for(lambda: len(list(out.rglob("*.parquet"))) > 3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"SIGINT: stopped; the same command continues what is in {out}" in output
    files = {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")}
    assert not list(out.rglob("*.tmp"))
    shell("faithfulness", f"runs={runs}", f"out={out}", *SMALL)
    assert all(file.stat().st_mtime_ns == time for file, time in files.items())
    assert summary(out) == summary(measured)
    earlier = set(out.rglob("gradient-*.parquet"))
    shell("faithfulness", f"runs={runs}", f"out={out}", "shares=[0.3]", *SMALL)
    added = set(out.rglob("gradient-*.parquet")) - earlier
    assert len(added) == 4
    for file in added:
        assert len(pq.read_table(file)["comprehensiveness"][0]) == 1


def test_pairs_of_edited_reviews_and_a_function_of_ones_own(trained, shell, tmp_path):
    folder = trained("residual")[0]
    texts = pq.read_table(folder / "reviews.parquet")["text"].to_pylist()[:6]
    labels = pq.read_table(folder / "predictions.parquet")["label"].to_pylist()[:6]
    lines = ["Sentiment\tText\tbatch_id"]
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        names = ("Negative", "Positive")
        lines += [
            f"{names[label]}\t{text}\t{number}",
            f"{names[1 - label]}\t{text.replace(text.split()[0], 'dull', 1)}\t{number}",
        ]
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "test_paired.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "own.py").write_text(
        "def first(texts, predict):\n"
        "    assert predict(texts).shape == (len(texts), 2)\n"
        "    return [[-place for place in range(len(text.split()))] for text in texts]\n"
    )
    twice = "attributions=[{_target_: own.first, sign: 1}, {_target_: own.first}]"
    refused = shell("faithfulness", f"runs={folder}", twice, cwd=tmp_path, status=2)
    assert "attributions: own.first is named twice" in refused.stderr
    # fewer than pairs
    own = ("attributions=[rollout,{_target_:own.first}]", f"pairs_of={tmp_path}/pairs", "reviews=4")
    command = ("faithfulness", f"runs={folder}", f"out={tmp_path}/out", *own, *SMALL[1:])
    shell(*command, cwd=tmp_path)
    found = numbers(summary(tmp_path / "out"), "residual")
    assert found["human", "own.first"]["mean"] == 1
    assert found["human", "rollout"]["mean"] < 1
    assert 0 <= found["pairs", "both"]["mean"] <= found["pairs", "original"]["mean"]
    assert ("randomized", "own.first") not in found
    changed = (tmp_path / "own.py").read_text().replace("-place", "place")
    (tmp_path / "own.py").write_text(changed)
    shell(*command, cwd=tmp_path)
    again = numbers(summary(tmp_path / "out"), "residual")
    assert again["human", "own.first"]["mean"] < 1
    assert again["human", "rollout"] == found["human", "rollout"]
