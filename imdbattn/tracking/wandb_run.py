"""W&B runs: online or offline, and without private data.

W&B never stops a run: without a key or a network it writes its files into the run folder.
"""

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from imdbattn.errors import in_line
from imdbattn.io.network import http_status, result_within
from imdbattn.settings.credentials import without_credentials
from imdbattn.settings.keys import flat

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

Mode = Literal["online", "offline", "disabled"]

FINISH_SECONDS = 90.0  # after the 60 s in which W&B uploads at the end of a run


class WandbRunSettings(TypedDict):
    """Those of the settings of conf/logger/wandb.yaml that a W&B run needs."""

    project: str
    entity: str | None
    group: str | None
    mode: Mode | None
    timeout: float
    notes: str | None
    git: bool


def wandb_mode(mode: str | None, timeout: float) -> str:
    """Returns `mode`, else disabled with WANDB_DISABLED=true, else $WANDB_MODE, else online.

    It is offline, with a warning, without a key or an answer of the server.
    """
    if mode is None and os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on"):
        return "disabled"
    from requests.utils import get_netrc_auth  # a dependency of wandb

    mode = mode or os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return "offline" if mode == "dryrun" else mode
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    reason = f"W&B: {server} does not answer"
    # which `wandb login` writes
    if not os.environ.get("WANDB_API_KEY") and not get_netrc_auth(server):
        reason = f"no W&B key is configured for {server}: run `wandb login`"
    elif http_status(server, min(timeout, 5)):
        return "online"
    log.warning("%s. This run is offline; `wandb sync` uploads it", reason)
    return "offline"


def parts_of(folder: Path) -> list[Path]:
    """Returns the folders that W&B has written into a run folder, the latest last."""
    return sorted((folder / "wandb").glob("*run-*-*"), key=os.path.getmtime)


def wandb_id(part: Path) -> str:
    """Returns the id of a W&B run, from the name of its folder, such as
    offline-run-20261125_010203-<id>.
    """
    return part.name.split("run-", 1)[1].partition("-")[2]


def upload_command(folder: Path) -> str | None:
    """Returns the command that uploads the W&B run of a run folder, if a part of it is offline."""
    for part in parts_of(folder)[-1:]:  # those of an overwritten run have another id
        pattern = f"offline-run-*-{wandb_id(part)}"
        if any((folder / "wandb").glob(pattern)):
            return f"wandb sync {shlex.quote(os.path.relpath(folder))}/wandb/{pattern}"
    return None


def start_wandb(
    settings: WandbRunSettings,
    folder: Path,
    config: Mapping[str, object],
    name: str,
    job_type: str,
    tags: Sequence[str],
    group: str | None = None,
    resume: bool = False,
) -> "wandb.Run | None":
    """Starts a W&B run; returns None after a warning if even an offline one fails.

    The command line, host and package list are not sent, nor is the git remote, unless the settings
    say so. settings: of conf/logger/wandb.yaml. group: used unless the settings have one.
    resume: the run has the id of the folder's last W&B run; online that run continues, offline
    another folder holds its next part.
    """
    import wandb

    config = without_credentials(config)
    notes = {"notes": settings["notes"], **resumed_part(settings, folder if resume else None)}
    for mode in dict.fromkeys((wandb_mode(settings["mode"], settings["timeout"]), "offline")):
        try:
            run = wandb.init(
                mode=mode,  # type: ignore[arg-type]
                dir=str(folder),
                project=settings["project"],
                entity=settings["entity"],
                # W&B itself reads $WANDB_RUN_GROUP once per process only.
                group=settings["group"] or group or os.environ.get("WANDB_RUN_GROUP"),
                job_type=job_type,
                name=name,
                tags=list(tags),
                config=config,
                reinit="create_new",  # a run of the program that called stays active
                **notes,  # type: ignore[arg-type]
                settings=sent_by_wandb(settings),
            )
            log_groups(run, config)
            return run
        except Exception as error:  # any exception: training continues
            log.warning("W&B (%s) did not start: %s", mode, in_line(error, None))
    return None


def resumed_part(settings: WandbRunSettings, folder: Path | None) -> dict[str, str]:
    """Returns the arguments of wandb.init that resume the last W&B run of a run folder."""
    parts = parts_of(folder) if folder else []
    if not parts:
        return {}
    notes = f"part {len(parts) + 1}: resumes the previous part"
    if settings["notes"]:
        notes = f"{settings['notes']}; {notes}"
    return {"id": wandb_id(parts[-1]), "resume": "allow", "notes": notes}


def sent_by_wandb(settings: WandbRunSettings) -> "wandb.Settings":
    """Returns settings of W&B with which nothing private is sent, unless ours say so."""
    import wandb

    return wandb.Settings(
        init_timeout=settings["timeout"],
        finish_timeout=60,
        silent=True,
        console="off",
        host="",
        disable_code=True,
        disable_git=not settings["git"],
        x_disable_meta=True,
        x_save_requirements=False,
    )


def log_groups(run: "wandb.Run", config: Mapping[str, object]) -> None:
    """Completes the config of a W&B run, and makes epochs the x axis of its curves.

    A parameter `model` of a W&B sweep hides the group of settings `model`, which is logged as
    model.* again.
    """
    hidden = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and not isinstance(run.config.get(key), Mapping):
            hidden[key] = value
    run.config.update(flat(hidden))
    for curves in ("train/*", "val/*", "attention_*"):
        run.define_metric(curves, step_metric="epoch")


def finish_wandb(run: "wandb.Run", failed: bool = False) -> None:
    """Finishes a W&B run. After FINISH_SECONDS the command continues without it."""
    import wandb

    command = f"wandb sync --include-online {shlex.quote(os.path.relpath(run.settings.sync_dir))}"
    try:
        result_within(FINISH_SECONDS, lambda: run.finish(exit_code=int(failed)))
    except Exception as error:
        log.warning("W&B did not finish: %s. `%s` uploads its files", in_line(error, None), command)
        # wandb waits for its process at exit, too, unless it has been torn down
        if isinstance(error, TimeoutError):
            with suppress(Exception):
                result_within(1, wandb.teardown)
