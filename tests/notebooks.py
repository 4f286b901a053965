"""Executes the notebooks in docs/notebooks: `make notebooks`, or `python -m tests.notebooks ladder.ipynb`.

Metadata and the names of temporary folders are removed from the result, so that it differs little from the last one.
"""

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


def execute(path: Path, **environment: str) -> nbformat.NotebookNode:
    """The notebook, executed in a new kernel in a temporary folder, which is removed afterwards.

    environment: variables of the kernel. Raises CellExecutionError for the first cell that fails.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.realpath(temporary)
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": folder, "IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder}
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=1800, record_timing=False, coalesce_streams=True
        )
        client.execute(cwd=folder, env=os.environ | own | environment)
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
