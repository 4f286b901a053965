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
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import requests  # W&B depends on it
import wandb.apis.public  # wandb.init imports it, too: forks of a sweep have it already
from lightning.pytorch import loggers
from pydantic import Field

from imdbattn.errors import UserError, in_line, only_warning
from imdbattn.settings.keys import NestedDict, flat
from imdbattn.settings.schema import Amount, Count, LoggerSettings
from imdbattn.tracking.loggers import RunLogger, StartedRun
from imdbattn.tracking.wandb_media import comparison_tables, pictures_and_page, predictions_as_media

if TYPE_CHECKING:
    from imdbattn.report.content import ComparedSet

log = logging.getLogger(__name__)
Result = TypeVar("Result")

STEP = "trainer/global_step"  # Lightning's name for the step number
FINISH_SECONDS = 90.0  # longer than the 60 s in which W&B uploads at the end
# settings that are not arguments of wandb.init
OWN_KEYS = ("timeout", "table_rows", "table_characters", "git", "artifacts")


class WandbSettings(LoggerSettings):
    """The settings of conf/logger/wandb.yaml, and arguments of wandb.init."""

    mode: Literal["online", "offline", "disabled"] | None
    timeout: Amount
    table_rows: Annotated[int, Field(ge=0, le=10_000)]
    table_characters: Count
    git: bool
    artifacts: bool

    def check(self) -> None:
        known = inspect.signature(wandb.init).parameters
        if others := [name for name in self.model_extra or () if name not in known]:
            from imdbattn.settings.messages import no_setting

            raise UserError(no_setting(others[0], known))


class WandbLogger(RunLogger, loggers.WandbLogger):
    """Logs a run to W&B."""

    settings_class = WandbSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(project=settings.get("project") or "imdbattn")
        self._settings = settings

    def start(self, run: StartedRun) -> bool:
        rung = run.settings["model"]["name"]
        data = run.settings["data"]
        source = data["source"]
        tags = [rung, source if isinstance(source, str) else "custom source"]
        if "tokenizer" in data:
            tokenizer = data["tokenizer"]
            tags.append(tokenizer if isinstance(tokenizer, str) else "custom tokenizer")
        config = {"rung": rung, **run.settings, "environment": run.environment}
        fields = {"run_name": run.name, "run_job_type": "train", "run_tags": tags}
        self._experiment = start_wandb(
            self._settings, run.folder, config, run.resume, run.group, **fields
        )
        if self._experiment is not None and self._settings["git"]:
            send_changes(self._experiment)
        return self._experiment is not None

    def publish(self, folder: Path, metrics: NestedDict, values: Mapping[str, float]) -> None:
        run, settings = self.experiment, self._settings
        run.summary.update(dict(values))  # `log` would draw curves of one point
        rows, characters = settings["table_rows"], settings["table_characters"]
        run.log(predictions_as_media(folder, metrics, rows, characters))
        pictures = folder / "pictures"
        run.log(pictures_and_page("pictures", pictures, pictures / "attention.html"))
        if settings["artifacts"]:
            send_model(run, folder)

    def publish_comparison(self, comparison: "ComparedSet", folder: Path, group: str) -> None:
        config = {
            "split": comparison["split"],
            "test_set": comparison["test_set"],
            "fingerprint": comparison["fingerprint"],
            "count": comparison["count"],
            "largest_class": comparison["largest_class"],
            "method": comparison["method"],
        }
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


def wandb_mode(mode: str | None, timeout: float) -> str:
    """Returns `mode`, else disabled with WANDB_DISABLED=true, else the mode of W&B's environment
    variables and settings files, else online.

    Without a key or an answer from the server, it is offline, with a warning.
    """
    if mode is None and os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on"):
        return "disabled"
    account = wandb_account()
    mode = mode or account.mode
    if mode in ("offline", "disabled", "dryrun"):
        return mode
    server = account.base_url
    reason = f"W&B: {server} does not answer"
    if not has_key(account):
        reason = f"no W&B key is configured for {server}: run `wandb login`"
    elif http_status(server, min(timeout, 5)):
        return "online"
    log.warning("%s. This run is offline; `wandb sync` uploads it", reason)
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
    """Returns whether W&B has a key for the server, perhaps in ~/.netrc, or one for api.wandb.ai,
    which the server of wandb 0.31 accepts.
    """
    if account.api_key or account.identity_token_file:
        return True
    file = os.path.expanduser(os.environ.get("NETRC") or "~/.netrc")
    hosts = (urlsplit(account.base_url).netloc, "api.wandb.ai")
    with suppress(OSError, NetrcParseError):
        return any(map(netrc(file).authenticators, hosts))
    return False


def result_within(seconds: float, call: Callable[[], Result]) -> Result:
    """Calls `call` in a thread and returns its result. Raises TimeoutError after `seconds`."""
    future = Future[Result]()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(seconds)


def http_status(url: str, timeout: float) -> int | None:
    """Returns the HTTP status of `url`; None if no response arrives within `timeout` seconds."""
    with suppress(Exception):
        return result_within(timeout, lambda: requests.head(url, timeout=timeout).status_code)
    return None


def start_wandb(
    settings: Mapping[str, Any],
    folder: Path,
    config: Mapping[str, object],
    resume: bool = False,
    group: str | None = None,
    **named: object,
) -> wandb.Run | None:
    """Starts a W&B run; returns None after a warning if even an offline one fails.

    The arguments of wandb.init are those in `settings`. An argument that is null there is taken
    from W&B's environment variable, such as WANDB_TAGS, or else from `named`. The command line, the
    host and the list of packages are not sent, nor is the git remote without git=true.

    Args:
        settings: the settings in conf/logger/wandb.yaml.
        folder: the run folder, in which W&B writes wandb/.
        config: the settings and facts that W&B shows.
        resume: whether the last W&B run of the folder continues, under the same id. Offline,
            another folder holds its next part.
        group: the sweep or search that the run belongs to. Its runs ignore WANDB_RUN_ID.
        named: fields of wandb.Settings, such as run_name.
    """
    for name, value in list(os.environ.items()):  # W&B rejects an empty mode
        if name.startswith("WANDB_") and not value:
            del os.environ[name]
    given = {name: settings[name] for name in settings if name not in OWN_KEYS}
    given = {name: value for name, value in given.items() if value is not None}
    config = {**config, **given.pop("config", {})}
    named = {"project": "imdbattn", "run_group": group, **named}
    fields = wandb.Settings(**named)  # type: ignore[arg-type]
    fields.update_from_env_vars(dict(os.environ))
    fields.update_from_dict(sent_by_wandb(settings) | given.pop("settings", {}))
    if group is not None:
        given |= {"id": uuid.uuid4().hex[:8], "resume": "allow"}
    # offline-run-20261125_010203-<id>, the latest last
    earlier = sorted((folder / "wandb").glob("*run-*-*"), key=os.path.getmtime)
    if resume and earlier:
        last_id = earlier[-1].name.split("run-", 1)[1].partition("-")[2]
        note = f"part {len(earlier) + 1}: resumes the previous part"
        notes = filter(None, (given.get("notes", fields.run_notes), note))
        given |= {"id": last_id, "resume": "allow", "notes": "; ".join(notes)}
    mode = wandb_mode(given.pop("mode", None), settings["timeout"])
    # With create_new, a run of the calling program stays active.
    given = {"dir": str(folder), "reinit": "create_new", "config": config, **given}
    for tried in dict.fromkeys((mode, "offline")):
        try:
            run = wandb.init(settings=fields, **given | {"mode": tried})
            log_groups(run, config)
            return run
        except Exception as error:  # training continues without it
            log.warning("W&B (%s) did not start: %s", tried, in_line(error, None))
            if wandb.run is None:  # without teardown, the id of the failed run would stay in use
                with suppress(Exception):
                    result_within(5, wandb.teardown)
    return None


def sent_by_wandb(settings: Mapping[str, Any]) -> dict[str, object]:
    """Returns settings of W&B with which nothing private is sent unless `settings` allow it."""
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


def log_groups(run: wandb.Run, config: Mapping[str, object]) -> None:
    """Completes the config of a W&B run, and sets the x axis of its curves: epochs, or steps for
    curves without epochs.

    A parameter `model` of a W&B sweep hides the settings `model`; these are logged again.
    """
    hidden = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and not isinstance(run.config.get(key), Mapping):
            hidden[key] = value
    run.config.update(flat(hidden))
    for curves in ("train/*", "val/*", "attention_*"):
        run.define_metric(curves, step_metric="epoch")
    for curves in ("train/loss_step", "train/lr_step", "lr-*"):
        run.define_metric(curves, step_metric=STEP)


def finish_wandb(run: wandb.Run, failed: bool = False) -> None:
    """Finishes a W&B run, and logs the command that uploads an offline one. After FINISH_SECONDS
    the command continues without it.
    """
    folder = Path(run.settings.sync_dir).parent
    quoted = shlex.quote(os.path.relpath(folder))
    try:
        result_within(FINISH_SECONDS, lambda: run.finish(exit_code=int(failed)))
    except Exception as error:
        sync = f"wandb sync --include-online {quoted}/*run-*-{run.id}"
        log.warning("W&B did not finish: %s. `%s` uploads its files", in_line(error, None), sync)
        # At exit, wandb would wait for its process again.
        if isinstance(error, TimeoutError):
            with suppress(Exception):
                result_within(1, wandb.teardown)
        return
    pattern = f"offline-run-*-{run.id}"
    if any(folder.glob(pattern)):
        log.info("W&B: this run is offline; upload it with:  wandb sync %s/%s", quoted, pattern)


# --- what is sent on request ----------------------------------------------------------------------


def send_changes(run: wandb.Run) -> None:
    """Sends the uncommitted changes of the git repository in the current folder as diff.patch.

    W&B itself sends commit and remote, without a password in it.
    """
    with only_warning(log, "W&B: changes were not sent"):
        command = ["git", "diff", "HEAD"]
        patch = subprocess.run(command, capture_output=True, check=True).stdout
        Path(run.dir, "diff.patch").write_bytes(patch)
        run.save(str(Path(run.dir, "diff.patch")), base_path=run.dir)


def send_model(run: wandb.Run, folder: Path) -> None:
    """Uploads the exported best model of a run folder as an artifact."""
    from imdbattn.exports.folder import write_export
    from imdbattn.folders.run import Run
    from imdbattn.settings.command_settings import with_defaults
    from imdbattn.tasks.task import settings_of
    from imdbattn.tasks.weights import predictor_of

    # this process has trained with classes that its settings name
    opened = Run(folder, run.config.get("trust"), dict(run.config))
    with TemporaryDirectory() as temporary:
        model = Path(temporary, "model")
        predictor = predictor_of(settings_of(opened), opened.existing_checkpoint)
        write_export(predictor, with_defaults("export", run=str(folder), out=str(model)))
        artifact = wandb.Artifact(f"{run.name}-{run.id}", type="model")
        artifact.add_dir(str(model))
        run.log_artifact(artifact)
