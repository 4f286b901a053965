"""The composed config as plain values, and the resolvers that conf/ uses to name run folders.

Imports nothing slow.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError, naming
from imdbattn.launch.process import SWEEP_PID
from imdbattn.runs.run_folder import finished
from imdbattn.settings.keys import NAME, job_digest
from imdbattn.settings.safety import read_settings, refuse_credentials

VERSION = {"version_base": "1.3"}  # of Hydra's behaviour
EPOCHS = "trainer.max_epochs"


def plain_dict(cfg: DictConfig) -> dict[str, Any]:
    """Returns the resolved config as nested dicts, without `hydra`.

    Raises UserError for a missing value, a broken interpolation, or a setting that looks like a
    credential.
    """
    cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise UserError(
            f"these settings are required: {', '.join(f'{key}=' for key in missing)}; see --help"
        )
    with naming("config"):
        settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    refuse_credentials(settings)
    return settings


def register_resolvers() -> None:
    """Makes the resolvers that conf/ uses known to OmegaConf. May be called several times."""
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def digest_of_root(*, _root_: DictConfig) -> str:
    """Returns the digest of the settings; the job itself reports what is invalid."""
    try:
        return job_digest(plain_dict(_root_))
    except UserError:
        return "invalid"


def slots() -> int:
    """Returns how many jobs run in parallel."""
    from imdbattn.launch import machine

    return machine.slots()


def folder_name(name: str) -> str:
    return name if re.fullmatch(NAME, name) else "invalid"


def fold_suffix(*, _root_: DictConfig) -> str:
    """Returns -fold3 in a cross-validation, else nothing."""
    fold = OmegaConf.select(_root_, "data.fold")
    return f"-fold{fold}" if fold else ""


def run_name(now: str, name: str, digest: str) -> str:
    """Returns the name of a run's folder: time and model; in a SLURM job the same in all its tasks
    and after a requeue.
    """
    job = os.environ.get("SLURM_JOB_ID")
    in_slurm = job and not os.environ.get(SWEEP_PID)
    return f"slurm-{job}-{folder_name(name)}-{digest}" if in_slurm else f"{now}-{folder_name(name)}"


def resumed_folder(*, _root_: DictConfig) -> str:
    """Returns the folder in which `resume` continues a run; nothing without `resume`."""
    run = OmegaConf.select(_root_, "resume")
    words = OmegaConf.select(_root_, "hydra.overrides.task")
    return longer_folder(str(run), list(words or ())) if run else ""


def longer_folder(run: str, words: Sequence[str]) -> str:
    """Returns `run`, unless the command line trains that finished run for more epochs: then the
    folder next to it in which the longer run is trained.

    words: the command line.
    """
    typed = [word.partition("=")[2] for word in words if word.startswith(f"{EPOCHS}=")]
    if not typed or not re.fullmatch("[0-9]{1,9}", typed[-1]) or not finished(Path(run)):
        return run
    try:
        epochs = read_settings(Path(run, "config.yaml"))["trainer"]["max_epochs"]
    except (UserError, KeyError, TypeError):  # reported when the run is opened
        return run
    if not isinstance(epochs, int) or int(typed[-1]) <= epochs:
        return run
    place = Path(run).resolve()  # runs/latest is a link
    name = re.sub(r"-[0-9]+-epochs$", "", place.name)
    return str(place.with_name(f"{name}-{typed[-1]}-epochs"))


RESOLVERS: dict[str, Callable[..., Any]] = {
    "digest": digest_of_root,
    "either": lambda first, second: first or second,
    "folder_name": folder_name,
    "fold_suffix": fold_suffix,
    "resumed_folder": resumed_folder,
    "run_name": run_name,
    "slots": slots,
}
