"""Names of settings, what each affects, and functions on nested settings."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

# Nested settings, or the content of a JSON file
NestedDict = dict[str, Any]

PACKAGE = Path(__file__).parents[1]


def conf_dir() -> Path:
    """Returns conf/ in the installed package, or next to it in a checkout."""
    return next(
        folder
        for folder in (PACKAGE / "conf", PACKAGE.parent / "conf")
        if (folder / "train.yaml").exists()
    )


def defaults(command: str) -> NestedDict:
    """Returns the settings in a command's file in conf/, without Hydra's."""
    settings = to_dict(OmegaConf.load(conf_dir() / f"{command}.yaml"))
    return {key: value for key, value in settings.items() if key not in ("defaults", "hydra")}


# split -> its fingerprint in metrics.json
FINGERPRINT_KEYS = {"test": "test_fingerprint", "validation": "val_fingerprint"}
NAME_PATTERN = r"\w[\w.-]{0,99}"  # a model's name, which is part of a folder's name

# Settings of imdbattn.train that name a file or a folder. On the command line their values need no
# quotes, and a run records them as absolute paths.
PATHS = ("data.path", "data.extra", "data.vectors.path", "data.cache_dir", "init")

# --- what settings affect -------------------------------------------------------------------------

# Settings that do not change a result; `threads` may change its last digits
NO_EFFECT = (
    *("hydra", "logger", "resume", "save_minutes", "threads", "record_steps", "trust", "test"),
    *("variant", "overrides", "pictures", "attention_reviews"),
    *("data.cache_dir", "data.min_known"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary"),
    *("trainer.log_every_n_steps", "trainer.profiler"),
)
# Settings that name data, of which variants compare the fingerprints, or initial weights, of which
# they compare `init_digest`
DATA_AND_WEIGHTS = ("init", "data.path", "data.source", "data.vectors.path", "data.vectors.source")
# Settings in which runs of one variant may differ
MAY_DIFFER_IN_VARIANT = (
    *("seed", "data.fold", *NO_EFFECT, *DATA_AND_WEIGHTS),
    # hardware, which changes the last digits of a result
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes"),
    *("trainer.strategy", "trainer.benchmark"),
)


def to_dict(cfg: DictConfig | ListConfig, resolve: bool = False) -> NestedDict:
    """Returns OmegaConf's settings as nested dicts and lists. resolve: replaces ${...}."""
    settings: Any = OmegaConf.to_container(cfg, resolve=resolve)
    return settings


def flattened(settings: Mapping[str, object], prefix: str = "") -> NestedDict:
    """Returns nested settings as one dict with dotted keys. Lists remain values."""
    values: NestedDict = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            values |= flattened(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def iter_leaves(settings: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yields each value in nested dicts and lists, with its dotted key. key: of `settings`."""
    if isinstance(settings, list):
        settings = dict(enumerate(settings))
    if not isinstance(settings, Mapping):
        yield key, settings
        return
    for name, value in settings.items():
        yield from iter_leaves(value, f"{key}.{name}" if key else str(name))


def is_in_groups(key: str, *names: str) -> bool:
    """Returns whether a dotted key is one of `names`, or in a group of that name."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def flat_without(settings: Mapping[str, object], *skipped: str) -> NestedDict:
    """Returns the settings, flat, without the keys and groups in `skipped`."""
    return {
        key: value for key, value in flattened(settings).items() if not is_in_groups(key, *skipped)
    }


def variant_digest(settings: Mapping[str, object]) -> str:
    """Returns a digest that runs share if they differ only in the number of epochs and in settings
    of MAY_DIFFER_IN_VARIANT, such as the seed and the location of files.

    A comparison distinguishes the number of epochs itself, and files by their fingerprints.
    """
    compared = ("trainer.max_epochs", "data.extra")
    return hexdigest(flat_without(settings, *compared, *MAY_DIFFER_IN_VARIANT))


def named_overrides(overrides: Iterable[str], settings: NestedDict) -> list[str]:
    """Returns the overrides of a command line that name its variant: sorted, without those that
    `variant_digest` ignores, but with the number of epochs.

    settings: the resulting settings. The choice of a trainer is hardware; its precision is not.
    """
    # the model's name precedes the label of a variant, and the others do not change the variant
    unnamed_choices = ("model", "task", "trainer", "debug")
    by_key = {
        override.lstrip("+~").partition("=")[0]: override.lstrip("+") for override in overrides
    }
    if "trainer" in by_key and (precision := settings["trainer"]["precision"]) != "32-true":
        by_key.setdefault("trainer.precision", f"trainer.precision={precision}")
    return sorted(
        override
        for key, override in by_key.items()
        if key not in unnamed_choices and not is_in_groups(key, *MAY_DIFFER_IN_VARIANT)
    )


def settings_digest(settings: Mapping[str, object]) -> str:
    """Returns the digest of all settings that change results, except the seed: part of the name of
    a job's folder.
    """
    return hexdigest(flat_without(settings, "seed", *NO_EFFECT))


def run_label(settings: Mapping[str, Any]) -> str:
    """Returns the model and the seed of a run, and in a cross-validation the fold."""
    fold = settings["data"].get("fold")
    name = f"{settings['model']['name']}-s{settings['seed']}"
    return f"{name}-fold{fold}" if fold else name


def hexdigest(values: Mapping[str, object]) -> str:
    """Returns twelve hex digits that do not depend on the order of the keys. Among 10,000 values,
    two have the same digits with a probability below one in a million.
    """
    text = json.dumps(values, default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def overlay(settings: NestedDict, changes: NestedDict) -> NestedDict:
    """Returns `settings` with those values of `changes` that are not None, recursively."""
    merged = dict(settings)
    for key, value in changes.items():
        if isinstance(value, dict):
            old = settings.get(key)
            merged[key] = overlay(old if isinstance(old, dict) else {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def absolute(path: str | None) -> str | None:
    return path and os.path.realpath(os.path.expanduser(path))


def with_absolute_paths(settings: NestedDict, group: str = "") -> NestedDict:
    """Returns settings of imdbattn.train with an absolute path for each of PATHS. group: the dotted
    name of the settings, followed by a dot.
    """
    values = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = with_absolute_paths(value, f"{group}{name}.")
        values[name] = absolute(value) if group + name in PATHS else value
    return values


def as_text(value: object) -> str:
    """Returns a value as it is written on the command line."""
    return "null" if value is None else str(value)
