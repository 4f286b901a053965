"""imdbattn.check reports each known mistake by name, and nothing for correct solutions in several
styles.
"""

import ast
import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import imdbattn.check
from imdbattn.errors import UserError
from imdbattn.tools.check.checking import check_file
from imdbattn.tools.check.report import Outcome, Result, as_text
from imdbattn.tools.check.sheets import SHEETS, load
from imdbattn.tools.check.tables import TABLES, Table

FOLDER = Path(__file__).parents[1] / "solutions"
RIGHT = sorted(FOLDER.glob("right/*.py"))
SHEET_SOLUTIONS = sorted(FOLDER.glob("sheets/[!_]*.py"))
LINEARS, SCORES = ((FOLDER / "right" / f"{name}.py").read_text() for name in ("linears", "scores"))
PARTS = load("project").parts
TITLES = {"textbook": "textbook", "lab": "lab", "self": "self-attention", "course": "Courses"}


def mistakes() -> Iterator[Any]:
    """Those of mistakes.txt: file, part, finding, text of the file, text in its place."""
    quick, slow = (FOLDER / "mistakes.txt").read_text().split("# In the slow suite.")
    for lines, marks in ((quick, ()), (slow, pytest.mark.slow)):
        for line in lines.splitlines():
            if line and not line.startswith("#"):
                file, part, finding, *texts = line.split(" | ")
                texts = [text.replace("\\n", "\n") for text in texts]
                name = f"{file}-{part}-{finding}"
                yield pytest.param(file, part, finding, *texts, marks=marks, id=name)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Checks change the default type and import paths of their process."""
    path, written = list(sys.path), sys.dont_write_bytecode
    yield
    sys.path[:], sys.dont_write_bytecode = path, written
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def command(shell, tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs the command in tmp_path. It starts faster than a fork of a process that has imported
    everything.
    """
    return partial(shell, "check", cwd=tmp_path, real=True)


def outcome_of(file: Path) -> Outcome:
    *_, outcome = check_file(str(file), {}, None)
    return outcome


def results(file: Path) -> list[Result]:
    outcome = outcome_of(file)
    assert (outcome.done, outcome.error) == (True, "")
    return outcome.results


def findings(found: list[Result]) -> list[Result]:
    return [result for result in found if result.held is False]


def without(text: str, *parts: str) -> str:
    """The file without some of its classes and functions."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if getattr(node, "name", "") not in parts]
    return ast.unparse(tree)


def changed(file: str, part: str, old: str, new: str) -> str:
    """A right solution with the first `old` in or after the part, or else in the file, replaced."""
    right = (FOLDER / f"{file}.py").read_text()
    start = max(0, right.find(f" {part}("))
    start = start if old in right[start:] else 0
    assert old in right[start:], "the change is of a line that is not in the file"
    return right[:start] + right[start:].replace(old, new, 1)


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_correct_solutions_pass_all_checks(file):
    found = results(file)
    assert findings(found) == []
    assert all(result.sentence.endswith(".") for result in found)
    unmade = [result.sentence for result in found if result.held is None]
    assert all("has no argument" in text or "not compared" in text for text in unmade)


@pytest.mark.parametrize("file", SHEET_SOLUTIONS, ids=lambda file: file.stem)
def test_right_solutions_of_each_sheet_pass_without_names(file):
    outcome = outcome_of(file)
    assert (findings(outcome.results), outcome.error, outcome.status) == ([], "", 0)
    assert TITLES[file.stem.partition("_")[0]] in outcome.sheet


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ("self_padding_mask", "batch_first=False, x is (T, B, D)"),
        ("self_padding_mask", "the mask is True on padding"),
        ("course_additive", "the mask is added to the scores"),
        ("course_padding", "the mask is 1 on padding"),
        ("textbook_classic", "Its argument scores is changed in place"),
        ("self_one_class", "Checked as ResidualLayer."),
        ("self_lengths", "Results were not compared"),
        ("self_lengths", "reads the largest of the words, not the mean."),
    ],
)
def test_what_could_have_been_otherwise_is_noted(file, note):
    outcome = outcome_of(FOLDER / "sheets" / f"{file}.py")
    assert note in " ".join(result.sentence for result in outcome.of(None))


@pytest.mark.parametrize(("file", "part", "expected", "old", "new"), mistakes())
def test_mistakes_are_reported_by_name(file, part, expected, old, new, tmp_path):
    (mine := tmp_path / "mine.py").write_text(changed(file, part, old, new))
    found = findings(results(mine))
    assert (part, expected) in [(result.part, result.finding) for result in found]
    assert all(result.example for result in found)


def test_a_mistake_blocks_the_checks_that_depend_on_it():
    found = results(FOLDER / "wrong" / "softmax_over_queries.py")
    blocked = {result.check for result in found if result.finding == "blocked"}
    assert blocked == {"batch", "finite", "gradients"}
    assert all(result.held is None for result in found if result.finding == "blocked")


def test_an_exception_in_the_checker_is_no_finding(monkeypatch):
    monkeypatch.setitem(TABLES, "masked_mean", Table({}, {"y": "unknown"}, []))
    found = outcome_of(FOLDER / "wrong" / "padding_in_mean.py").results
    (reference,) = [result for result in found if result.check == "reference"]
    assert (reference.held, reference.finding) == (None, "not-checked")
    assert "the checker raised NameError" in reference.sentence
    others = [result for result in found if result.held is not False]
    assert Outcome(results=others).status == 2, "the checker failed and found no mistake"
    assert Outcome().status == 2, "no check is no success"


def test_an_error_in_one_part_blocks_only_what_fails_in_the_parts_that_use_it(tmp_path):
    text = changed(
        "right/linears", "SelfAttention", "scores.masked_fill(~mask[:, None, :], -1e9)", "scores"
    )
    text = text.replace("self.g(x + self.f(self.norm(x), mask))", "self.g(x + self.f(x, mask))")
    (file := tmp_path / "mine.py").write_text(text)
    found = results(file)
    names = [(result.part, result.finding) for result in findings(found)]
    assert names == [("SelfAttention", "no-key-mask")]
    held = {result.check: result.held for result in found if result.part == "ResidualLayer"}
    assert (held["registered"], held["reference"]) == (True, None)


def test_the_document_shows_what_is_printed():
    document = (FOLDER.parents[1] / "docs" / "check.md").read_text()
    shown = re.findall(r"/wrong/(\w+\.py)\).*?```text\n(.*?)```", document, re.DOTALL)
    assert len(shown) == 3
    for name, text in shown:
        outcome = outcome_of(FOLDER / "wrong" / name)
        outcome.file = name
        printed = as_text(outcome)
        if not text.startswith("ok"):
            _, _, checks = printed.partition("\n")  # the first line names the file
            printed = re.sub(r"^ok .*\n( {7}.*\n)*", "", checks, flags=re.MULTILINE).lstrip("\n")
        assert text.splitlines() == printed.splitlines(), name


# --- sheets ---------------------------------------------------------------------------------------


def test_points_and_requirements_go_by_the_kind_of_a_part(here, tmp_path):
    text = (FOLDER / "sheets" / "self_cls.py").read_text()
    (tmp_path / "mine.py").write_text(text)
    points = "SelfAttention: 4\nResidualLayer: 3\nmodel: 2\n"
    (tmp_path / "points.yaml").write_text(points)
    done = here("mine.py", "--points", "points.yaml", "--require", "Classifier,residual_layer")
    assert (done.returncode, "9 of 9 points." in done.stdout) == (0, True), done.stdout
    assert "Not in the file: masked_mean.\n" in done.stdout, "only parts of the sheet"
    (tmp_path / "mine.py").write_text(text.replace(".softmax(-1)", ".softmax(1)"))
    done = here("mine.py", "--points", "points.yaml")
    assert (done.returncode, "7 of 9 points." in done.stdout) == (1, True)


SOFT = "import torch\n\ndef soft(a, n):\n    return {}\n"
RIGHT_SOFT = "a.masked_fill(torch.arange(a.shape[-1]) >= n[:, None, None], -1e9).softmax(-1)"
MINE = """title: My sheet
parts:
  soft:
    kind: masked_softmax
    signature: soft(a, n)
    calls: {a: scores, n: valid_lengths}
    change: Mask first.
    stub: "def soft(a, n):\\n    raise NotImplementedError"
"""


def test_a_teacher_adds_a_sheet_as_a_yaml_file(here, tmp_path):
    (tmp_path / "my_sheet.yaml").write_text(MINE)
    (tmp_path / "right.py").write_text(SOFT.format(RIGHT_SOFT))
    (tmp_path / "wrong.py").write_text(SOFT.format("a.softmax(-1)"))
    options = ["--sheet", "my_sheet.yaml", "--format=json"]
    done = here("right.py", *options)
    assert (done.returncode, done.stderr) == (0, "")
    done = here("wrong.py", *options, "--require", "soft")
    checks = json.loads(done.stdout)["checks"]
    (found,) = [check for check in checks if check["held"] is False]
    assert (found["part"], found["finding"]) == ("soft", "lengths-ignored")
    assert found["fix"], "what to change"
    assert "def soft(a, n):" in here("--stub", "my_sheet.yaml").stdout


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("masked_softmax", "masked_softmx", "there is no kind 'masked_softmx'"),
        ("change", "chance", "'chance'"),
        ("kind: masked_softmax", "", "needs a kind"),
        ("change", "names: ['soft(']\n    change", "unterminated subpattern"),
    ],
)
def test_a_sheet_with_a_mistake_is_refused_by_name(old, new, error, tmp_path):
    (file := tmp_path / "my_sheet.yaml").write_text(MINE.replace(old, new, 1))
    with pytest.raises(UserError, match=error):
        load(str(file))


@pytest.mark.parametrize("sheet", SHEETS)
def test_the_stub_of_a_sheet_is_recognized_and_unwritten(sheet, here, tmp_path):
    (file := tmp_path / "stub.py").write_text(here("--stub", sheet).stdout)
    outcome = outcome_of(file)
    assert outcome.sheet == load(sheet).title
    assert {result.finding for result in findings(outcome.results)} == {"not-written-yet"}


# --- the command ----------------------------------------------------------------------------------


def write(folder: Path, text: str) -> str:
    return (folder / "mine.py").write_text(text) and "mine.py"


def test_exit_status_and_text(here, tmp_path):
    done = here(write(tmp_path, without(LINEARS, "Classifier")))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "ok     SelfAttention: The result has the documented shape, also for one review"
    )
    assert "Not in the file: Classifier, scaled_dot_product_attention, " in done.stdout
    assert done.stdout.endswith("32 of 32 checks hold.\n")
    done = here(str(FOLDER / "wrong" / "softmax_over_queries.py"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.index("ok  ") < done.stdout.index(
        "WRONG  SelfAttention, line 16: softmax-over-queries."
    )
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_json_is_one_object_with_the_same_status_also_if_the_file_forks(command, tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('torch must not import this')")
    text = "import os\nprint('seen', flush=True)\nos.fork()\n"
    text += (FOLDER / "wrong" / "padding_in_mean.py").read_text()
    page = json.loads(command(write(tmp_path, text), "--format=json", status=1).stdout)
    keys = {"version", "file", "grade", "points", "parts", "not_found", "checks", "printed"}
    assert set(page) == keys
    assert (page["version"], page["file"], page["parts"]) == (2, "mine.py", ["masked_mean"])
    assert page["grade"] == {"held": 3, "of": 4}, "the fork reports nothing"
    assert page["printed"] == "seen"
    keys = {"part", "check", "held", "finding", "sentence", "example", "fix", "line"}
    assert all(set(result) == keys for result in page["checks"])
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "finding", "options"),
    [
        ("    while True: pass", "too-slow", ["--seconds", "1"]),
        ("    import os; os._exit(0)", "ended-early", []),
        ("    return torch.ones(500_000_000)", "too-much-memory", []),
    ],
)
def test_crashes_and_endless_loops_are_findings(command, tmp_path, code, finding, options):
    """Earlier parts keep their results, and nothing that the file prints or writes makes it
    pass.
    """
    text = (
        f"{without(LINEARS, *set(PARTS) - {'masked_mean'})}\ndef positional_encoding(length,"
        f" width):\n{code}\n"
    )
    text += "print('{\"done\": true}', flush=True)\n"
    started = time.monotonic()
    done = command(write(tmp_path, text), "--format=json", *options, status=1)
    page = json.loads(done.stdout)
    assert [check["held"] for check in page["checks"]] == [True] * 6 + [False]
    assert page["checks"][6]["finding"] == finding
    assert page["grade"] == {"held": 6, "of": 7}
    assert time.monotonic() - started < 20


def test_a_checker_that_cannot_begin_is_an_error_of_each_file(command, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch is broken')")
    files = [write(tmp_path, SOFT), "absent.py"]
    done = command(*files, env={"PYTHONPATH": str(tmp_path)}, status=2)
    mine, absent = csv.DictReader(io.StringIO(done.stdout))
    assert done.stderr == ""
    assert mine["error"].endswith("before it began: ImportError: torch is broken")
    assert "No such file" in absent["error"]


@pytest.mark.slow
def test_processes_that_the_file_started_end_with_it(command, tmp_path):
    text = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
    done = command(
        write(tmp_path, f"{text}while True: pass"), "--format=json", "--seconds=1", status=1
    )
    page = json.loads(done.stdout)
    assert [check["finding"] for check in page["checks"]] == ["too-slow"]
    time.sleep(0.2)
    status = Path(f"/proc/{page['printed']}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_a_file_is_read_as_its_encoding_declares(here, tmp_path):
    text = "# coding: gbk\n# \u5747\u503c\n" + without(LINEARS, *set(PARTS) - {"masked_mean"})
    (tmp_path / "mine.py").write_bytes(text.encode("gbk"))
    assert here("mine.py").returncode == 0
    (tmp_path / "mine.py").write_bytes(text.partition("\n")[2].encode("gbk"))
    done = here("mine.py")
    assert done.returncode == 2
    assert re.fullmatch(r"error: mine\.py is not Python .*\n", done.stderr)


def test_the_stub_has_all_parts_and_is_printed_without_torch(command):
    done = command("--stub", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "torch" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    kinds = ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.parse(done.stdout).body if isinstance(node, kinds)]
    assert [node.name for node in nodes] == PARTS


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "a file is missing"),
        (["bad.py"], "bad.py is not Python ("),
        (["other.py"], "has none of SelfAttention, masked_mean, "),
        (["other.py", "--name", "masked_mean=average"], "has no class or function average"),
        (["other.py", "--sheet", "absent.yaml"], "No such file or directory: 'absent.yaml'"),
        (["other.py", "--seconds", "0"], "argument --seconds: invalid positive value: '0'"),
        (
            ["other.py", "--require", "SelfAtention"],
            "there is no part 'SelfAtention': SelfAttention, masked_mean, ",
        ),
        (
            ["other.py", "--points", "bad.py"],
            "bad.py must have one line for each part, such as SelfAttention: 4",
        ),
        (["other.py", "bad.py", "--format", "gradescope"], "--format gradescope is for one file"),
    ],
)
def test_wrong_input_ends_in_one_line(here, tmp_path, arguments, error):
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    done = here(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert error in done.stderr


@pytest.mark.parametrize(
    ("code", "line", "text"),
    [
        ("raise SystemExit(0)", 1, "SystemExit"),
        ("def masked_mean(x, mask): raise SystemExit(0)", 1, "SystemExit"),
        (
            "def masked_mean(x, mask):\n    y = x\n    return y / nothing\n",
            3,
            "name 'nothing' is not defined",
        ),
    ],
)
def test_an_exception_or_an_exit_names_the_line_of_the_file(tmp_path, code, line, text):
    (file := tmp_path / "mine.py").write_text(code)
    (finding,) = findings(results(file))
    assert (finding.finding, finding.sentence) == (
        "raises",
        f"Line {line} raises an exception.",
    )
    assert text in finding.example


# --- notebooks ------------------------------------------------------------------------------------


@pytest.fixture
def notebook(tmp_path) -> Path:
    """The parts of linears.py, with a mistake in masked_mean, and what notebooks have besides
    definitions.
    """
    text = without(LINEARS, "Classifier").replace("words.sum(1).clamp(min=1)", "words.sum(1)")
    text = text.replace("import math\n", "")
    text = text.replace("        scores = ", "        # (B, T, T)?\n        scores = ")
    cells = [
        "%pip install torch\nimport absent_package",
        f"%%time\n{text}",
        "try:\n    import math\nexcept ImportError:\n    !pip install \\\n        math",
        'print("loss=%.3f" % 0.5)\nfiles = !ls',
        "mask = vectors = 1 / 0",
        "%%bash\nexit",
        "!ls\nnn?",
    ]
    cells = [{"cell_type": "code", "source": cell.splitlines(True)} for cell in cells]
    page = {"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "a def"}, *cells]}
    (file := tmp_path / "solution.ipynb").write_text(json.dumps(page))
    return file


def test_definitions_of_a_notebook_are_checked(here, notebook):
    done = here(notebook.name)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"WRONG  masked_mean, line \d+ of cell 3: nan-without-words.", done.stdout)


def test_an_exception_names_the_cell(notebook):
    notebook.write_text(notebook.read_text().replace("words = mask", "words = nothing"))
    found = findings(results(notebook))
    assert re.fullmatch(r"Line \d+ of cell 3 raises an exception\.", found[0].sentence)


def test_grade_shows_the_report_and_changes_no_state_of_torch():
    names: dict = {}
    exec(LINEARS.replace("words.sum(1).clamp(min=1)", "words.sum(1)"), names)
    state = torch.get_rng_state()
    with torch.no_grad():
        assert imdbattn.check.grade(names["SelfAttention"]).passed
        assert not torch.is_grad_enabled()
    report = imdbattn.check.grade(masked_mean=names["masked_mean"])
    assert not report.passed
    assert "WRONG  masked_mean: nan-without-words." in repr(report)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(UserError, match=r"write grade\(SelfAttention=average\)"):
        imdbattn.check.grade(average=names["masked_mean"])
    with pytest.raises(TypeError, match="give SelfAttention, not an object of it"):
        imdbattn.check.grade(names["SelfAttention"](8))


# --- graders --------------------------------------------------------------------------------------


@pytest.fixture
def graded(here, tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """As the command for a file with a right masked_mean, a wrong SelfAttention and an unwritten
    positional_encoding.
    """
    text = without(
        LINEARS, "Classifier", "ResidualLayer", "PlainLayer", "positional_encoding", "test_accuracy"
    )
    text = (
        text.replace("dim=-1", "dim=1")
        + "\ndef positional_encoding(length, width):\n    raise SystemExit\n"
    )
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "points.yaml").write_text("SelfAttention: 8\nmasked_mean: 2\nPlainLayer: 1\n")
    return partial(here, "mine.py")


def test_points_count_checks_that_could_be_made(graded):
    page = json.loads(graded("--format", "gradescope", "--points", "points.yaml").stdout)
    assert page["score"] == 8 / 2 + 2, "a part that computes another function has at most half"
    assert {test["name"]: (test.get("score"), test["max_score"]) for test in page["tests"]} == {
        "SelfAttention": (4, 8),
        "masked_mean": (2, 2),
        "PlainLayer": (0, 1),
    }
    assert all(test["visibility"] == "visible" for test in page["tests"])
    assert "softmax-over-queries" in page["tests"][0]["output"]
    assert "6 of 11 points." in page["output"]


@pytest.mark.slow
def test_a_part_of_which_no_check_could_be_made_is_not_scored(graded, tmp_path):
    (tmp_path / "mine.py").write_text("import absent_package\n")
    page = json.loads(graded("--format", "gradescope", "--points", "points.yaml").stdout)
    assert all("score" not in test for test in page["tests"])
    assert "Not graded: no check of this part could be made." in page["tests"][0]["output"]
    assert 'put tests and training under if __name__ == "__main__"' in page["output"]
    assert (
        "Not graded, because no check could be made: SelfAttention, masked_mean, PlainLayer."
        in " ".join(page["output"].split())
    )


def test_required_parts(graded, tmp_path):
    (tmp_path / "mine.py").write_text(without(LINEARS, *set(PARTS) - {"masked_mean"}))
    assert graded("--require", "masked_mean").returncode == 0
    done = graded("--require", "masked_mean,SelfAttention")
    assert (done.returncode, "SelfAttention is not in the file." in done.stdout) == (1, True)


def test_several_files_are_rows(graded, tmp_path):
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "absent.py").write_text("import absent_package\n")
    done = graded("bad.py", "absent.py", "--points", "points.yaml")
    mine, bad, absent = csv.DictReader(io.StringIO(done.stdout))
    assert [mine[key] for key in ("held", "of", "not_made", "points", "of_points")] == [
        "10",
        "13",
        "3",
        "6.0",
        "11",
    ]
    assert mine["findings"].startswith("SelfAttention: softmax-over-queries; positional_encoding: ")
    assert bad["error"].startswith("bad.py is not Python (")
    assert [bad["points"], absent["points"]] == ["", ""], "not graded is not 0 points"
    error = "ModuleNotFoundError: No module named 'absent_package'"
    assert absent["findings"] == f"file: raises ({error})"
    assert done.returncode == 2


def commands_of(document: str) -> list[str]:
    lines = [line.split("run: ")[-1].strip() for line in document.replace("\\\n", "").splitlines()]
    return [line for line in lines if line.startswith("python -m imdbattn.check ")]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "fewest"), [("check.md", 8), ("zh/check.md", 5)])
def test_commands_of_the_document(page, fewest, notebook, tmp_path):
    """Each works as it is written, with folders of this test in place of those of the grader."""
    documents = FOLDER.parents[1] / "docs"
    document = (documents / page).read_text()
    lines = commands_of(document)
    assert len(lines) >= fewest
    (tmp_path / "my_attention.py").write_text(
        without(LINEARS, "Classifier").replace("SelfAttention", "MyAttention")
    )
    for name in ("submission", "source", "results", "submissions"):
        (tmp_path / name).mkdir()
    english = (documents / "check.md").read_text()
    (points,) = re.findall(r"```yaml\n# points.yaml\n(.*?)```", english, re.DOTALL)
    for folder in (tmp_path, tmp_path / "source"):
        (folder / "points.yaml").write_text(points)
    (sheet,) = re.findall(r"```yaml\n# my_sheet.yaml\n(.*?)```", document, re.DOTALL)
    (tmp_path / "my_sheet.yaml").write_text(sheet)
    (tmp_path / "submissions" / "a.py").write_text(SCORES)
    (tmp_path / "submissions" / "b.py").write_text(SCORES)
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1])}
    for line in lines:
        text = line.replace("/autograder/", f"{tmp_path}/").replace(
            "python ", f"{sys.executable} ", 1
        )
        text = text.replace(" > my_attention.py", " > stub.py").replace("=average", "=masked_mean")
        done = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.stderr == "", line
        assert done.returncode in (0, 1), line


def test_cells_of_the_document():
    document = (FOLDER.parents[1] / "docs" / "check.md").read_text()
    cell, test_file = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    names: dict = {}
    exec(LINEARS, names)
    exec(cell, names)
    exec(re.sub("from otter.*|@test_case.*", "", test_file), names)
    names["test_attention"](names)
    exec(LINEARS.replace("(scores, dim=-1)", "(scores, dim=1)"), names)
    with pytest.raises(AssertionError, match="softmax-over-queries"):
        names["test_attention"](names)
