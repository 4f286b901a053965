"""Reads the settings of a run folder, which may be somebody else's, and decides which classes they
may name. Imports none of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.settings.keys import NestedDict, iter_leaves, to_dict

if TYPE_CHECKING:
    from imdbattn.settings.schema import TrainingSettings

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


def packages_in(trust: str | Sequence[str] | None) -> Sequence[str]:
    """Returns the packages that the setting `trust` names."""
    return [trust] if isinstance(trust, str) else trust or []


def refuse_untrusted(
    settings: Mapping[str, object],
    file: Path,
    trust: str | Sequence[str] | None,
    caller_settings: Mapping[str, object] | None = None,
) -> None:
    """Raises UserError if settings from a run folder name a class that is not trusted.

    settings: the content of `file`. trust: packages that the user names in this call.
    caller_settings: the settings of this call; their classes are also trusted.
    """
    named = {target for _, target in targets(caller_settings)}
    for key, target, package in untrusted(settings, trust):
        if target not in named:
            raise UserError(
                f"{file}: {key}={target} is not trusted: add trust={package} if you trust that"
                " package and this run folder"
            )


def untrusted(
    settings: Mapping[str, object], trust: str | Sequence[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yields the dotted key, name and package of each class or function outside the trusted
    packages. trust: further trusted packages.
    """
    for group, node in settings.items():
        trusted = tuple(f"{name}." for name in (*TRUSTED.get(group, ()), *packages_in(trust)))
        for key, target in targets(node, group):
            if not f"{target}.".startswith(trusted):
                yield key, target, target.partition(".")[0]


def custom_classes(settings: "TrainingSettings") -> list[str]:
    """Returns the names of the classes outside of this package in `model` and `task`."""
    parts = {"model": settings.model.dump(), "task": settings.task.dump()}
    return [name for _, name, _ in untrusted(parts)]


def trust_option(needed: Iterable[tuple[str, str, str]]) -> str:
    """Returns the option ` trust=...` for what `untrusted` or `logger_places` yield, if any."""
    packages = ",".join(sorted({package for *_, package in needed}))
    return f" 'trust=[{packages}]'" if "," in packages else f" trust={packages}" if packages else ""


def targets(node: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields what nested settings name by a dotted path, with its dotted key: each `_target_`, and
    `choose_by` if it is a function.
    """
    for name, value in iter_leaves(node, key):
        if name.endswith("_target_") or (name == "choose_by" and "." in str(value)):
            yield name, str(value)


def read_settings(file: Path) -> NestedDict:
    """Returns a run's config.yaml, which may be untrusted. Raises UserError if it cannot be read.

    ${...} is refused, because it could read the environment or create objects.
    """
    with wrapping_errors(f"{file} cannot be read"):
        settings = to_dict(OmegaConf.create(file.read_text("utf-8")))
    refuse_interpolations(settings, file)
    return settings


def refuse_interpolations(settings: object, file: Path) -> None:
    """Raises UserError if the settings in `file` contain an interpolation."""
    if "${" in str(settings):
        raise UserError(f"{file} cannot be used: it contains an interpolation (${{...}})")
