"""imdbattn.check reports each known mistake by name, and nothing for correct solutions in several styles."""

import ast
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from imdbattn.check import PARTS, functions, process
from imdbattn.check.__main__ import run
from imdbattn.check.process import Outcome
from imdbattn.check.report import as_text
from imdbattn.check.subject import RULES, check

from .solutions.changes import CHANGES

FOLDER = Path(__file__).parent / "solutions"
RIGHT, WRONG = sorted(FOLDER.glob("right/*.py")), sorted(FOLDER.glob("wrong/*.py"))
LINEARS = (FOLDER / "right" / "linears.py").read_text()
LOOPS = {"SelfAttention": "Attend", "masked_mean": "pool", "positional_encoding": "encode", "PlainLayer": "Rung"}
LOOPS |= {"test_accuracy": "accuracy"}
# Checks that do not apply: the parameters, or the vectors that the last Linear reads, are not recognized.
UNKNOWN = {("einsum", "reference"), ("fused", "cls-read"), ("multihead", "cls-read"), ("loops", "cls-read")}
# The list of mistakes that public solutions of the exercise make -> the solution here that makes it.
KNOWN = {
    "softmax over the queries": "softmax_over_queries",
    "no key mask": "no_key_mask",
    "padding in the mean": "padding_in_mean",
    "id 0 as padding": "id_0_as_padding",
    "padding id equal to the unknown-word id": "unknown_as_padding",
    "CLS over the first word": "cls_over_first_word",
    "CLS never trained": "cls_not_trained",
    "LN(x) on the skip path": "norm_on_skip",
    "layers in a Python list": "layers_in_a_list",
    "softmax applied twice": "softmax_twice",
    "test accuracy on the training loader": "accuracy_on_training",
}
# Mistakes that the classifier shows, too, checked with it: they are still one finding. Others are checked without it.
WHOLE = {change[3] for change in CHANGES if change[0] in ("no-key-mask", "nan-at-padding", "changes-its-input")}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Checks change the default type and import paths of their process."""
    path, written = list(sys.path), sys.dont_write_bytecode
    yield
    sys.path[:], sys.dont_write_bytecode = path, written
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def command(shell, tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs the command in tmp_path. It starts faster than a fork of a process that has imported everything."""
    return partial(shell, "check", cwd=tmp_path, real=True)


@pytest.fixture(scope="module")
def linears() -> list[dict]:
    return results(FOLDER / "right" / "linears.py")


def results(file: Path, names: dict[str, str] | None = None) -> list[dict]:
    messages = list(check(str(file), names or {}))
    assert messages[-1] == {"done": True}
    return [message["result"] for message in messages if "result" in message]


def findings(found: list[dict]) -> list[dict]:
    return [result for result in found if result["held"] is False and result["finding"] != "blocked"]


def without(text: str, *parts: str) -> str:
    """The file without some of its classes and functions."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if getattr(node, "name", "") not in parts]
    return ast.unparse(tree)


def changed(part: str, old: str, new: str) -> str:
    """right/linears.py with the first occurrence of `old` in or after a part replaced, without what is not needed."""
    start = LINEARS.index(f"def {part}(") if f"def {part}(" in LINEARS else LINEARS.index(f"class {part}(")
    start = start if old in LINEARS[start:] else 0
    assert old in LINEARS[start:], "the change is of a line that is not in the file"
    text = LINEARS[:start] + LINEARS[start:].replace(old, new, 1)
    text = text.replace("range(3))", "range(1))")  # layers
    return text if part == "Classifier" or new in WHOLE else without(text, "Classifier")


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_correct_solutions_pass_all_checks(file, linears):
    found = linears if file.stem == "linears" else results(file, LOOPS if file.stem == "loops" else None)
    assert findings(found) == []
    assert all(result["sentence"].endswith(".") for result in found)
    for result in found:  # only what the file does not have is not checked
        assert result["held"] or "no such argument" in result["sentence"] or (file.stem, result["check"]) in UNKNOWN, (
            result
        )


def test_a_correct_solution_with_all_parts_is_checked_by_all_rules(linears):
    assert [(r["part"], r["check"]) for r in linears] == [(part, rule.name) for part in RULES for rule in RULES[part]]
    assert list(RULES) == list(PARTS)
    assert all(result["held"] for result in linears)


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_wrong_solutions_are_reported_by_name(file):
    (expected,) = re.findall(r"\A# expected: (\S+)", file.read_text())
    (finding,) = findings(results(file))
    assert finding["finding"] == expected
    for key in ("sentence", "example", "fix"):
        assert finding[key].endswith("."), key
    assert re.search(r"\d", finding["example"]), "numbers show it"


def test_each_known_mistake_has_a_wrong_solution():
    assert set(KNOWN.values()) <= {file.stem for file in WRONG}
    assert len(KNOWN) == 11


@pytest.mark.parametrize(
    ("expected", "part", "old", "new"),
    [pytest.param(*change, marks=pytest.mark.slow if number % 3 else ()) for number, change in enumerate(CHANGES)],
    ids=[f"{change[1]}-{change[0]}" for change in CHANGES],
)
def test_one_mistake_is_one_finding(expected, part, old, new, tmp_path):
    (file := tmp_path / "mine.py").write_text(changed(part, old, new))
    (found,) = findings(results(file))
    assert (found["part"], found["finding"]) == (part, expected)
    assert found["example"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self.head(pooled)", "return self.head(pooled) / 2 + self.head(pooled / 3) + 1"),
        ("x = layer(x, mask)", "x = torch.cat([layer(*one) for one in zip(x.split(1), mask.split(1))])"),
        ("nn.Linear(width, classes)", "torch.jit.script(nn.Linear(width, classes))"),
    ],
    ids=["affine", "each-review", "scripted"],
)
def test_unusual_classifiers_pass(old, new, tmp_path):
    (file := tmp_path / "mine.py").write_text(changed("Classifier", old, new))
    assert findings(results(file)) == []


@pytest.mark.parametrize(
    ("part", "old", "new", "causes"),
    [
        ("SelfAttention", "torch.softmax(scores, dim=-1)", "scores.softmax(-1).softmax(-1)", ["second softmax"]),
        (
            "ResidualLayer",
            "x + self.f(self.norm(x), mask)",
            "self.norm(x + self.f(self.norm(x), mask))",
            ["applied to x + f(LN(x))"],
        ),
        (
            "ResidualLayer",
            "x + self.f(self.norm(x), mask)",
            "self.norm(x) + self.f(x, mask)",
            ["LN(x) is added to f(x)"],
        ),
    ],
)
def test_a_finding_names_each_of_its_causes(part, old, new, causes, tmp_path):
    (file := tmp_path / "mine.py").write_text(changed(part, old, new))
    first = findings(results(file))[0]
    assert all(cause in first["sentence"] + first["fix"] for cause in causes), first


def test_a_mistake_blocks_the_checks_that_depend_on_it():
    found = results(FOLDER / "wrong" / "no_key_mask.py")
    blocked = {result["check"] for result in found if result["finding"] == "blocked"}
    assert blocked == {"batch", "finite", "gradients"}


def test_no_wrong_accuracy_equals_the_right_one():
    assert all(abs(value - functions.share(*functions.TEST)) > 0.01 for _, _, value in functions.ACCURACIES)


def test_an_exception_in_the_checker_is_no_finding(monkeypatch):
    monkeypatch.setattr(functions, "MEANS", [("name", "sentence", None)])
    found = results(FOLDER / "wrong" / "padding_in_mean.py")
    (reference,) = [result for result in found if result["check"] == "reference"]
    assert (reference["held"], reference["finding"]) == (None, "not-checked")
    assert "the checker raised TypeError" in reference["sentence"]
    others = [result for result in found if result["held"] is not False]
    monkeypatch.setattr(process, "run", lambda *_: Outcome(results=others))
    monkeypatch.setattr(sys, "argv", ["check", __file__])
    assert run() == 2, "the checker failed and found no mistake"


def test_an_error_in_one_part_does_not_block_the_others(tmp_path):
    text = changed("SelfAttention", "scores.masked_fill(~mask[:, None, :], -1e9)", "scores")
    text = text.replace("self.g(x + self.f(self.norm(x), mask))", "self.g(x + self.f(x, mask))")
    (file := tmp_path / "mine.py").write_text(text)
    names = {(result["part"], result["finding"]) for result in findings(results(file))}
    assert names == {("SelfAttention", "no-key-mask"), ("ResidualLayer", "no-norm")}


def test_the_document_shows_what_is_printed():
    document = (FOLDER.parents[1] / "docs" / "check.md").read_text()
    shown = re.findall(r"/wrong/(\w+\.py)\).*?```text\n(.*?)```", document, re.DOTALL)
    assert len(shown) == 3
    for name, text in shown:
        outcome = Outcome()
        for message in check(str(FOLDER / "wrong" / name), {}):
            outcome.take(message)
        lines = as_text(outcome).splitlines()
        kept = lines if text.startswith("ok") else [line for line in lines if not line.startswith("ok")][1:]
        assert text.splitlines() == kept, name


# --- the command ------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return "mine.py"


def test_exit_status_and_text(command, tmp_path):
    done = command(write(tmp_path, without(LINEARS, "Classifier")))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok     SelfAttention: The result has the documented shape, also for one review")
    assert "Not in the file: Classifier.\n" in done.stdout
    assert done.stdout.endswith("28 of 28 checks hold.\n")
    done = command(str(FOLDER / "wrong" / "softmax_over_queries.py"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.index("ok  ") < done.stdout.index("WRONG  SelfAttention: softmax-over-queries.")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert not list(tmp_path.rglob("__pycache__"))


def test_json_is_one_object_with_the_same_status(command, tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('torch must not import this')")
    text = "print('seen')\n" + (FOLDER / "wrong" / "padding_in_mean.py").read_text()
    done = command(write(tmp_path, text), "--json")
    page = json.loads(done.stdout)
    assert done.returncode == 1
    assert set(page) == {"version", "file", "score", "parts", "not_found", "checks", "printed"}
    assert (page["version"], page["file"], page["parts"]) == (1, "mine.py", ["masked_mean"])
    assert page["score"] == {"held": 2, "of": 5}
    assert page["printed"] == "seen"
    keys = {"part", "check", "held", "finding", "sentence", "example", "fix"}
    assert all(set(result) == keys for result in page["checks"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "finding", "options"),
    [
        ("    while True: pass", "too-slow", ["--seconds", "1"]),
        ("    import os; os._exit(0)", "ended-early", []),
        ("    return torch.zeros(10**12)", "too-much-memory", ["--memory", "1"]),
    ],
)
def test_crashes_and_endless_loops_are_findings(command, tmp_path, code, finding, options):
    """Earlier parts keep their results, and nothing that the file prints or writes makes it pass."""
    text = f"{without(LINEARS, *set(PARTS) - {'masked_mean'})}\ndef positional_encoding(length, width):\n{code}\n"
    text += "print('{\"done\": true}', flush=True)\n"
    started = time.monotonic()
    done = command(write(tmp_path, text), "--json", *options)
    page = json.loads(done.stdout)
    assert done.returncode == 1
    assert [check["held"] for check in page["checks"]] == [True] * 5 + [False]
    assert page["checks"][5]["finding"] == finding
    assert page["score"] == {"held": 5, "of": 6}
    assert time.monotonic() - started < 20


@pytest.mark.slow
def test_processes_that_the_file_started_end_with_it(command, tmp_path):
    text = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
    done = command(write(tmp_path, f"{text}while True: pass"), "--json", "--seconds", "1")
    page = json.loads(done.stdout)
    assert [check["finding"] for check in page["checks"]] == ["too-slow"]
    time.sleep(0.2)
    status = Path(f"/proc/{page['printed']}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_the_stub_is_checked_quickly_and_reported_as_unwritten(command, tmp_path):
    done = command("--stub", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    assert "torch" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    (file := tmp_path / "stub.py").write_text(done.stdout)
    found = findings(results(file))
    assert {result["finding"] for result in found} == {"not-written-yet"}
    defined = {node.name for node in ast.parse(done.stdout).body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert defined == set(PARTS)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "a file is missing"),
        (["nowhere.py"], "nowhere.py cannot be read (No such file or directory)"),
        (["bad.py"], "bad.py is not Python: "),
        (["other.py", "--name", "masked_mean=average"], "has no class or function average"),
        (["other.py", "--name", "mean=average"], "--name mean=average must be PART=NAME"),
        (["other.py", "--seconds", "0"], "--seconds 0 must be above 0"),
        (["other.py", "--memory", "much"], "argument --memory: invalid float value: 'much'"),
        (["other.py", "--speed"], "unrecognized arguments: --speed"),
    ],
)
def test_wrong_input_ends_in_one_line(command, tmp_path, arguments, error):
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert error in done.stderr


def test_a_file_without_any_part_is_wrong_input(tmp_path):
    (file := tmp_path / "mine.py").write_text("x = 1\n")
    assert "has none of SelfAttention, " in list(check(str(file), {}))[-1]["error"]


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "def masked_mean(x, mask): raise SystemExit(0)"])
def test_an_exit_is_a_finding(tmp_path, code):
    (file := tmp_path / "mine.py").write_text(code)
    (finding,) = findings(results(file))
    assert finding["finding"] == "raises"


def test_an_exception_names_the_line_of_the_file(tmp_path):
    (file := tmp_path / "mine.py").write_text("def masked_mean(x, mask):\n    y = x\n    return y / nothing\n")
    (finding,) = findings(results(file))
    assert (finding["finding"], finding["sentence"]) == ("raises", "Line 3 raises an exception.")
    assert "name 'nothing' is not defined" in finding["example"]
