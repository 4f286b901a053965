"""imdbattn.check names a line of a wrong part whose change makes the part right."""

import json
import resource
import time
from pathlib import Path

import pytest
import torch

from imdbattn.tools.check.parts import check
from imdbattn.tools.check.report import Outcome, as_json, as_text

SECONDS = 60.0  # so that a busy machine finds the same lines
HEAD = "import math\n\nimport torch\nfrom torch import nn\n\n\n"
ATTENTION = """class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x, mask):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~mask[:, None], -1e9)
        return torch.softmax(scores, dim=-1) @ v
"""
MEAN = """def masked_mean(x, mask):
    words = mask[..., None].to(x.dtype)
    total = (x * words).sum(1)
    return total / words.sum(1).clamp(min=1)
"""
ADDITIVE = """class AdditiveAttention(nn.Module):
    def __init__(self, key_size, query_size, num_hiddens, dropout):
        super().__init__()
        self.W_k = nn.Linear(key_size, num_hiddens, bias=False)
        self.W_q = nn.Linear(query_size, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        features = self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1)
        features = torch.tanh(features)
        scores = self.w_v(features).squeeze(-1)
        return torch.bmm(self.dropout(masked_softmax(scores, valid_lens)), values)


def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    if valid_lens.dim() == 1:
        valid_lens = valid_lens[:, None]
    words = torch.arange(X.shape[-1]) < valid_lens[..., None]
    return torch.softmax(X.masked_fill(~words, -1e6), dim=-1)
"""
# a right solution, what is wrong instead, and the right and the wrong line
CHANGES = {
    "axis": (ATTENTION, "dim=-1", "dim=1"),
    "scale": (ATTENTION, "q.shape[-1]", "q.shape[1]"),
    "no scale": (ATTENTION, " / math.sqrt(q.shape[-1])", ""),
    "mask": (ATTENTION, "~mask[:, None]", "mask[:, None]"),
    "layer": (ATTENTION, "self.key(x)", "self.query(x)"),
    "values": (ATTENTION, "dim=-1) @ v", "dim=-1) @ k"),
    "padding": (MEAN, "(x * words).sum(1)", "x.sum(1)"),
    "comparison": (ADDITIVE, "(X.shape[-1]) <", "(X.shape[-1]) <="),
    "tanh": (ADDITIVE, "        features = torch.tanh(features)\n", ""),
    "product": (ADDITIVE, "unsqueeze(2) + self", "unsqueeze(2) * self"),
}


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Checks change the default type and import paths of their process."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    yield
    torch.set_default_dtype(torch.float32)


def checked(file: Path, seconds: float = SECONDS) -> Outcome:
    outcome = Outcome(str(file))
    for message in check(str(file), {}, line_seconds=seconds):
        outcome.take(message)
    return outcome


def line_of(outcome: Outcome) -> dict[str, str]:
    (found,) = [result["line"] for result in outcome.of(False) if "line" in result]
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_the_file_is_right_with_the_line_that_is_named(name, tmp_path):
    right, old, new = CHANGES[name]
    assert right.count(old) == 1
    (file := tmp_path / "mine.py").write_text(HEAD + right.replace(old, new))
    line = line_of(outcome := checked(file))
    number = int(line["where"].removeprefix("Line "))
    lines = file.read_text().splitlines()
    start = lines[number - 1][: len(lines[number - 1]) - len(lines[number - 1].lstrip())]
    lines[number - 1] = start + line["instead"]
    file.write_text("\n".join(lines) + "\n")
    assert not outcome.passed
    assert checked(file).passed, line


def test_the_line_is_shown_below_the_finding(tmp_path):
    (file := tmp_path / "mine.py").write_text(HEAD + ATTENTION.replace("dim=-1", "dim=1"))
    outcome = checked(file)
    text = """
       Line 18: return torch.softmax(scores, dim=1) @ v
       All checks of SelfAttention hold with: return torch.softmax(scores, dim=-1) @ v
"""
    assert text in as_text(outcome)
    (line,) = [r["line"] for r in json.loads(as_json([outcome]))["checks"] if "line" in r]
    assert line["where"] == "Line 18"


def test_no_line_is_looked_for_without_time(tmp_path):
    (file := tmp_path / "mine.py").write_text(HEAD + ATTENTION.replace("dim=-1", "dim=1"))
    assert not any("line" in result for result in checked(file, 0).results)


@pytest.mark.parametrize(("seconds", "is_found"), [(0.3, False), (SECONDS, True)])
def test_the_time_of_the_checks_counts_for_the_line(seconds, is_found, tmp_path):
    slow = "import time\n\nwhile time.process_time() < END:\n    pass\n"
    text = HEAD + ATTENTION.replace("dim=-1", "dim=1")
    (file := tmp_path / "mine.py").write_text(
        text + slow.replace("END", str(time.process_time() + 0.4))
    )
    assert any("line" in result for result in checked(file, seconds).results) == is_found


@pytest.mark.parametrize("call", ["open({!r}, 'w')", "torch.save(x, {!r})"])
def test_code_that_may_write_files_is_not_changed(call, tmp_path):
    """A change could run what the file itself does not, such as this."""
    writes = f"    if False:\n        {call.format(str(tmp_path / 'new'))}\n    return"
    wrong = MEAN.replace("(x * words)", "x").replace("    return", writes)
    (file := tmp_path / "mine.py").write_text(HEAD + wrong)
    assert not any("line" in result for result in checked(file).results)
    assert not (tmp_path / "new").exists()


def test_a_change_that_does_not_end_is_left_after_a_moment(tmp_path):
    """`while ~(step < x.shape[1])` is tried before the right change."""
    loop = """def masked_mean(x, mask):
    total, step = 0, 0
    while step < x.shape[1]:
        total = total + (x[:, step : step + 1] * ~mask[:, step : step + 1, None]).sum(1)
        step += 1
    return total / mask.sum(1, keepdim=True).clamp(min=1)
"""
    (file := tmp_path / "mine.py").write_text(HEAD + loop)
    assert "* mask[:, step:step + 1, None]" in line_of(checked(file))["instead"]


def test_the_command_ends_if_a_change_does_not(shell, tmp_path):
    """`3 ** 30` instead of `30 ** 3` is a sum that takes hours, within one call of C."""
    endless = MEAN.replace("mask[..., None]", "(~mask[..., None])").replace(".clamp(min=1)", "")
    endless = endless.replace("    total =", "    assert sum(range(30**3))\n    total =")
    (tmp_path / "mine.py").write_text(HEAD + endless)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = shell("check", "mine.py", "--seconds", "40", cwd=tmp_path, real=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 20
    assert done.returncode == 1
    assert "WRONG  masked_mean: mask-inverted" in done.stdout


def test_no_line_is_named_for_two_mistakes(tmp_path):
    """Without the first mistake, the result of a review without words is still NaN."""
    wrong = MEAN.replace("mask[..., None]", "(~mask[..., None])").replace(".clamp(min=1)", "")
    (file := tmp_path / "mine.py").write_text(HEAD + wrong)
    assert not any("line" in result for result in checked(file).results)


def test_a_line_of_a_notebook_has_its_cell(tmp_path):
    cells = [HEAD, ATTENTION.replace("dim=-1", "dim=1")]
    page = {
        "nbformat": 4,
        "cells": [{"cell_type": "code", "source": cell.splitlines(True)} for cell in cells],
    }
    (file := tmp_path / "mine.ipynb").write_text(json.dumps(page))
    assert line_of(checked(file))["where"] == "Line 12 of cell 2"


def test_lines_do_not_change_the_other_results(tmp_path):
    (file := tmp_path / "mine.py").write_text(HEAD + ADDITIVE.replace("2) + self", "2) * self"))
    with_line, without = checked(file), checked(file, 0)
    for result in with_line.results:
        result.pop("line", None)
    assert with_line.results == without.results
