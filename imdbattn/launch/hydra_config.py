"""Converts between Hydra and our settings: quotes values for Hydra's grammar, returns the composed
config as dicts and lists, and defines the resolvers that conf/ uses to name run folders.

Imports nothing slow.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imdbattn.errors import UserError
from imdbattn.settings.credentials import refuse_credentials
from imdbattn.settings.keys import (
    NAME_PATTERN,
    PATHS,
    NestedDict,
    conf_dir,
    run_label,
    settings_digest,
    to_dict,
    with_absolute_paths,
)

HYDRA_VERSION = {"version_base": "1.3"}  # version of Hydra's behavior
# Hydra's options that are one word
HYDRA_OPTIONS = ("help", "version", "cfg", "resolve", "package", "run", "multirun", "info")
STARTS_SWEEP = ("-m", "--multirun", "hydra.mode=MULTIRUN", "experiment=")

# Settings of all commands whose value is text, with the characters , { [ ( and = that are special
# in Hydra's grammar. In a sweep a comma separates values, but not in FOLDER_SETTINGS.
FOLDER_SETTINGS = ("resume", "hydra.run.dir", "hydra.sweep.dir")
TEXT_SETTINGS = (
    *FOLDER_SETTINGS,
    *PATHS,
    *("data.text_column", "data.label_column", "file", "column", "keep", "out"),
    *("run", "runs", "against", "group", "pairs_of"),
)
QUOTED_VALUE = re.compile(r"""'([^'\\]|\\.)*'|"([^"\\]|\\.)*\"""", re.DOTALL)


def hydra_arguments(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Returns a command's arguments as Hydra parses them: with text in quotes, and the task that
    data or model belong to. Raises UserError for a setting with dashes, such as --model=mean, for
    which argparse prints eight lines, and for what looks like a credential.
    """
    typed = {}
    for argument in arguments:
        dashed = re.match(r"--([\w.]+)(=|$)", argument)
        if dashed and dashed[1] not in HYDRA_OPTIONS:
            raise UserError(f"{argument}: a setting has no dashes: {dashed[1]}=value")
        name, _, value = argument.lstrip("+~").partition("=")
        typed[name] = value
    refuse_credentials(typed)
    in_sweep = any(argument.startswith(STARTS_SWEEP) for argument in arguments)
    return [quote(argument, in_sweep) for argument in with_implied_task(config_name, arguments)]


def quote(argument: str, in_sweep: bool = False) -> str:
    """Returns `name=value` with the value quoted for Hydra's grammar, if it is text and not quoted
    yet. A list of runs or columns remains as it is typed.
    """
    name, _, value = argument.partition("=")
    if name not in TEXT_SETTINGS or value in ("", "null") or QUOTED_VALUE.fullmatch(value):
        return argument
    if in_sweep and "," in value and name not in FOLDER_SETTINGS:  # several values
        return argument
    if name in ("run", "runs", "keep") and value.startswith("[") and value.endswith("]"):
        return argument
    return f"{name}={in_quotes(value)}"


def in_quotes(value: str) -> str:
    """Returns a value in single quotes, as Hydra's grammar reads it."""
    # Backslashes are special only before a quote: one in the value, or the closing one.
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", "\\'")
    return f"'{value}'"


def with_implied_task(config_name: str, overrides: Sequence[str]) -> list[str]:
    """Returns the overrides of imdbattn.train with the task that their data or model belong to,
    unless they choose one; returns other commands' overrides unchanged.

    A file in conf/ declares its task in a line of its header, `# @task seq2seq`. Within Hydra only
    the task can choose data and model, because it is composed first. Raises UserError for a
    sweep over choices that belong to different tasks.
    """
    choices = dict(override.partition("=")[::2] for override in overrides)
    if config_name != "train" or "task" in choices:
        return list(overrides)
    for group in ("data", "model"):
        files = [conf_dir() / group / f"{name}.yaml" for name in choices.get(group, "").split(",")]
        tasks = {declared_task(file) for file in files if file.is_file()}
        if len(tasks) > 1:
            raise UserError(
                f"{group}={choices[group]}: these belong to different tasks: start a sweep for each"
            )
        if any(tasks):
            return [*overrides, f"task={tasks.pop()}"]
    return list(overrides)


def declared_task(file: Path) -> str | None:
    match = re.search("(?m)^# @task (.+)$", file.read_text())
    return match[1] if match else None


def separate_text(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the value of text=, which Hydra does not see because it may contain even ${...}, and
    the other arguments. Quotes around the value are removed, as Hydra does.
    """
    others = [argument for argument in arguments if not argument.startswith("text=")]
    texts = [argument.removeprefix("text=") for argument in arguments if argument not in others]
    text = texts[-1] if texts else None
    return text[1:-1] if text and QUOTED_VALUE.fullmatch(text) else text, others


def plain_settings(cfg: DictConfig) -> NestedDict:
    """Returns the resolved config as nested dicts, without `hydra`.

    Raises UserError for a missing value, a broken interpolation, or what looks like a credential.
    """
    cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    try:
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            required = ", ".join(f"{key}=" for key in missing)
            raise UserError(f"these settings are required: {required}; see --help")
        settings = to_dict(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    refuse_credentials(settings)
    return settings


def register_resolvers() -> None:
    """Makes the resolvers that conf/ uses known to OmegaConf. May be called several times."""
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def run_name(now: str, *, _root_: DictConfig) -> str:
    """Returns the name of a new run's folder: time, model and seed; in a SLURM job the same in all
    its tasks and after a requeue.
    """
    job = os.environ.get("SLURM_JOB_ID")
    return f"slurm-{job}-{job_name(_root_=_root_)}" if job else f"{now}-{checked_name(_root_)}"


def job_name(*, _root_: DictConfig) -> str:
    """Returns the name of a job's folder in a sweep: model, seed, and the digest of the settings
    with absolute paths, so that a sweep can be resumed from another directory. For invalid
    settings, the digest is invalid<number>, and the job fails with the message.
    """
    from imdbattn.tasks.task import training_settings  # loads pydantic, too

    try:
        settings = training_settings(plain_settings(_root_)).dump()
        digest = settings_digest(with_absolute_paths(settings))
    except UserError:
        digest = f"invalid{OmegaConf.select(_root_, 'hydra.job.num', default='')}"
    return f"{checked_name(_root_)}-{digest}"


def checked_name(cfg: DictConfig) -> str:
    """Returns the `run_label` of a run, if it is suitable as the name of a folder."""
    name = run_label(cfg)
    return name if re.fullmatch(NAME_PATTERN, name) else "invalid"


RESOLVERS: dict[str, Callable[..., object]] = {
    "either": lambda first, second: os.path.expanduser(first or second),
    "job_name": job_name,
    "run_name": run_name,
}
