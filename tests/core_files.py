"""Prints the files of the package that a short training run loads: `python -m tests.core_files`."""

import runpy
import sys
import tempfile
from pathlib import Path

import imdbattn

WORDS = ("model=residual_pe", "logger=csv", "pictures=false", "data.limit=300")
SHORT = ("trainer.max_epochs=1", "trainer.accelerator=cpu")


def loaded_files() -> dict[str, int]:
    """Returns the number of lines of each file with more than one, after a training run."""
    root = Path(imdbattn.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["train", *WORDS, *SHORT, f"hydra.run.dir={folder}/run"]
        runpy.run_module("imdbattn.train", run_name="__main__", alter_sys=True)
    modules = [module for name, module in sys.modules.items() if name.startswith("imdbattn")]
    files = {Path(module.__file__) for module in modules if getattr(module, "__file__", None)}
    lines = {str(file.relative_to(root)): len(file.read_text().splitlines()) for file in files}
    return {name: count for name, count in lines.items() if count > 1}


if __name__ == "__main__":
    found = loaded_files()
    for name, count in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{count:5} {name}")
    print(f"{sum(found.values()):5} lines in {len(found)} files")
