"""How long a person waits: for `--help`, for the settings, and for the first optimiser step of a training run.

    python -m benchmarks.startup

Each number is the wall-clock time of a process from its start, with warm caches: our command, and in turn with it a
process that only imports what no such command can do without. W&B is offline, as for a user without a key.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial

from benchmarks.table import Row, in_turn, markdown, row, run, seconds

HYDRA = ["-c", "import hydra, omegaconf"]
TORCH = ["-c", "import os, torch, lightning; os._exit(0)"]  # without the end of the process, like a first step
STEPPED = 42  # exit status
# Runs imdbattn.train with the words that follow and ends after the optimiser's first step. torch gets its hook when
# training.fit is asked for: loaded any earlier it would change the order in which the command loads things.
FIRST_STEP = f"""
import os, sys
class Hook:
    def find_spec(self, name, path, target=None):
        if name == "imdbattn.runs.fit":
            from torch.optim.optimizer import register_optimizer_step_post_hook
            register_optimizer_step_post_hook(lambda *_: os._exit({STEPPED}))
sys.meta_path.insert(0, Hook())
from imdbattn.train import main
main()
"""


def python(*arguments: str, status: int = 0) -> None:
    """Runs the interpreter. Raises RuntimeError where it ends in another status."""
    run([sys.executable, *arguments], status)


def first_step(*overrides: str) -> None:
    """A training run up to its first optimiser step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # W&B's service still writes for a moment
        python("-c", FIRST_STEP, f"hydra.run.dir={folder}", *overrides, status=STEPPED)


def measured(name: str, goal: str, ours: Callable[[], None], theirs: list[str], rounds: int) -> Row:
    pairs = in_turn(lambda: seconds(ours), lambda: seconds(partial(python, *theirs)), rounds)
    return row(name, "s", goal, pairs)


def rows() -> list[Row]:
    first_step()  # fills the caches, the compiled modules' among them
    command = partial(python, "-m", "imdbattn.train")
    light, step = "<= 1.5 x + 0.5 s", "<= 2.5"
    packaged = ["data.source=packaged", "logger=csv"]
    return [
        measured("train --help, beside importing Hydra", light, partial(command, "--help"), HYDRA, 7),
        measured("train --cfg job, beside importing Hydra", light, partial(command, "--cfg", "job"), HYDRA, 7),
        measured("train to its first step, beside importing torch and Lightning", step, first_step, TORCH, 3),
        measured(f"the same, {' '.join(packaged)}", step, partial(first_step, *packaged), TORCH, 3),
    ]


if __name__ == "__main__":
    print(markdown(rows()), end="")
