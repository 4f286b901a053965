"""The logger for W&B: online or offline, and without private data.

W&B never stops a run: without a key or a network it writes its files into the run folder, and any
other failure causes only a warning.
"""

import inspect
import logging
import os
import shlex
import subprocess
import uuid
from collections.abc import Mapping
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import wandb.apis.public  # wandb.init imports it, too: forks of a sweep have it already
from lightning.pytorch import loggers
from pydantic import Field

from imdbattn.errors import one_line, only_warning
from imdbattn.folders.run_folder import group_of
from imdbattn.settings.keys import NestedDict, flattened, run_label
from imdbattn.settings.schema import Amount, Count, LoggerSettings
from imdbattn.tracking.loggers import RunLogger, logged_results
from imdbattn.tracking.wandb_media import comparison_tables, pictures_and_page, predictions_as_media

if TYPE_CHECKING:
    from imdbattn.report.comparison_types import ComparedSet

log = logging.getLogger(__name__)

STEP = "trainer/global_step"  # Lightning's name for the step number
# settings that are not arguments of wandb.init
OWN_KEYS = ("timeout", "table_rows", "table_characters", "git")
# Settings of W&B with which it ends after some time, prints nothing and sends nothing private
QUIET = {
    "finish_timeout": 60,
    "finish_timeout_raises": True,
    "silent": True,
    "console": "off",
    "host": "",
    "disable_code": True,
    "x_disable_meta": True,
    "x_save_requirements": False,
}


class WandbSettings(LoggerSettings):
    """The settings of conf/logger/wandb.yaml, and arguments of wandb.init."""

    mode: Literal["online", "offline", "disabled"] | None
    timeout: Amount
    table_rows: Annotated[int, Field(ge=0, le=10_000)]
    table_characters: Count
    git: bool

    def model_post_init(self, context: object) -> None:
        inspect.signature(wandb.init).bind(**self.model_extra or {})


class WandbLogger(RunLogger, loggers.WandbLogger):
    """Logs a run to W&B."""

    settings_class = WandbSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(project=settings.get("project") or "imdbattn")
        self._settings = settings

    def start(self, folder: Path, config: NestedDict, resume: bool) -> bool:
        rung = config["model"]["name"]
        tags = [rung]
        for name in ("source", "tokenizer"):
            if name in config["data"]:
                choice = config["data"][name]
                tags.append(choice if isinstance(choice, str) else f"custom {name}")
        fields = {"run_name": run_label(config), "run_job_type": "train", "run_tags": tags}
        self._experiment = start_wandb(
            self._settings, folder, {"rung": rung, **config}, resume, group_of(folder), **fields
        )
        if self._experiment is not None and self._settings["git"]:
            send_changes(self._experiment)
        return self._experiment is not None

    def publish(self, folder: Path, metrics: NestedDict) -> None:
        run, settings = self.experiment, self._settings
        run.summary.update(logged_results(metrics))  # `log` would draw curves of one point
        rows, characters = settings["table_rows"], settings["table_characters"]
        run.log(predictions_as_media(folder, metrics, rows, characters))
        pictures = folder / "pictures"
        run.log(pictures_and_page("pictures", pictures, pictures / "attention.html"))

    def publish_comparison(self, comparison: "ComparedSet", folder: Path, group: str) -> None:
        names = ("split", "test_set", "fingerprint", "count", "largest_class", "method")
        config = {name: value for name, value in comparison.items() if name in names}
        settings = self._settings | {"name": "comparison", "job_type": "comparison"}
        run = start_wandb(settings, folder, config, group=group, run_tags=["comparison"])
        if run is None:
            return
        try:
            run.log(comparison_tables(comparison))
            page = folder / "comparison.html"
            run.log(pictures_and_page("comparison", folder / "figures", page))
        finally:
            finish_wandb(run)

    def end(self, failed: bool) -> None:
        finish_wandb(self.experiment, failed)


# --- the beginning and the end of a W&B run -------------------------------------------------------


def start_wandb(
    settings: Mapping[str, Any],
    folder: Path,
    config: Mapping[str, object],
    resume: bool = False,
    group: str | None = None,
    **defaults: object,
) -> wandb.Run | None:
    """Starts a W&B run; returns None after a warning if even an offline one fails.

    The run is offline, after a warning, without a key or an answer from the server. The command
    line, the host and the list of packages are not sent, nor is the git remote without git=true.

    Args:
        settings: the settings in conf/logger/wandb.yaml. W&B's environment variables, such as
            WANDB_TAGS, replace those that are null.
        folder: the run folder, in which W&B writes wandb/.
        config: the settings and facts that W&B shows.
        resume: whether the last W&B run of the folder continues, under the same id. Offline,
            another folder holds its next part.
        group: the sweep or search that the run belongs to. Its runs ignore WANDB_RUN_ID.
        defaults: fields of wandb.Settings, such as run_name, that neither the settings nor the
            environment specify.
    """
    for name, value in list(os.environ.items()):  # W&B rejects an empty mode
        if name.startswith("WANDB_") and not value:
            del os.environ[name]
    # W&B's reports of its errors, also from offline runs, would delay the end of the process if the
    # server does not answer.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    # `reinit` lets a run of the calling program stay active.
    arguments: dict[str, Any] = {"dir": str(folder), "reinit": "create_new"}
    for name, value in settings.items():
        if value is not None and name not in OWN_KEYS:
            arguments[name] = value
    fields = wandb.Settings()  # later updates replace earlier ones
    fields.update_from_dict({"project": "imdbattn", "run_group": group, **defaults})
    fields.update_from_env_vars(dict(os.environ))
    fields.update_from_dict(QUIET)
    fields.update_from_dict(
        {"init_timeout": settings["timeout"], "disable_git": not settings["git"]}
    )
    fields.update_from_dict(arguments.pop("settings", {}))
    arguments["config"] = {**config, **arguments.get("config", {})}
    arguments |= run_id(folder, resume, group)
    for mode in dict.fromkeys((mode_with_key(arguments.get("mode")), "offline")):
        arguments["mode"] = mode
        try:
            run = wandb.init(settings=fields, **arguments)
            log_groups(run, arguments["config"])
            return run
        except Exception as error:  # training continues without it
            log.warning("W&B (%s) did not start: %s", mode, one_line(error, None))
            if wandb.run is None:  # without teardown, the id of the failed run would stay in use
                with suppress(Exception):
                    wandb.teardown()
    return None


def run_id(folder: Path, resume: bool, group: str | None) -> dict[str, object]:
    """Returns the arguments of wandb.init that determine the id of a run, see `start_wandb`."""
    # offline-run-20261125_010203-<id>, the latest last
    earlier = sorted((folder / "wandb").glob("*run-*-*"), key=os.path.getmtime)
    if resume and earlier:
        last_id = earlier[-1].name.split("run-", 1)[1].partition("-")[2]
        return {"id": last_id, "resume": "allow"}
    if group is not None:
        return {"id": uuid.uuid4().hex[:8], "resume": "allow"}
    return {}


def mode_with_key(mode: str | None) -> str:
    """Returns `mode`, or else that of W&B's environment variables and settings files; offline, with
    a warning, instead of online if W&B would have to ask for a key.
    """
    account = wandb_account()
    mode = mode or account.mode
    if mode in ("offline", "disabled", "dryrun") or has_key(account):
        return mode
    log.warning(
        "no W&B key is configured for %s: run `wandb login`. This run is offline; `wandb sync`"
        " uploads it",
        account.base_url,
    )
    return "offline"


def wandb_account() -> wandb.Settings:
    """Returns W&B's settings from its files, which `wandb login` and `wandb offline` write, and
    from its environment variables.
    """
    config_dir = os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")
    account = wandb.Settings(settings_system=str(Path(config_dir, "settings")))
    account.update_from_system_settings()
    account.update_from_env_vars(dict(os.environ))
    return account


def has_key(account: wandb.Settings) -> bool:
    """Returns whether W&B has a key for the server, perhaps in ~/.netrc."""
    if account.api_key or account.identity_token_file:
        return True
    hosts = [urlsplit(account.base_url).netloc]
    if account.base_url == wandb.Settings.model_fields["base_url"].default:
        hosts.append("api.wandb.ai")  # where earlier versions have stored the key
    file = os.path.expanduser(os.environ.get("NETRC") or "~/.netrc")
    with suppress(OSError, NetrcParseError):
        return any(map(netrc(file).authenticators, hosts))
    return False


def log_groups(run: wandb.Run, config: Mapping[str, object]) -> None:
    """Completes the config of a W&B run, and sets the x axis of its curves: epochs, or steps for
    curves without epochs.

    A parameter `model` of a W&B sweep hides the settings `model`; these are logged again.
    """
    hidden = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and not isinstance(run.config.get(key), Mapping):
            hidden[key] = value
    run.config.update(flattened(hidden))
    for curves in ("train/*", "val/*", "attention_*"):
        run.define_metric(curves, step_metric="epoch")
    for curves in ("train/loss_step", "train/lr_step", "lr-*"):
        run.define_metric(curves, step_metric=STEP)


def finish_wandb(run: wandb.Run, failed: bool = False) -> None:
    """Finishes a W&B run, and logs the command that uploads an offline or incomplete one."""
    folder = Path(run.settings.sync_dir).parent
    quoted = shlex.quote(os.path.relpath(folder))
    try:
        run.finish(exit_code=int(failed))
    except Exception as error:
        sync = f"wandb sync --include-online {quoted}/*run-*-{run.id}"
        log.warning("W&B did not finish: %s `%s` uploads its files", one_line(error, None), sync)
        return
    pattern = f"offline-run-*-{run.id}"
    if any(folder.glob(pattern)):
        log.info("W&B: this run is offline; upload it with:  wandb sync %s/%s", quoted, pattern)


def send_changes(run: wandb.Run) -> None:
    """Sends the uncommitted changes of the git repository in the current folder as diff.patch.

    W&B itself sends commit and remote, without a password in it.
    """
    with only_warning(log, "W&B: changes were not sent"):
        command = ["git", "diff", "HEAD"]
        patch = subprocess.run(command, capture_output=True, check=True).stdout
        Path(run.dir, "diff.patch").write_bytes(patch)
        run.save(str(Path(run.dir, "diff.patch")), base_path=run.dir)
