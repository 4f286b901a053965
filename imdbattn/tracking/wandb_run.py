"""How a W&B run starts: online or offline, under its name, and without what is nobody's business.

W&B must never stop a run: without a key, or without a network, it writes its files into the run folder.
"""

import logging
import netrc
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from imdbattn.data.reviews import http_status
from imdbattn.settings.keys import flat
from imdbattn.settings.safety import without_credentials

log = logging.getLogger(__name__)


def wandb_server() -> tuple[str, str]:
    """Address and host name of the W&B server."""
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return server, urlsplit(server).hostname or "api.wandb.ai"


def has_wandb_key() -> bool:
    """Whether a key for the server is configured, in the environment or by `wandb login` in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return bool((netrc.netrc(os.environ.get("NETRC")).authenticators(wandb_server()[1]) or (None, None, None))[2])
    except (OSError, netrc.NetrcParseError):
        return False


def wandb_mode(wanted: str | None, timeout: float) -> str:
    """What was asked for, else online where a key is configured and the server answers, else offline."""
    mode = wanted or os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return "offline" if mode == "dryrun" else mode
    if not has_wandb_key():
        log.info("No W&B key: this run is offline; `wandb login`, then `wandb sync` uploads it")
        return "offline"
    server, host = wandb_server()
    if http_status(server, min(timeout, 5)) is None:
        log.warning("W&B: %s does not answer, so this run is kept offline", host)
        return "offline"
    return "online"


def upload_command(folder: Path) -> str | None:
    """The command that uploads what W&B has kept offline in a run folder; None where there is nothing."""
    if not any(folder.glob("wandb/offline-run-*")):
        return None
    return f"wandb sync {shlex.quote(os.path.relpath(folder))}/wandb/offline-run-*"


def start_wandb(
    settings: Mapping[str, Any],
    folder: Path,
    config: Mapping[str, Any],
    name: str,
    job_type: str,
    tags: Sequence[str],
    group: str | None = None,
    resume: bool = False,
) -> Any:
    """A W&B run, online or offline; None when even offline fails (a warning says why).

    What W&B would collect by itself is switched off: the command line, the host and its paths, the git remote, the
    list of installed packages. The group is `group`, else the setting, else $WANDB_RUN_GROUP, which W&B itself reads
    once a process only. With `resume` it is the run that `folder` holds already, if any: online it goes on, offline
    there is one folder more of the same run, whose notes say so.
    """
    import wandb

    parts = sorted((folder / "wandb").glob("*run-*-*"), key=os.path.getmtime) if resume else []
    begun: dict[str, Any] = {}
    if parts:
        notes = f"part {len(parts) + 1}: goes on where the part before was stopped"
        begun = {"id": parts[-1].name.split("run-", 1)[1].partition("-")[2], "resume": "allow", "notes": notes}

    mode = wandb_mode(settings["mode"], settings["timeout"])
    config = without_credentials(config)
    for attempt in dict.fromkeys((mode, "offline")):
        try:
            run = wandb.init(
                mode=attempt,  # type: ignore[arg-type]
                dir=str(folder),
                project=settings["project"],
                entity=settings["entity"],
                group=group or settings["group"] or os.environ.get("WANDB_RUN_GROUP"),
                job_type=job_type,
                name=name,
                tags=list(tags),
                config=config,
                **begun,
                settings=wandb.Settings(
                    init_timeout=settings["timeout"],
                    finish_timeout=60,
                    silent=True,
                    console="off",
                    host="",
                    disable_code=True,
                    disable_git=True,
                    x_disable_meta=True,
                    x_save_requirements=False,
                ),
            )
            # In a native sweep its parameter `model` hides the settings of that name: they come back as model.*
            groups = {key: value for key, value in config.items() if isinstance(value, Mapping)}
            run.config.update(flat({k: v for k, v in groups.items() if not isinstance(run.config.get(k), Mapping)}))
            for curves in ("train/*", "val/*"):
                run.define_metric(curves, step_metric="epoch")
            return run
        except Exception as error:  # whatever W&B has to say, training goes on
            log.warning("W&B (%s) did not start: %s", attempt, " ".join(str(error).split()))
    return None
