"""Keeps credentials out of files and control characters out of terminals; says which classes the
settings of a run folder may name, and builds objects of the classes that settings name.
"""

import importlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from imdbattn.errors import UserError, naming
from imdbattn.settings.keys import Plain, plain

SECRET_NAME = re.compile(
    r"(^|[_.+-])(key|token|secrets?|pass|auth|credentials?)$|api_?key$|passw(or)?d$|passphrase$",
    re.IGNORECASE,
)
# in an address
SECRET_VALUE = re.compile(r"://[^/\s@]*:[^/\s@]+@|[?&](api_?key|(access_)?token|secret)=")
# Control characters except tab and newline, and bidirectional controls: these could move the cursor
# or hide text.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Content-Security-Policy of our HTML pages, which quote reviews: a tag that was not escaped could
# load and run nothing.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action"
    " 'none'"
)


def credentials(settings: object, name: str = "") -> Iterator[str]:
    """Yields the dotted names of the settings that look like a credential: by their name, or by a
    value that contains a password.

    A password is one in a URL, or the value of an environment variable with such a name.
    """
    if settings in (None, "", True, False, {}, []):
        return
    if SECRET_NAME.search(name):
        yield name
    elif isinstance(settings, (Mapping, list)):
        for key, value in (
            settings.items() if isinstance(settings, Mapping) else enumerate(settings)
        ):
            yield from credentials(value, f"{name}.{key}" if name else str(key))
    elif SECRET_VALUE.search(text := str(settings)):
        yield name
    elif variable := next((key for key, value in passwords().items() if value in text), None):
        yield f"{name} (it contains the value of ${variable})"


def passwords() -> dict[str, str]:
    """Returns the environment variables with names of credentials, except short values and names of
    files.
    """
    values = {
        name: value
        for name, value in os.environ.items()
        if SECRET_NAME.search(name) and len(value) >= 8
    }
    return {name: value for name, value in values.items() if not os.path.exists(value)}


def refuse_credentials(settings: object) -> None:
    """Raises UserError naming a setting that looks like a credential."""
    if name := next(credentials(settings), None):
        raise UserError(
            f"{name} looks like a credential, and settings are written into each run folder: omit"
            " it, and use `wandb login`, `hf auth login` or the environment (WANDB_API_KEY,"
            " HF_TOKEN)"
        )


def without_credentials(settings: Mapping[str, object]) -> Plain:
    """Returns the settings without those that look like a credential."""
    kept: Plain = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and not SECRET_NAME.search(name):
            kept[name] = without_credentials(value)
        elif not any(credentials(value, name)):
            kept[name] = value
    return kept


def read_json(file: Path, remedy: str = "") -> Plain:
    """Returns the object in a JSON file of a run folder. Raises UserError that names a file that is
    not JSON.
    """
    with naming(f"{file} cannot be read", remedy):
        content: Plain = json.loads(file.read_text("utf-8"))
    return content


def read_settings(file: Path) -> Plain:
    """Returns a run's config.yaml, which may be untrusted. Raises UserError if it cannot be read.

    ${...} is refused, because it could read the environment or create objects.
    """
    from omegaconf import OmegaConf

    with naming(f"{file} cannot be read"):
        settings = plain(OmegaConf.create(file.read_text("utf-8")))
    return plain_settings(settings, file)


def plain_settings(settings: Any, file: Path) -> Plain:
    """Returns the settings in `file`. Raises UserError if they contain an interpolation."""
    if "${" in str(settings):
        raise UserError(f"{file} cannot be used: it contains an interpolation (${{...}})")
    return settings


Kind = TypeVar("Kind")
TRUSTED = {  # group of settings -> packages whose classes a run folder may name
    "model": ("imdbattn.nn", "torch.nn"),
    "optim": ("torch.optim", "imdbattn.tasks.optim"),
    "trainer": ("lightning.Trainer",),
    "task": ("imdbattn.tasks",),
    "logger": (
        "lightning.pytorch.loggers",
        "imdbattn.tracking",
        "swanlab.integration.pytorch_lightning",
    ),
}


def refuse_untrusted(
    settings: Mapping[str, object],
    file: Path,
    trust: str | Sequence[str] | None,
    own: Mapping[str, object] | None = None,
) -> None:
    """Raises UserError if settings from a run folder name a class that is not trusted. Imports
    nothing.

    settings: of `file`. trust: packages named by the user in this call. own: this call's own
    settings, whose classes are trusted too.
    """
    named = {target for _, target in targets(own)}
    for key, target, package in untrusted(settings, trust):
        if target not in named:
            raise UserError(
                f"{file}: {key}={target} is outside imdbattn: add trust={package} if you trust that"
                " package and this run folder"
            )


def untrusted(
    settings: Mapping[str, object], trust: str | Sequence[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yields the dotted key, class and package of each `_target_` outside the trusted packages.
    trust: further ones.
    """
    packages = [trust] if isinstance(trust, str) else trust or []
    for group, node in settings.items():
        trusted = tuple(f"{name}." for name in (*TRUSTED.get(group, ()), *packages))
        for key, target in targets(node, group) if group != "hydra" else ():  # hydra is never read
            if not f"{target}.".startswith(trusted):
                yield key, target, target.partition(".")[0]


def trust_option(file: Path) -> str:
    """Returns the option ` trust=...` that commands need to read this run, or nothing."""
    packages = ",".join(sorted({package for *_, package in untrusted(read_settings(file))}))
    return f" 'trust=[{packages}]'" if "," in packages else f" trust={packages}" if packages else ""


def targets(node: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields each `_target_` in nested settings, with its dotted key."""
    if isinstance(node, (Mapping, list)):
        for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            dotted = f"{key}.{name}" if key else str(name)
            if name == "_target_":
                yield dotted, str(value)
            else:
                yield from targets(value, dotted)


# --- objects of the classes that settings name ----------------------------------------------------


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
    is_partial = values.pop("_partial_", False)
    loaded: Callable[..., object] = class_at(target, key, kind)
    return partial(loaded, **values) if is_partial else loaded(**values)


def class_at(target: str, key: str, kind: type[Kind]) -> type[Kind]:
    """Returns the class with a dotted path.

    Raises UserError if it cannot be imported, or is not a subclass of `kind`.
    """
    module, _, name = target.rpartition(".")
    package = target.partition(".")[0]
    remedy = f"{package} must be installed (pip install -e .), or its folder be in PYTHONPATH"
    with naming(f"{key}._target_={target} cannot be imported", remedy):
        loaded = getattr(importlib.import_module(module), name)
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        raise UserError(
            f"{key}._target_={target} is not a subclass of {kind.__module__}.{kind.__name__}"
        )
    return loaded


# --- terminals ------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Returns text with each control character replaced by the replacement character."""
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


class VisibleFormatter(logging.Formatter):
    """For all logs of the commands, because messages quote run folders and reviews."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
