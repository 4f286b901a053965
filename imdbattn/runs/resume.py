"""Which run a command resumes, and with which settings. Imports nothing slow."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.settings.keys import NO_EFFECT, flat, overlay, within, without
from imdbattn.settings.schema import read_run

RESTARTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")  # above 0 in a job that is started again


def was_restarted(folder: Path) -> bool:
    """Whether SLURM or torchrun has started this job again, and `folder` holds its run."""
    restarted = any(os.environ.get(name, "0") not in ("", "0") for name in RESTARTS)
    return restarted and (folder / "config.yaml").exists()


def resumed(settings: Mapping[str, Any], typed: Sequence[str], folder: Path) -> dict[str, Any]:
    """The settings of the run in `folder`, with those typed ones that cannot change a result.

    typed: the words of the command line, as Hydra has them. Settings that can change a result may be repeated with the
    same value. Raises UserError if one differs, or if `folder` holds no run or one of another version.
    """
    file = folder / "config.yaml"
    if not file.exists():
        raise UserError(
            f"resume={os.path.relpath(folder)} is not a run to resume, it has no config.yaml: start it again; or, if "
            "it is a sweep's folder, repeat the command that started the sweep"
        )
    theirs = read_run(file, settings.get("trust"), settings).model_dump()
    own_keys = ["data"] if kind(theirs) != kind(settings) else []
    current = without(settings, *NO_EFFECT, "model", "optim", *own_keys)
    if missing := [key for key in current if key not in flat(theirs)]:
        raise UserError(f"{file} has no {missing[0]}, it is of another version of imdbattn: start a new run")
    keys = [word.lstrip("+~").partition("=")[0].partition("@")[0] for word in typed]
    keys = [key for key in keys if key != "resume" and not within(key, "hydra")]
    if effective := [key for key in keys if not within(key, *NO_EFFECT)]:
        check_unchanged(settings, theirs, effective, folder)
    changed = OmegaConf.create(theirs | {"trust": settings.get("trust")})  # never the folder's own value
    for key, value in flat(settings).items():
        if within(key, *keys) and within(key, *NO_EFFECT):
            OmegaConf.update(changed, key, value, force_add=True)
    return OmegaConf.to_container(changed)  # type: ignore[return-value]


def check_unchanged(settings: Mapping[str, Any], theirs: Mapping[str, Any], typed: list[str], folder: Path) -> None:
    """Raises UserError for the first setting among the typed keys that differs from the run's."""
    if not all(within(key, *settings) for key in typed):  # such as debug=fast, which sets other keys
        typed = list(settings)
    data, recorded = settings["data"], theirs.get("data", {})
    source = recorded.get("source") if data["source"] == "auto" else data["source"]
    current = pinned(settings, source, data["batch_tokens"] or recorded.get("batch_tokens"))
    here, there = without(current, *NO_EFFECT), without(theirs, *NO_EFFECT)
    for key in dict.fromkeys([*here, *there]):
        if within(key, *typed) and here.get(key) != there.get(key):
            raise UserError(
                f"resume={os.path.relpath(folder)} uses that run's own settings: {key} is {there.get(key)} there and "
                f"{here.get(key)} here. Give resume= alone, or start a new run"
            )


def kind(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What determines the keys of the `data` settings: the task, and a key that only data of one kind have."""
    return settings.get("task"), *({"letters", "languages"} & settings.get("data", {}).keys())


def pinned(settings: Mapping[str, Any], source: str | None, batch_tokens: int | None = None) -> dict[str, Any]:
    """The settings with absolute paths, and with the values that `auto` and null stand for."""
    data = settings["data"]

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(Path(path).expanduser().resolve())

    values: dict[str, Any] = {"source": source, "batch_tokens": batch_tokens}
    if data.get("unlabelled") not in (None, "hub"):
        values["unlabelled"] = absolute(data["unlabelled"])
    values |= {name: absolute(data[name]) for name in ("path", "cache_dir") if name in data}
    if "glove" in data:
        values["glove"] = {"path": absolute(data["glove"]["path"])}
    return overlay(dict(settings), {"data": values, "init": absolute(settings.get("init"))})
