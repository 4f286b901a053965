"""W&B runs: online or offline, and without private data.

W&B never stops a run: without a key or a network it writes its files into the run folder.
"""

import logging
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.errors import in_line
from imdbattn.io.network import http_status, result_within
from imdbattn.settings.credentials import without_credentials
from imdbattn.settings.keys import flat

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

FINISH_SECONDS = 90.0  # after the 60 s in which W&B uploads at the end of a run
# keys of conf/logger/wandb.yaml that are not arguments of wandb.init
OWN_KEYS = ("_target_", "needs", "timeout", "table_rows", "table_characters", "git", "artifacts")


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


def wandb_folders(folder: Path) -> list[Path]:
    """Returns the folders that W&B has written into a run folder, the latest last."""
    return sorted((folder / "wandb").glob("*run-*-*"), key=os.path.getmtime)


def wandb_id(folder: Path) -> str:
    """Returns the id of a W&B run, from its folder offline-run-20261125_010203-<id>."""
    return folder.name.split("run-", 1)[1].partition("-")[2]


def upload_command(folder: Path) -> str | None:
    """Returns the command that uploads the W&B run of a run folder, if a part of it is offline."""
    for part in wandb_folders(folder)[-1:]:  # those of an overwritten run have another id
        pattern = f"offline-run-*-{wandb_id(part)}"
        if any((folder / "wandb").glob(pattern)):
            return f"wandb sync {shlex.quote(os.path.relpath(folder))}/wandb/{pattern}"
    return None


def start_wandb(
    settings: Mapping[str, Any],
    folder: Path,
    config: Mapping[str, object],
    resume: bool = False,
    **named: object,
) -> "wandb.Run | None":
    """Starts a W&B run; returns None after a warning if even an offline one fails.

    The arguments of wandb.init are those in `settings`. One that is null there is W&B's environment
    variable, such as WANDB_TAGS, and without that variable the one in `named`. The command line,
    the host and the list of packages are not sent, nor is the git remote without git=true.

    Args:
        settings: the settings in conf/logger/wandb.yaml.
        folder: the run folder, in which W&B writes wandb/.
        config: the settings and facts that W&B shows.
        resume: whether the last W&B run of the folder continues, under the same id. Offline,
            another folder holds its next part.
        named: fields of wandb.Settings, such as run_name.
    """
    import wandb

    given = {name: settings[name] for name in settings if name not in OWN_KEYS}
    given = {name: value for name, value in given.items() if value is not None}
    config = without_credentials({**config, **given.pop("config", {})})
    fields = wandb.Settings(**{"project": "imdbattn", **named})  # type: ignore[arg-type]
    fields.update_from_env_vars(dict(os.environ))
    fields.update_from_dict(sent_by_wandb(settings) | given.pop("settings", {}))
    if resume and (parts := wandb_folders(folder)):
        note = f"part {len(parts) + 1}: resumes the previous part"
        notes = filter(None, (given.get("notes", fields.run_notes), note))
        given |= {"id": wandb_id(parts[-1]), "resume": "allow", "notes": "; ".join(notes)}
    mode = wandb_mode(given.pop("mode", None), settings["timeout"])
    # with create_new a run of the program that called stays active
    given = {"dir": str(folder), "reinit": "create_new", "config": config, **given}
    for tried in dict.fromkeys((mode, "offline")):
        try:
            run = wandb.init(settings=fields, **given | {"mode": tried})
            log_groups(run, config)
            return run
        except Exception as error:  # any exception: training continues
            log.warning("W&B (%s) did not start: %s", tried, in_line(error, None))
    return None


def sent_by_wandb(settings: Mapping[str, Any]) -> dict[str, object]:
    """Returns settings of W&B with which nothing private is sent, unless ours say so."""
    return {
        "init_timeout": settings["timeout"],
        "finish_timeout": 60,
        "silent": True,
        "console": "off",
        "host": "",
        "disable_code": True,
        "disable_git": not settings["git"],
        "x_disable_meta": True,
        "x_save_requirements": False,
    }


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
