"""Callables of one's own that `_target_` names: a function, or a class whose object is called.

Other keys are keyword arguments. Whether a run folder may name them is checked by
settings.safety.refuse_untrusted, as for classes.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from imdbattn.errors import UserError, naming

TARGET = "_target_"


def as_mapping(setting: Any) -> dict[str, Any]:
    """Returns `_target_` and the keyword arguments of a callable, from settings or a mapping."""
    return dict(setting.model_dump() if hasattr(setting, "model_dump") else setting)


def callable_of(settings: object, group: str) -> tuple[str, Callable[..., Any]]:
    """Returns the name of a callable for messages, and the callable with its keyword arguments.

    group: such as data.tokenizer. Raises UserError if it cannot be imported, or its class not be
    created.
    """
    arguments = as_mapping(settings)
    target = arguments.pop(TARGET)
    key = f"{group}.{TARGET}={target}"
    loaded = imported(target, key)
    if not isinstance(loaded, type):
        return key, partial(loaded, **arguments)
    with naming(key):
        created = loaded(**arguments)
    if not callable(created):
        raise UserError(f"{key}: objects of this class cannot be called")
    return key, created


def imported(target: str, key: str) -> Any:
    """Returns the callable with a dotted path. Raises UserError if there is none."""
    module, _, name = target.rpartition(".")
    package = target.partition(".")[0]
    remedy = f"install it (pip install {package}), or add its folder to PYTHONPATH"
    with naming(f"{key} cannot be imported", remedy):
        loaded = getattr(importlib.import_module(module), name)
    if not callable(loaded):
        raise UserError(f"{key} cannot be called")
    return loaded
