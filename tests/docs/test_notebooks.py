"""The notebooks in docs/notebooks run, and their stored outputs are complete."""

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

from tests.notebooks import METADATA, NOTEBOOKS, execute  # noqa: E402

UNWANTED = {
    "absolute path": r"(?:^|[\s'\"=(>])/\w[\w.-]*/[\w.-]+",
    "progress bar": r"\r|\x1b|it/s\b",
    "warning": r"Warning\b",
    "address": r"\bat 0x[0-9a-f]+",
}

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def text_of(output: dict) -> str:
    """All text and HTML of an output, without the images in it."""
    data = output.get("data", {})
    kept = [
        output.get("text", ""),
        *(value for kind, value in data.items() if kind.startswith("text/")),
    ]
    return re.sub(r"data:image/[^\"]+", "", "\n".join(kept))


def problems(notebook: dict) -> list[str]:
    """What would disturb a reader of the file."""
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    found = []
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        found.append("order of execution")
    if notebook.metadata != METADATA or any(cell.metadata for cell in notebook.cells):
        found.append("metadata")
    for output in outputs:
        if output.output_type == "error" or output.get("name") == "stderr":
            found.append(output.get("name") or output.output_type)
        found += [name for name, pattern in UNWANTED.items() if re.search(pattern, text_of(output))]
    return found


@notebooks
def test_outputs_are_complete_and_legible(path):
    notebook = nbformat.read(path, as_version=4)
    assert problems(notebook) == []
    assert sum(bool(cell.get("outputs")) for cell in notebook.cells) > 5
    assert [path.stem for path in NOTEBOOKS] == ["attention", "ladder", "your_data"]


@pytest.mark.slow
@notebooks
def test_each_cell_runs(path: Path):
    """With few steps of training."""
    notebook = execute(path, fast=True)
    assert problems(notebook) == []
