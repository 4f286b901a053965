"""Which run a command goes on with, and with what settings. Loads nothing slow."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.settings.keys import NO_EFFECT, flat, overlay, within, without
from imdbattn.settings.schema import read_run

RESTARTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")  # above 0 in a job that was begun before


def finished(folder: Path) -> bool:
    """Whether a run folder has its results, which are written last; debug runs write debug.json instead."""
    return os.path.exists(folder / "metrics.json")  # False as well for a name that is too long


def begun_before(folder: Path) -> bool:
    """Whether SLURM or torchrun has started this job again, and `folder` holds its run."""
    restarted = any(os.environ.get(name, "0") not in ("", "0") for name in RESTARTS)
    return restarted and (folder / "config.yaml").exists()


def resumed(settings: Mapping[str, Any], typed: Sequence[str], folder: Path) -> dict[str, Any]:
    """The settings of the run in `folder`, with those of `settings` that were typed and that no number depends on.

    typed: the words of the command line, as Hydra has them. Other settings may be repeated, but not changed: raises
    UserError naming the first that differs, or when there is no run in `folder`, or one of another version.
    """
    file = folder / "config.yaml"
    if not file.exists():
        raise UserError(
            f"resume={os.path.relpath(folder)} holds no run to go on with, it has no config.yaml: start it again; or, "
            "if it is a sweep's, repeat the command that the sweep was started with"
        )
    theirs = read_run(file, settings.get("trust"), settings)
    other = ["data"] if kind(theirs) != kind(settings) else []  # of another task or data, which has keys of its own
    lacking = [key for key in without(settings, *NO_EFFECT, "model", "optim", *other) if key not in flat(theirs)]
    if lacking:
        raise UserError(f"{file} has no {lacking[0]}, it is of another version of imdbattn: start the run anew")
    keys = [word.lstrip("+~").partition("=")[0].partition("@")[0] for word in typed]
    keys = [key for key in keys if key != "resume" and not within(key, "hydra")]
    if rest := [key for key in keys if not within(key, *NO_EFFECT)]:
        if not all(within(key, *settings) for key in rest):  # such as debug=fast, which sets what has other names
            rest = list(settings)
        data, decided = settings["data"], theirs.get("data", {})
        ours = pinned(
            settings,
            decided.get("source") if data["source"] == "auto" else data["source"],
            data["batch_tokens"] or decided.get("batch_tokens"),
        )
        mine, run = without(ours, *NO_EFFECT), without(theirs, *NO_EFFECT)
        for key in dict.fromkeys([*mine, *run]):
            if within(key, *rest) and mine.get(key) != run.get(key):
                raise UserError(
                    f"resume={os.path.relpath(folder)} goes on with that run's own settings: {key} is {run.get(key)} "
                    f"there and {mine.get(key)} here. Give resume= alone, or start a new run"
                )
    changed = OmegaConf.create(theirs | {"trust": settings.get("trust")})  # never what the folder says of it
    for key, value in flat(settings).items():
        if within(key, *keys) and within(key, *NO_EFFECT):
            OmegaConf.update(changed, key, value, force_add=True)
    return OmegaConf.to_container(changed)  # type: ignore[return-value]


def kind(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """The task, and a key that all data of the same kind have: which keys settings have depends on these."""
    return settings.get("task"), *({"letters", "languages"} & settings.get("data", {}).keys())


def pinned(settings: Mapping[str, Any], source: str | None, batch_tokens: int | None = None) -> dict[str, Any]:
    """The settings with what `auto` and null decided and with absolute paths, so that a run can be scored anywhere."""
    data = settings["data"]

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(Path(path).expanduser().resolve())

    here: dict[str, Any] = {"source": source, "batch_tokens": batch_tokens}
    if data.get("unlabelled") not in (None, "hub"):
        here["unlabelled"] = absolute(data["unlabelled"])
    here |= {name: absolute(data[name]) for name in ("path", "cache_dir") if name in data}
    if "glove" in data:
        here["glove"] = {"path": absolute(data["glove"]["path"])}
    return overlay(dict(settings), {"data": here, "init": absolute(settings.get("init"))})
