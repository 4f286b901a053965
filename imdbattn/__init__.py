"""imdbattn: a ladder of attention models over GloVe-embedded IMDB reviews.

The names in `__all__` are the Python API. Each is imported when it is first used: `import imdbattn`
loads no torch.
"""

import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imdbattn.api.comparison import compare as compare
    from imdbattn.api.model import Model as Model
    from imdbattn.api.model import load as load
    from imdbattn.api.training import train as train
    from imdbattn.errors import UserError as UserError
    from imdbattn.tasks.reviews.classifier import ReviewClassifier as ReviewClassifier

__version__ = "0.1.0"
__all__ = ["Model", "ReviewClassifier", "UserError", "__version__", "compare", "load", "train"]

_MODULES = {
    "Model": "imdbattn.api.model",
    "ReviewClassifier": "imdbattn.tasks.reviews.classifier",
    "UserError": "imdbattn.errors",
    "compare": "imdbattn.api.comparison",
    "load": "imdbattn.api.model",
    "train": "imdbattn.api.training",
}


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'imdbattn' has no attribute '{name}'")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _set_spin_count() -> None:
    """Sets how long torch's OpenMP threads wait for each other in a loop (docs/speed.md), before
    torch is loaded.

    Without a pause of the loop, threads keep the processor from each other where other programs
    run: then 0 steps.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ) or not os.path.exists(
        "/proc/loadavg"
    ):
        return
    running = []
    for _ in range(3):
        with open("/proc/loadavg") as file:
            running.append(int(file.read().split()[3].split("/")[0]))
        time.sleep(0.001)
    os.environ["GOMP_SPINCOUNT"] = "0" if min(running) > 1 else "30000"


_set_spin_count()
