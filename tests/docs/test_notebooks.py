"""The notebooks in docs/notebooks run, and their stored outputs are complete."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

from tests.notebooks import NOTEBOOKS, execute  # noqa: E402

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def assert_complete(notebook: dict) -> None:
    """Each cell was executed, in order, and printed neither an error nor a warning."""
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error", output
        assert output.get("name") != "stderr", output
    assert sum(bool(cell.outputs) for cell in cells) > 5


@notebooks
def test_stored_outputs_are_complete(path):
    assert_complete(nbformat.read(path, as_version=4))


@pytest.mark.slow
@notebooks
def test_each_cell_runs(path: Path):
    """With few steps of training."""
    assert_complete(execute(path, fast=True))
