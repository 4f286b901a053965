"""Determines the settings of a resumed run. Does not import torch, which is slow to import."""

import os
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.folders.run import Run
from imdbattn.settings.keys import (
    NO_EFFECT,
    NestedDict,
    flat_without,
    flattened,
    is_in_groups,
    to_dict,
    with_absolute_paths,
)
from imdbattn.settings.logger_places import refuse_other_places
from imdbattn.tasks.task import settings_of, training_settings


def resumed_settings(settings: NestedDict, overrides: Sequence[str], folder: Path) -> NestedDict:
    """Returns the settings of the run in `folder`, updated by settings of the command line that
    cannot change a result.

    overrides: from the command line. Settings that can change a result may be repeated with the
    same value. Raises UserError if one differs, or if there is no readable run.
    """
    if not (folder / "config.yaml").exists():
        raise UserError(
            f"resume={os.path.relpath(folder)} cannot be resumed, because it has no config.yaml:"
            " start a new run; to resume a sweep, repeat the command that started it"
        )
    saved = settings_of(Run(folder, settings.get("trust"), settings)).dump()
    keys = [override.lstrip("+~").partition("=")[0].partition("@")[0] for override in overrides]
    keys = [key for key in keys if key != "resume"]
    if compared := [key for key in keys if not is_in_groups(key, *NO_EFFECT)]:
        check_unchanged(settings, saved, compared, folder)
    # The folder's own `trust` is never used.
    merged = OmegaConf.create(saved | {"trust": settings.get("trust")})
    if "logger" in keys:  # a choice replaces all loggers
        merged.logger = {}
    for key, value in flattened(settings).items():
        if is_in_groups(key, *keys) and is_in_groups(key, *NO_EFFECT):
            OmegaConf.update(merged, key, value, force_add=True)
    resumed = to_dict(merged)
    trust, own = settings.get("trust"), settings["logger"]
    refuse_other_places(folder / "config.yaml", resumed["logger"], own, trust)
    return resumed


def check_unchanged(settings: NestedDict, saved: NestedDict, keys: list[str], folder: Path) -> None:
    """Raises UserError for the first setting among `keys` that differs from the run's."""
    # debug=fast, for example, sets others
    if not all(is_in_groups(key, *settings) for key in keys):
        keys = list(settings)
    current = with_absolute_paths(training_settings(settings).dump())
    values, saved_values = flat_without(current, *NO_EFFECT), flat_without(saved, *NO_EFFECT)
    for key, chosen_later in (("data.source", "auto"), ("data.batch_tokens", None)):
        # the run has recorded what it chose; a source of one's own has no such key
        if key in values and values[key] == chosen_later:
            values[key] = saved_values.get(key)
    for key in dict.fromkeys([*values, *saved_values]):
        if is_in_groups(key, *keys) and values.get(key) != saved_values.get(key):
            raise UserError(
                f"resume={os.path.relpath(folder)} uses that run's own settings:"
                f" {key}={saved_values.get(key)}, not {values.get(key)}. Use resume= alone, or"
                " start a new run"
            )
