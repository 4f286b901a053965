"""Seconds until `--help`, the settings, and the first optimizer step of a training run, with warm caches.

The other side of each row only imports what such a command needs at least.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial

from benchmarks.common import Row, in_turn, row, run, seconds

HYDRA = ["-c", "import hydra, omegaconf"]
TORCH = ["-c", "import os, torch, lightning; os._exit(0)"]  # without the process's clean-up, as the first step
STEPPED = 42  # exit status
# Ends imdbattn.train after its first optimizer step. The hook is set when imdbattn.runs.fit is imported: importing
# torch any earlier would change the order of the command's imports.
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
    run([sys.executable, *arguments], status)


def first_step(*overrides: str) -> None:
    """A training run until its first optimizer step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # W&B's process still writes for a moment
        python("-c", FIRST_STEP, f"hydra.run.dir={folder}", *overrides, status=STEPPED)


def measured(name: str, goal: str, ours: Callable[[], None], theirs: list[str], rounds: int) -> Row:
    return row(name, "s", goal, in_turn(lambda: seconds(ours), lambda: seconds(partial(python, *theirs)), rounds))


def rows() -> list[Row]:
    first_step()  # fills the caches, those of compiled Python modules included
    command = partial(python, "-m", "imdbattn.train")
    light, step = "<= 1.5 x + 0.5 s", "<= 2.5"
    packaged = ["data.source=packaged", "logger=csv"]
    return [
        measured("train --help, beside importing Hydra", light, partial(command, "--help"), HYDRA, 7),
        measured("train --cfg job, beside importing Hydra", light, partial(command, "--cfg", "job"), HYDRA, 7),
        measured("train to its first step, beside importing torch and Lightning", step, first_step, TORCH, 3),
        measured(f"the same, {' '.join(packaged)}", step, partial(first_step, *packaged), TORCH, 3),
    ]
