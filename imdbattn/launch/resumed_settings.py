"""Determines the settings of a resumed run. Does not import torch, which is slow to import."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import finished
from imdbattn.io.files import expanded
from imdbattn.settings.keys import (
    NO_EFFECT,
    Plain,
    flat,
    plain,
    within,
    without,
)
from imdbattn.settings.trust import read_settings
from imdbattn.tasks.task import settings_of, validate

EPOCHS = "trainer.max_epochs"


class Plan(NamedTuple):
    """How a command line of imdbattn.train continues a run.

    folder: of the run. resume: whether the run in it is continued. earlier: the folder of a
    finished run that is trained for more epochs in the new `folder`.
    """

    settings: Plain
    folder: Path
    resume: bool = False
    earlier: Path | None = None


def plan(settings: Plain, overrides: Sequence[str], folder: Path) -> Plan:
    """Returns how the run that `resume` names is continued, or trained for more epochs.

    Without `resume` the job was restarted, and the run in `folder` is continued. overrides: the
    settings on the command line. folder: of a run that is not resumed. Raises UserError if a run
    cannot be resumed with these settings.
    """
    if not settings["resume"]:
        return Plan(resumed(settings, overrides, folder), folder, resume=True)
    run = expanded(settings["resume"]).resolve()  # runs/latest is a link
    if longer_folder(str(run), overrides) == str(run):
        return Plan(resumed(settings, overrides, run), run, resume=True)
    # The longer run may have been stopped before.
    if (folder / "config.yaml").exists() and not finished(folder):
        return Plan(resumed(settings, overrides, folder), folder, resume=True)
    return Plan(resumed(settings, overrides, run), folder, earlier=run)


def longer_folder(run: str, overrides: Sequence[str]) -> str:
    """Returns `run`, unless the command line trains that finished run for more epochs: then the
    folder next to it in which the longer run is trained.

    overrides: the command line.
    """
    typed = [
        override.partition("=")[2] for override in overrides if override.startswith(f"{EPOCHS}=")
    ]
    if not typed or not re.fullmatch("[0-9]{1,9}", typed[-1]) or not finished(Path(run)):
        return run
    try:
        epochs = read_settings(Path(run, "config.yaml"))["trainer"]["max_epochs"]
    except (UserError, KeyError, TypeError):  # reported when the run is opened
        return run
    if not isinstance(epochs, int) or int(typed[-1]) <= epochs:
        return run
    finished_run = Path(run).resolve()  # runs/latest is a link
    name = re.sub(r"-[0-9]+-epochs$", "", finished_run.name)
    return str(finished_run.with_name(f"{name}-{typed[-1]}-epochs"))


def resumed(settings: Plain, overrides: Sequence[str], folder: Path) -> Plain:
    """Returns the settings of the run in `folder`, updated by those of the command line that cannot
    change a result.

    overrides: those on the command line. Settings that can change a result may be repeated with the
    same value; trainer.max_epochs may be larger. Raises UserError if one differs, or if there is no
    readable run.
    """
    if not (folder / "config.yaml").exists():
        raise UserError(
            f"resume={os.path.relpath(folder)} cannot be resumed, because it has no config.yaml:"
            " start a new run; to resume a sweep, repeat the command that started it"
        )
    recorded = settings_of(Run(folder, settings.get("trust"), settings)).dump()
    keys = [override.lstrip("+~").partition("=")[0].partition("@")[0] for override in overrides]
    keys = [key for key in keys if key != "resume" and not within(key, "hydra")]
    epochs, before = (values["trainer"].get("max_epochs") for values in (settings, recorded))
    if EPOCHS in keys and type(epochs) is type(before) is int and epochs > before:
        check_longer(recorded, folder)
        recorded["trainer"]["max_epochs"] = epochs
        named = recorded.get("overrides", ())
        others = [override for override in named if not override.startswith(f"{EPOCHS}=")]
        recorded["overrides"] = sorted([*others, f"{EPOCHS}={epochs}"])
    if compared := [key for key in keys if not within(key, *NO_EFFECT)]:
        check_unchanged(settings, recorded, compared, folder)
    # never the folder's own value
    merged = OmegaConf.create(recorded | {"trust": settings.get("trust")})
    for key, value in flat(settings).items():
        if within(key, *keys) and within(key, *NO_EFFECT):
            OmegaConf.update(merged, key, value, force_add=True)
    return plain(merged)


def check_longer(recorded: Plain, folder: Path) -> None:
    """Raises UserError if a run with more epochs would not equal one that was started with them."""
    before, warmup, decay = recorded["trainer"]["max_epochs"], recorded["warmup"], recorded["decay"]
    done = Run(folder).metrics["epochs"] if finished(folder) else before
    if warmup or decay != "none":
        why = f"its learning rates depend on their number (warmup={warmup}, decay={decay})"
    elif done < before:
        why = (
            f"it ended after {done} of {before}, by patience, trainer.max_steps or trainer.max_time"
        )
    else:
        return
    run = os.path.relpath(folder)
    raise UserError(
        f"resume={run} cannot have more epochs: {why}; init={run} starts a new run from its weights"
    )


def check_unchanged(settings: Plain, recorded: Plain, keys: list[str], folder: Path) -> None:
    """Raises UserError for the first setting among `keys` that differs from the run's."""
    if not all(within(key, *settings) for key in keys):  # such as debug=fast, which sets other keys
        keys = list(settings)
    data, recorded_data = settings["data"], recorded["data"]
    source = recorded_data.get("source") if data["source"] == "auto" else data["source"]
    batch_tokens = data["batch_tokens"] or recorded_data.get("batch_tokens")
    current = validate(settings).resolved(source, batch_tokens).dump()
    values, recorded_values = without(current, *NO_EFFECT), without(recorded, *NO_EFFECT)
    for key in dict.fromkeys([*values, *recorded_values]):
        if within(key, *keys) and values.get(key) != recorded_values.get(key):
            raise UserError(
                f"resume={os.path.relpath(folder)} uses that run's own settings:"
                f" {key}={recorded_values.get(key)}, not {values.get(key)}. Give resume= alone, or"
                " start a new run"
            )
