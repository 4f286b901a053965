"""Executes the notebooks in docs/notebooks: `python -m tests.notebooks ladder.ipynb`."""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.processes import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


FAST = """import imdbattn

whole = imdbattn.train


def train(*overrides, **options):
    own = "data.path=messages.csv" in overrides
    short = ["trainer.max_epochs=1" if own else "trainer.limit_train_batches=3"]
    if "task=seq2seq" in overrides:
        short += ["data.train=600", "data.validation=20", "data.test=20"]
    if "data=order_probe" in overrides:
        short += ["data.probe.train=200", "data.probe.validation=20", "data.probe.test=20"]
    return whole(*overrides, *short, **options)


imdbattn.train = train"""


def execute(path: Path, fast: bool = False) -> nbformat.NotebookNode:
    """The notebook, executed in a new kernel in a temporary folder, which is removed afterwards.

    fast: train for few steps; the numbers mean nothing. Raises CellExecutionError for the first
    cell that fails.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[:0] = [nbformat.v4.new_code_cell(FAST)] if fast else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.realpath(temporary)
        own = {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": folder,
            "IPYTHONDIR": folder,
            "JUPYTER_RUNTIME_DIR": folder,
        }
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=1800,
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute(cwd=folder, env=os.environ | own)
    for cell in [one for one in notebook.cells if one.cell_type == "code"] if fast else []:
        cell.execution_count -= 1  # without the first cell
    notebook.cells = notebook.cells[fast:]
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.clear()
        for output in cell.get("outputs", ()):
            clean(output, folder)
    return notebook


def clean(output: nbformat.NotebookNode, folder: str) -> None:
    """Removes the names of temporary folders, and the text of a result that has HTML as well."""
    data = output.get("data", {})
    if "text/html" in data:
        data.pop("text/plain", None)
    for part in (output, data):
        for name, value in part.items():
            if isinstance(value, str):
                part[name] = re.sub(rf"{re.escape(folder)}(/tmp\w+)?/?", "", value)


if __name__ == "__main__":
    for path in NOTEBOOKS:
        if len(sys.argv) == 1 or path.name in sys.argv:
            nbformat.write(execute(path), path)
            print(path.relative_to(ROOT))
