"""Builds objects from settings: a group with `_target_` names a class, and its other keys are the
arguments.
"""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from imdbattn.errors import UserError, naming


def make(settings: object, what: str, kind: type, key: str = "") -> Any:
    """Returns what `instantiate` returns.

    Raises UserError of one line that names `what`, or a `_target_` that is not a subclass of
    `kind`.

    settings: of the user, or of a run folder that `refuse_untrusted` has accepted. key: the dotted
    name of the settings, where it is not `what`.
    """
    with naming(what):
        return instantiate(settings, key or what, kind)


def instantiate(node: object, key: str, kind: type) -> Any:
    """Returns the settings with each group that has a `_target_` replaced by an object of that
    class.

    With `_partial_: true` it is a functools.partial instead. key: the dotted name of the settings.
    """
    if isinstance(node, list):
        return [instantiate(value, f"{key}.{index}", kind) for index, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    values = {name: instantiate(value, f"{key}.{name}", kind) for name, value in node.items()}
    if (target := values.pop("_target_", None)) is None:
        return values
    is_partial, loaded = values.pop("_partial_", False), class_at(target, key, kind)
    return partial(loaded, **values) if is_partial else loaded(**values)


def class_at(target: str, key: str, kind: type) -> Any:
    """Returns the class with a dotted path.

    Raises UserError if it cannot be imported, or is not a subclass of `kind`.
    """
    module, _, name = target.rpartition(".")
    package = target.partition(".")[0]
    remedy = f"{package} must be installed (pip install -e .), or its folder be in PYTHONPATH"
    with naming(f"{key}._target_={target} cannot be imported", remedy):
        loaded: Any = getattr(importlib.import_module(module), name)
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        raise UserError(
            f"{key}._target_={target} is not a subclass of {kind.__module__}.{kind.__name__}"
        )
    return loaded
