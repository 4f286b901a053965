"""Builds objects from settings: a group with `_target_` names a class, and its other keys are the arguments."""

import importlib
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from imdbattn.errors import UserError, in_line
from imdbattn.settings.keys import as_dict

log = logging.getLogger(__name__)


def make(settings: Any, what: str, kind: type) -> Any:
    """`instantiate`. Raises UserError of one line that names `what`, or a `_target_` that is not a subclass of `kind`.

    settings: of the user, or of a run folder that `refuse_untrusted` has accepted.
    """
    with naming(what):
        return instantiate(settings, what.partition("=")[0], kind)  # model=residual is the group model


def make_net(model: Any, others: Collection[str], *arguments: Any, **options: Any) -> nn.Module:
    """The net that the `model` settings describe. others: settings that are not arguments of its class."""
    what = f"model={model.name}"
    parts = {key: value for key, value in as_dict(model).items() if key not in ("name", "after", *others)}
    made = make(parts, what, nn.Module)
    with naming(what):
        net: nn.Module = made(*arguments, **options)
    return net


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Turns any exception into a UserError of one line that starts with `what`."""
    try:
        yield
    except Exception as error:
        log.debug("%s", what, exc_info=True)
        remedy = ": its settings need _partial_: true" if "required positional arg" in str(error) else ""
        raise UserError(f"{what}: {reason(error)}{remedy}") from error


def instantiate(node: Any, key: str, kind: type) -> Any:
    """Settings with each group that has a `_target_` replaced by an object of that class.

    With `_partial_: true` it is a functools.partial instead. key: the dotted name of the settings.
    """
    if isinstance(node, list):
        return [instantiate(value, f"{key}.{place}", kind) for place, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    values = {name: instantiate(value, f"{key}.{name}", kind) for name, value in node.items()}
    if (target := values.pop("_target_", None)) is None:
        return values
    is_partial, found = values.pop("_partial_", False), class_at(target, key, kind)
    return partial(found, **values) if is_partial else found(**values)


def class_of(cfg: Any, key: str, kind: type) -> Any:
    """The class that the settings of a task (conf/task/) name for `key`: datamodule, lightning_module or predictor."""
    return class_at(cfg[key]._target_, key, kind)


def class_at(target: str, key: str, kind: type) -> type:
    """The class with a dotted path. Raises UserError if it cannot be imported, or is not a subclass of `kind`."""
    module, _, name = target.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # of any kind, raised by the module
        line = f"{key}._target_={target} cannot be imported: {reason(error)}"
        if getattr(error, "name", None) == target.partition(".")[0]:
            line += ": install that package (pip install -e .), or add its folder to PYTHONPATH"
        raise UserError(line) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UserError(f"{key}._target_={target} is not a subclass of {kind.__module__}.{kind.__name__}")
    return found


def reason(error: BaseException) -> str:
    """The innermost cause of an error, in one line."""
    while error.__cause__ is not None and not isinstance(error, UserError):
        error = error.__cause__
    return in_line(error, None)
