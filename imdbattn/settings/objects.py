"""Creates objects of the classes that settings name with `_target_`, and imports other objects that
settings name by a dotted path.

settings.trust checks whether a run folder may name them, before it is used.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from imdbattn.errors import UserError, one_line, wrapping_errors
from imdbattn.settings.schema import ClassSettings, SettingsGroup

TARGET = "_target_"
Class = TypeVar("Class")


def import_object(path: str, key: str) -> Any:
    """Returns what a dotted path names: a class or a function in a module.

    key: the setting that names it. Raises UserError if it cannot be imported.
    """
    module, _, name = path.rpartition(".")
    package = path.partition(".")[0]
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == package
        remedy = f"; {package} must be installed, or its folder be in PYTHONPATH"
        raise UserError(
            f"{key}={path} cannot be imported: {one_line(error, 600)}{remedy * is_missing}"
        ) from error
    if not hasattr(loaded, name):
        from imdbattn.settings.messages import nearest_text

        near = nearest_text(path, {f"{module}.{known}" for known in dir(loaded)})
        raise UserError(f"{key}={path} cannot be imported: {module} has no {name}{near}")
    return getattr(loaded, name)


def import_class(path: str, key: str, base: type[Class]) -> type[Class]:
    """Returns the class at a dotted path. Raises UserError unless it is a subclass of `base`."""
    loaded = import_object(path, key)
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise UserError(f"{key}={path} is not a subclass of {base.__module__}.{base.__name__}")
    return loaded


def import_callable(settings: object, group: str) -> tuple[str, Callable[..., Any]]:
    """Returns the name of a callable for messages, and the callable with its keyword arguments:
    `_target_` is a function, or a class whose object is called.

    group: for example data.tokenizer. Raises UserError if it cannot be imported or created.
    """
    arguments = as_mapping(settings)
    target = arguments.pop(TARGET)
    key = f"{group}.{TARGET}"
    loaded = import_object(target, key)
    name = f"{key}={target}"
    if not isinstance(loaded, type):
        created = partial(loaded, **arguments) if callable(loaded) else loaded
    else:
        with wrapping_errors(name):
            created = loaded(**arguments)
    if not callable(created):
        raise UserError(f"{name} cannot be called")
    return name, created


def as_mapping(setting: Any) -> dict[str, Any]:
    """Returns `_target_` and the keyword arguments of a callable, from settings or a mapping."""
    return setting.dump() if isinstance(setting, ClassSettings) else dict(setting)


def check_arguments(
    node: object, key: str, base: type | None, inner_base: type | None = None
) -> None:
    """Raises UserError for a class among the settings that cannot be loaded, or that does not
    accept one of its arguments. Called before data are read; `instantiate` follows later.

    key: the dotted name of the settings. base: the base class of the outermost `_target_`.
    inner_base: the base class of nested ones; None allows any class.
    """
    settings = node.dump() if isinstance(node, SettingsGroup) else node
    if not isinstance(settings, Mapping):
        return
    if path := settings.get(TARGET):
        target = f"{key}.{TARGET}"
        loaded = import_class(path, target, base) if base else import_object(path, target)
        parameters = inspect.signature(loaded).parameters
        takes_any = any(known.kind == known.VAR_KEYWORD for known in parameters.values())
        for name in settings:
            if not (takes_any or name in parameters or name in (TARGET, "_partial_")):
                from imdbattn.settings.messages import nearest_text

                near = nearest_text(f"{key}.{name}", {f"{key}.{known}" for known in parameters})
                raise UserError(f"{key}.{name} is not an argument of {path}{near}")
    for name, value in settings.items():
        check_arguments(value, f"{key}.{name}", inner_base, inner_base)


def instantiate(node: object, key: str, base: type) -> Any:
    """Returns the settings with an object in place of each group that has a `_target_`, or a
    functools.partial if it has `_partial_: true`. The class must be a subclass of `base`.

    node: settings of the user, or of a run folder that `refuse_untrusted` has accepted. key: their
    dotted name, with which the message of a UserError begins.
    """
    if isinstance(node, SettingsGroup):
        node = node.dump()
    if isinstance(node, list):
        return [instantiate(value, f"{key}.{index}", base) for index, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    values = {name: instantiate(value, f"{key}.{name}", base) for name, value in node.items()}
    if (target := values.pop(TARGET, None)) is None:
        return values
    is_partial = values.pop("_partial_", False)
    with wrapping_errors(key):
        loaded: Callable[..., object] = import_class(target, f"{key}.{TARGET}", base)
        return partial(loaded, **values) if is_partial else loaded(**values)
