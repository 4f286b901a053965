"""imdbattn: a ladder of attention models over GloVe-embedded IMDB reviews.

The names in `__all__` are the Python API. Each is imported when it is first used: `import imdbattn`
loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imdbattn.api.comparison import compare as compare
    from imdbattn.api.model import Model as Model
    from imdbattn.api.model import load as load
    from imdbattn.api.training import train as train
    from imdbattn.errors import UserError as UserError
    from imdbattn.launch.process import prepare as prepare
    from imdbattn.tasks.reviews.module import ReviewClassifier as ReviewClassifier

__version__ = "0.1.0"

_MODULES = {  # public name -> the module that has it
    "Model": "imdbattn.api.model",
    "ReviewClassifier": "imdbattn.tasks.reviews.module",
    "UserError": "imdbattn.errors",
    "compare": "imdbattn.api.comparison",
    "load": "imdbattn.api.model",
    "prepare": "imdbattn.launch.process",
    "train": "imdbattn.api.training",
}
__all__ = ["__version__", *_MODULES]


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'imdbattn' has no attribute '{name}'")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
