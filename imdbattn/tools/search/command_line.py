"""The command line of a search: its settings, its space, and overrides of all trials."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.folders.run_folder import SEARCH_FILE
from imdbattn.launch.command import is_setting
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.settings.keys import NestedDict, defaults
from imdbattn.settings.trust import read_settings

# settings that may differ in a resumed search
CHANGEABLE = ("resume", "trust", "n_trials", "n_jobs", "seeds")
DECIDED = ("seed", "resume", "test", "hydra")  # settings of the trials that the search decides


def split_others(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments of the search, and the overrides of settings that conf/search.yaml does
    not have, which apply to all trials.
    """
    known = {"search", "hydra", *defaults("search")} - {"space"}
    settings = filter(is_setting, arguments)
    others = [setting for setting in settings if first_key(setting) not in known]
    return [argument for argument in arguments if argument not in others], others


def first_key(override: str) -> str:
    """Returns the first part of the key in an override."""
    return re.split(r"[=./@]", override.lstrip("+~"))[0]


def search(cfg: DictConfig, others: list[str]) -> None:
    """Starts or resumes a search. others: overrides of the space, and of all trials."""
    folder = Path(HydraConfig.get().runtime.output_dir).resolve()
    values = plain_settings(cfg)
    values = resumed(values, others, folder) if values["resume"] else new(values, others, folder)
    for override in (*values["space"], *values["train"]):
        if first_key(override) in DECIDED:
            raise UserError(f"{override}: the search decides this setting for each trial: omit it")
    from imdbattn.settings.command_settings import SearchSettings
    from imdbattn.settings.schema import validate_as
    from imdbattn.tools.search.trials import run_search

    run_search(validate_as(SearchSettings, values), folder)


def resumed(values: NestedDict, others: list[str], folder: Path) -> NestedDict:
    """Returns the settings of a resumed search. Raises UserError for a setting that is fixed."""
    saved = read_settings(folder / SEARCH_FILE)
    changes = {"trust": values["trust"]}  # it is never read from the folder
    for override in (*HydraConfig.get().overrides.task, *others):
        name = first_key(override)
        if name not in CHANGEABLE:
            raise UserError(
                f"resume={values['resume']} uses that search's own settings: omit {override}"
            )
        changes[name] = values[name]
    return saved | changes


def new(values: NestedDict, others: list[str], folder: Path) -> NestedDict:
    """Returns the settings of a new search, with the overrides of its space and of all trials.

    Raises UserError if its folder is not empty.
    """
    if {file.name for file in folder.iterdir()} - {"search.log", ".hydra"}:
        raise UserError(
            f"{os.path.relpath(folder)} is not empty: choose another hydra.run.dir, or give resume="
        )
    in_space = [override for override in others if first_key(override) == "space"]
    of_trials = [override for override in others if override not in in_space]
    # A setting that has one value is not in the space.
    fixed = {override.lstrip("+").partition("=")[0] for override in of_trials}
    space = values["space"] | typed_space(in_space)
    space = {name: choices for name, choices in space.items() if name not in fixed}
    return values | {"train": [*values["train"], *of_trials], "space": space}


def typed_space(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the settings in overrides of `space`, such as space.optim.lr=[0.1,0.01], by name."""
    space: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides([*overrides]):
        value: Any = override.value()
        name = override.key_or_group.partition("space.")[2]
        space |= {name: value} if name else value
    return space
