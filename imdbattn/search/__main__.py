"""Searches for good settings: `python -m imdbattn.search +search=residual n_trials=30`."""

import os
import re
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError
from imdbattn.settings.cli import QUOTED, command, conf_dir, explain, plain_dict, print_error, quote, validated
from imdbattn.settings.safety import read_settings

CHANGEABLE = ("resume", "trust", "n_trials", "n_jobs", "seeds")  # settings that may differ in a resumed search
FILE = "search.yaml"  # the settings of a search, in conf/ and in its folder


def main() -> None:
    """Settings that conf/search.yaml does not have apply to all trials."""
    if {"-m", "--multirun"} & set(sys.argv):
        print_error("a search starts its trials itself: omit -m, and give each setting one value")
        sys.exit(2)
    own = {"search", "hydra", *OmegaConf.load(conf_dir() / FILE)} - {"space"}
    others = [word for word in sys.argv[1:] if "=" in word and word[0] != "-" and group_of(word) not in own]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in others]
    command("search", "resume")(lambda cfg: search(cfg, [quote(word, QUOTED) for word in others]))()


def group_of(word: str) -> str:
    """The first part of the key in an override."""
    return re.split(r"[=./@]", word.lstrip("+~"))[0]


def search(cfg: DictConfig, others: list[str]) -> None:
    """others: overrides of the space, and of the settings of all trials."""
    values, folder = plain_dict(cfg), Path(HydraConfig.get().runtime.output_dir).resolve()
    if values["resume"]:
        values = resumed(values, others, folder)
    else:
        values["train"] += [word for word in others if group_of(word) != "space"]
        values["space"] = varied(values["space"], others)
        if {file.name for file in folder.iterdir()} - {"search.log", ".hydra"}:
            raise UserError(f"{os.path.relpath(folder)} is not empty: choose another hydra.run.dir, or give resume=")
    settings = validated("Search", values)
    from imdbattn.search import trials

    trials.run_search(settings, folder, FILE)


def resumed(values: dict[str, Any], others: list[str], folder: Path) -> dict[str, Any]:
    """The settings of the search in `folder`, with the typed ones of CHANGEABLE. Raises UserError for others."""
    if not (folder / FILE).exists():
        raise UserError(f"resume={values['resume']} is not a folder of a search, it has no {FILE}")
    typed = {group_of(word): word for word in (*HydraConfig.get().overrides.task, *others)}
    if fixed := [word for name, word in typed.items() if name not in CHANGEABLE]:
        raise UserError(f"resume={values['resume']} uses that search's own settings: omit {fixed[0]}")
    # `trust` is never read from the folder.
    return read_settings(folder / FILE) | {name: values[name] for name in ("trust", *typed)}


def varied(space: dict[str, Any], others: list[str]) -> dict[str, Any]:
    """The space with the typed `space.<setting>=<values>`, and without settings that have a typed value."""
    try:
        words = [word for word in others if group_of(word) == "space"]
        overrides = OverridesParser.create().parse_overrides(words)
    except HydraException as error:
        raise explain(error, "search", others) from error
    for override in overrides:
        name, value = override.key_or_group.partition("space.")[2], override.value()
        space = space | ({name: value} if name else dict(value))  # type: ignore[arg-type]
    typed = {word.lstrip("+").partition("=")[0] for word in others}
    return {name: values for name, values in space.items() if name not in typed}


if __name__ == "__main__":
    main()
